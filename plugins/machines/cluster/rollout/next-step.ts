import { hashOfName } from '../placement/choose-node.ts'
import type { Rollout, RolloutNode } from './rollout-record.ts'

/** What a gateway knows about a node, and since when (in milliseconds). */
export interface NodeFacts {
  state: 'up' | 'draining' | 'away'
  since: number
}

export type Step =
  /**
   * prepare: fetches what it needs while it is in service. drain: waits until it has no requests. apply, restore: changes
   * it, changes it back. release: it takes requests again. leave: nothing has to be restored.
   */
  | { do: 'prepare' | 'drain' | 'apply' | 'verify' | 'release' | 'restore' | 'leave'; node: RolloutNode }
  | { do: 'skip' | 'fail'; node: RolloutNode; why: string }
  | { do: 'widen' }
  | { do: 'hold'; why: string }
  | { do: 'end'; state: 'done' | 'failed' | 'undone' }

/** Milliseconds that a node which has not been changed may be away until it is left out … */
const SKIP_AFTER_MS = 2 * 60_000
/** … and a changed node until the rollout fails. */
const LOST_AFTER_MS = 10 * 60_000

const ACTIVE: readonly RolloutNode['phase'][] = ['prepared', 'applying', 'applied', 'verified']

/**
 * Decides the next step of a rollout that has not ended. One node after the other is prepared, drained, changed, verified
 * and released. A failed node, and with `undoing` each changed node, is drained, restored and released. Every step may be
 * repeated, so after a restart the rollout continues with the step that was interrupted.
 * @param nodes all nodes of the gateway, by name
 */
export function nextStep(rollout: Rollout, nodes: ReadonlyMap<string, NodeFacts>, now: number): Step {
  const { state, canary, failure, kind } = rollout
  const factsOf = ({ name }: RolloutNode): NodeFacts => nodes.get(name) ?? { state: 'away', since: 0 }
  const isOut = (node: RolloutNode) => node.out && factsOf(node).state === 'draining'
  const awayFor = (node: RolloutNode) => (factsOf(node).state === 'away' ? now - factsOf(node).since : 0)
  const drain = (node: RolloutNode): Step => {
    const hasOther = [...nodes].some(([other, { state }]) => other !== node.name && state === 'up')
    return hasOther ? { do: 'drain', node } : { do: 'hold', why: 'no other member could take the requests' }
  }
  const isAway = (node: RolloutNode) => factsOf(node).state === 'away'

  const returning = rollout.nodes.findLast(({ back, phase }) => back && phase !== 'restored' && phase !== 'stuck')
  if (returning) {
    const { applied, out, name } = returning
    if (!applied && !out) return { do: 'leave', node: returning }
    const restarts = kind === 'corral' && applied && out
    if (isAway(returning) && !restarts) {
      if (awayFor(returning) < LOST_AFTER_MS) return { do: 'hold', why: `${name} is away` }
      return { do: 'skip', node: returning, why: 'It was away, so it could not be restored.' }
    }
    if (!applied) return { do: 'release', node: returning }
    return restarts || isOut(returning) ? { do: 'restore', node: returning } : drain(returning)
  }
  if (state === 'undoing') return { do: 'end', state: 'undone' }
  if (failure !== undefined) return { do: 'end', state: 'failed' }

  const active = rollout.nodes.find(({ phase }) => ACTIVE.includes(phase))
  if (active) {
    const { phase, name } = active
    // Whoever restarts the node takes the time they need.
    const restarts = kind === 'corral' && phase === 'applying'
    if (restarts) return { do: 'apply', node: active }
    if (isAway(active)) {
      if (awayFor(active) < LOST_AFTER_MS) return { do: 'hold', why: `${name} is away` }
      return { do: 'fail', node: active, why: `It has been away for ${LOST_AFTER_MS / 60_000} minutes.` }
    }
    if (phase === 'verified') return { do: 'release', node: active }
    if (isOut(active)) return { do: phase === 'applied' ? 'verify' : 'apply', node: active }
    return drain(active)
  }

  const waiting = rollout.nodes.filter(({ phase }) => phase === 'waiting')
  if (waiting.length === 0) return { do: 'end', state: 'done' }
  if (state === 'paused') return { do: 'hold', why: rollout.paused ?? 'it is paused' }
  if (canary && !canary.over && rollout.nodes.some(({ phase }) => phase === 'done')) {
    if (canary.until !== undefined && now >= Date.parse(canary.until)) return { do: 'widen' }
    return { do: 'hold', why: 'updated members get only a part of the requests' }
  }
  const next = waiting.find(node => factsOf(node).state === 'up')
  if (next) return { do: 'prepare', node: next }
  const lost = waiting.find(node => awayFor(node) >= SKIP_AFTER_MS)
  if (lost) return { do: 'skip', node: lost, why: 'It was away. Start the rollout again to update it.' }
  const names = waiting.map(node => `${node.name} is ${isAway(node) ? 'away' : 'draining'}`)
  return { do: 'hold', why: names.join(', ') }
}

/** The client of a request: the name of its key, and its conversation as a number. */
export interface Asker {
  key: string | undefined
  conversation: number
}

/** Decides whether a request goes to updated nodes. A conversation always gets the same decision. */
export function isInCanary({ id, canary }: Pick<Rollout, 'id' | 'canary'>, { key, conversation }: Asker): boolean {
  if (canary?.key !== undefined && key === canary.key) return true
  return hashOfName(`${id} ${conversation}`) / 2 ** 32 < (canary?.share ?? 0)
}

/** Returns why an answer does not count as one, or undefined. A broken engine often repeats one character. */
export function judgeAnswer(text: string, expect: string | undefined): string | undefined {
  const shown = JSON.stringify(text.length > 200 ? `${text.slice(0, 200)}…` : text)
  const letters = text.replaceAll(/\s/g, '')
  if (letters === '') return 'Its answer is empty.'
  if (text.includes('\ufffd')) return `Its answer is not a text: ${shown}.`
  if (letters.length >= 8 && new Set(letters).size < 3) return `Its answer repeats itself: ${shown}.`
  if (expect === undefined || text.toLowerCase().includes(expect.toLowerCase())) return undefined
  return `Its answer does not contain ${JSON.stringify(expect)}: ${shown}.`
}
