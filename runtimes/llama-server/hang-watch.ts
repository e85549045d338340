/*
 * Whether an engine gets on. Two things are known of it from outside without its help: what it sends and how much of the
 * processor it uses. Two more it tells: `/health` is answered by any of its threads, `/slots` by its main loop, and while
 * the model computes, for which the main loop waits. A loop that is caught in something else does not answer.
 */

/** What was seen of an engine in one look. */
export interface Look {
  /** Milliseconds since the look before. */
  passed: number
  /** Requests that wait for it or read from it. */
  open: number
  /** It has sent something other than a sign that the connection lives, or a slot has counted on. */
  moved: boolean
  /**
   * What its main loop says: the model computes for a slot, none is in use, nothing at all; `unknown` where this build
   * or its flags have no `/slots`, or where there was no need to ask.
   */
  slots: 'working' | 'resting' | 'silent' | 'unknown'
  /** Whether it used the processor; undefined where the system does not say. */
  busy: boolean | undefined
  /** Whether any of its threads answers. */
  healthy: boolean
  /** Slots are saved to files or read from them. */
  filing: boolean
}

/** How long it has not got on, in milliseconds. */
export interface Stillness {
  /** It used the processor and nothing moved. */
  still: number
  /** It showed no sign of life. */
  quiet: number
  /** The model has been computing since it moved last. */
  computing: number
  /** The longest that the model took to move. */
  slowest: number
}

export const AT_REST: Stillness = { still: 0, quiet: 0, computing: 0, slowest: 0 }

export interface Patience {
  /** Milliseconds; 0 is for ever. */
  stuckAfter: number
  /** Milliseconds; 0 is for ever. */
  hangTimeout: number
}

/** On a slow machine everything is slow: it is not stuck before so many times what the model took to move. */
const SLOWNESS = 20

/**
 * Decides whether an engine gets on:
 * 1. Something moved, or there is nothing to do and it does nothing: all is well.
 * 2. The model computes: a batch of a long prompt or an image may take an hour on a slow machine, but it has an end. How
 *    long it takes is remembered.
 * 3. Slots go to files or come from them: as long as that takes.
 * 4. It uses the processor, and none of that is so, with requests open or without: it is stuck after a while. Where its
 *    slots cannot be seen, this cannot be told from 2.
 * 5. It does not use the processor, while requests are open: a GPU may work. It hangs when it does not answer either.
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

/** What an engine may hold beyond what is reserved for it, as a factor and in bytes; the larger of both counts. */
const MEMORY_FACTOR = 1.5
const MEMORY_MARGIN = 512 * 2 ** 20

/** Bytes of the machine's memory above which an engine is ended, by what is reserved for it there. */
export function memoryLimit(reserved: number): number {
  return Math.max(MEMORY_FACTOR * reserved, reserved + MEMORY_MARGIN)
}

/** What `GET /slots` says: whether one is in use, and a text that changes when one of them gets on. */
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
