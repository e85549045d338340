import type { EngineFields } from '../../../core/contracts/engines.ts'
import type { SavedState } from './retention.ts'
import { commonLength, continues, type Trail } from './trail.ts'

/*
 * Decides in which slot a prompt is processed, and from which state. llama-server processes only the part of a prompt
 * that its slot does not hold yet. Its token counts and the time to the first token show how much that was, so a prompt
 * never meets a state of another owner.
 */

export interface SlotState {
  readonly id: number
  /** The owner of its prompt. Undefined if unknown, or if the slot is empty. */
  owner: string | undefined
  /** The beginnings of its prompt. Undefined if unknown. */
  trail: Trail | undefined
  /** Increases with each use. 0 before the first one. */
  usedAt: number
  /** Whether its latest request was a background one. */
  background: boolean
}

export interface PlacedPrompt {
  owner: string
  trail: Trail
  /** Whether it should not displace a long conversation (`isBackground`). */
  background: boolean
  /** States that were saved for this owner by engines like this one. */
  saved: readonly SavedState[]
  /** Whether a saved state can only be continued from its very end: models with sliding windows or recurrent layers. */
  exact: boolean
  /** Milliseconds to process a token, and bytes that are restored in a millisecond. */
  pace: number
  restoreSpeed: number
}

export interface Placement<Slot extends SlotState> {
  slot: Slot
  /** The state to restore into the slot first: a saved one, or that of another slot, which must be saved first. */
  source?: { saved: SavedState } | { slot: Slot }
}

/** Minimum share of a slot's prompt that a new prompt must repeat to continue its conversation. */
const KEPT_SHARE = 0.5
/** Minimum share of a new prompt that a slot of another conversation must hold to be worth taking. */
const FOUND_SHARE = 0.5
/** A prompt with fewer tokens is processed faster than it is restored. */
export const MIN_TOKENS = 64
/** Bytes of a prompt that must not displace a long conversation, such as a title or a connection test. */
export const SHORT_PROMPT = 2048
/** Maximum tokens of an answer that must not displace a long conversation. */
const SHORT_ANSWER = 32

/** Whether a request should not displace a long conversation: it says so, or its prompt or its answer is short. */
export function isBackground(body: EngineFields, trail: Trail, said = false): boolean {
  const most = body.max_tokens ?? body.max_completion_tokens ?? body.n_predict
  return said || trail.length < SHORT_PROMPT || (typeof most === 'number' && most > 0 && most <= SHORT_ANSWER)
}

/** Whether a slot holds a conversation that a background request should not displace. */
const isSpared = ({ background, usedAt }: SlotState) => usedAt > 0 && !background

/** Whether a background request waits for the slot of another one rather than displace a long conversation now. */
export function shouldWait(slots: Iterable<SlotState>, free: ReadonlySet<SlotState>, prompt: PlacedPrompt): boolean {
  if (!prompt.background || ![...slots].some(slot => slot.background && !free.has(slot))) return false
  const { slot } = choosePlacement(free, prompt)
  return isSpared(slot) && !(slot.owner === prompt.owner && slot.trail && continues(prompt.trail, slot.trail))
}

/**
 * Chooses a slot for a prompt among the free ones (at least one):
 *
 * 1. The owner's slot whose conversation continues, unless restoring a saved state with more of the prompt is faster.
 * 2. With a saved state that has most of the prompt: an unused slot, otherwise the least recently used one.
 * 3. If another slot of the owner has at least half of the prompt, such as instructions that all conversations share: an
 *    unused slot with a copy of that state (a background request may also copy it into the slot of another one),
 *    otherwise that slot itself.
 * 4. An unused slot, otherwise the least recently used one. A background request spares long conversations if it can take
 *    the slot of another background request.
 */
export function choosePlacement<Slot extends SlotState>(
  free: Iterable<Slot>,
  { owner, trail, background, saved, exact, pace, restoreSpeed }: PlacedPrompt
): Placement<Slot> {
  const byAge = [...free].sort((a, b) => a.usedAt - b.usedAt)
  const oldest = byAge[0]!
  const unused = oldest.usedAt === 0 ? oldest : undefined
  const victim = unused ?? ((background && byAge.find(slot => slot.background)) || oldest)
  let continuing: Slot | undefined
  let similar: Slot | undefined
  let mostKept = 0
  let mostFound = 0
  for (const slot of free) {
    if (slot.owner !== owner || !slot.trail) continue
    const common = commonLength(slot.trail, trail)
    if (common > mostKept && common >= KEPT_SHARE * slot.trail.length) {
      continuing = slot
      mostKept = common
    }
    if (common > mostFound && common >= FOUND_SHARE * trail.length) {
      similar = slot
      mostFound = common
    }
  }

  const best = findBest(saved, trail, exact)
  if (best) {
    const gained = best.tokens * ((best.common - mostKept) / Math.max(1, best.state.trail.length))
    const isWorthIt = gained >= MIN_TOKENS && gained * pace > best.state.bytes / restoreSpeed
    if (isWorthIt) {
      const isEarlierTurn = continuing?.trail && continues(best.state.trail, continuing.trail)
      return { slot: isEarlierTurn ? continuing! : victim, source: { saved: best.state } }
    }
  }
  if (continuing) return { slot: continuing }
  const copied = similar && similar !== victim && !exact
  if (copied && (unused || (background && !isSpared(victim)))) return { slot: victim, source: { slot: similar! } }
  return { slot: unused ?? similar ?? victim }
}

/** Finds the saved state with the most of a prompt, the newest among equals. */
function findBest(saved: readonly SavedState[], trail: Trail, exact: boolean) {
  let best: { state: SavedState; common: number; tokens: number } | undefined
  for (const state of saved) {
    if (exact && !continues(trail, state.trail)) continue
    const common = commonLength(state.trail, trail)
    if (common === 0 || (best && common < best.common)) continue
    if (best && common === best.common && state.usedAt < best.state.usedAt) continue
    best = { state, common, tokens: state.tokens }
  }
  return best
}
