/*
 * Decides whether an engine makes progress. Two facts are visible from outside: what it sends and how much of the
 * processor it uses. It reports two more: any of its threads answers `/health`, and its main loop answers `/slots`,
 * even while it waits for the model to compute. A loop that is blocked by something else does not answer.
 */

export interface Look {
  /** Milliseconds since the check before. */
  passed: number
  /** Requests that wait for it or read from it. */
  open: number
  /** Whether it has sent something other than a keep-alive, or a slot has advanced. */
  moved: boolean
  /** The report of its main loop. `unknown` if this build or its flags have no `/slots`, or without a need to ask. */
  slots: 'working' | 'resting' | 'silent' | 'unknown'
  /** Whether it used the processor. Undefined if the system does not report it. */
  busy: boolean | undefined
  healthy: boolean
  /** Whether slots are being saved to files or restored from them. */
  filing: boolean
}

/** Milliseconds without progress. */
export interface Stillness {
  /** It used the processor but made no progress. */
  still: number
  /** It showed no sign of life. */
  quiet: number
  /** The model has been computing since the last movement. */
  computing: number
  /** The longest time that the model took to move. */
  slowest: number
}

export const AT_REST: Stillness = { still: 0, quiet: 0, computing: 0, slowest: 0 }

export interface Patience {
  /** Milliseconds. 0 is unlimited. */
  stuckAfter: number
  /** Milliseconds. 0 is unlimited. */
  hangTimeout: number
}

/** On a slow machine everything is slow. An engine is stuck only after this many times the model's slowest movement. */
const SLOWNESS = 20

/**
 * Decides whether an engine makes progress:
 * 1. There was progress, or it is idle and has no work: all is well.
 * 2. The model computes: a batch of a long prompt or an image may take an hour on a slow machine, but it ends. Its
 *    duration is remembered.
 * 3. Slots are being saved or restored, which has no time limit.
 * 4. It uses the processor for none of these reasons, with or without open requests: it is stuck after a while. If its
 *    slots are not visible, this looks the same as 2.
 * 5. It does not use the processor while requests are open: a GPU may be working. If it does not answer either, it
 *    hangs.
 */
export function judge(
  before: Stillness,
  look: Look,
  { stuckAfter, hangTimeout }: Patience
): { now: Stillness; fault?: 'stuck' | 'hung' } {
  const { passed } = look
  const busy = look.busy ?? (look.healthy && look.slots === 'silent')
  if (look.moved || (look.open === 0 && !busy)) {
    const took = look.moved && before.computing > 0 ? before.computing + passed : 0
    return { now: { ...AT_REST, slowest: Math.max(before.slowest, took) } }
  }
  if (look.slots === 'working') return { now: { ...before, still: 0, quiet: 0, computing: before.computing + passed } }
  if (busy) {
    if (look.filing || look.slots === 'unknown') return { now: { ...before, still: 0, quiet: 0 } }
    const still = before.still + passed
    const stuck = stuckAfter > 0 && still >= Math.max(stuckAfter, SLOWNESS * before.slowest)
    return { now: { ...before, still, quiet: 0 }, ...(stuck && { fault: 'stuck' }) }
  }
  if (look.healthy) return { now: { ...before, quiet: 0 } }
  const quiet = before.quiet + passed
  return { now: { ...before, quiet }, ...(hangTimeout > 0 && quiet >= hangTimeout && { fault: 'hung' }) }
}

/** How far an engine may exceed its reservation, as a factor and in bytes. The larger limit applies. */
const MEMORY_FACTOR = 1.5
const MEMORY_MARGIN = 512 * 2 ** 20

/** Returns the bytes of the machine's memory above which an engine is ended, given its reservation. */
export function memoryLimit(reserved: number): number {
  return Math.max(MEMORY_FACTOR * reserved, reserved + MEMORY_MARGIN)
}

/** Reads the reply of `GET /slots`: whether a slot is in use, and a text that changes when a slot advances. */
export function readSlots(reply: unknown): { working: boolean; counters: string } | undefined {
  if (!Array.isArray(reply)) return undefined
  const slots = reply.filter(slot => typeof slot === 'object' && slot !== null)
  const counters = slots.map(slot => {
    const { id_task, n_prompt_tokens, n_prompt_tokens_processed, next_token } = slot
    const decoded = [next_token].flat()[0]?.n_decoded
    return [id_task, slot.is_processing, n_prompt_tokens, n_prompt_tokens_processed, decoded].join(' ')
  })
  return { working: slots.some(slot => slot.is_processing === true), counters: counters.join('\n') }
}
