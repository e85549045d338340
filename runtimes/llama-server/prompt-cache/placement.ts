import type { SavedState } from './saved-state.ts'
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
}

export interface PlacedPrompt {
  owner: string
  trail: Trail
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
/** Processing fewer tokens than this again is faster than restoring them. */
export const MIN_TOKENS = 64
/** Bytes of a prompt that is not worth the slot of a long conversation: a title, a summary, a test of the connection. */
const SHORT_PROMPT = 2048

/**
 * Chooses a slot for a prompt among the free ones (at least one):
 *
 * 1. The owner's slot whose conversation continues, unless restoring a saved state with more of the prompt is faster.
 * 2. With a saved state that has most of the prompt: an unused slot, otherwise the least recently used one.
 * 3. If another slot of the owner has at least half of the prompt, such as instructions that all conversations share: an
 *    unused slot with a copy of that state, otherwise that slot itself.
 * 4. An unused slot, otherwise the least recently used one. A short prompt spares long conversations if it can take a slot
 *    with a short prompt that is not the latest one.
 */
export function choosePlacement<Slot extends SlotState>(
  free: Iterable<Slot>,
  { owner, trail, saved, exact, pace, restoreSpeed }: PlacedPrompt
): Placement<Slot> {
  let continuing: Slot | undefined
  let similar: Slot | undefined
  let mostKept = 0
  let mostFound = 0
  let oldest: Slot | undefined
  let latest: Slot | undefined
  let oldestShort: Slot | undefined
  for (const slot of free) {
    if (!oldest || slot.usedAt < oldest.usedAt) oldest = slot
    if (!latest || slot.usedAt > latest.usedAt) latest = slot
    const isShort = slot.trail && slot.trail.length < SHORT_PROMPT
    if (isShort && (!oldestShort || slot.usedAt < oldestShort.usedAt)) oldestShort = slot
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
  const unused = oldest!.usedAt === 0 ? oldest : undefined
  const spares = trail.length < SHORT_PROMPT && oldestShort !== latest
  const victim = unused ?? ((spares && oldestShort) || oldest!)

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
  if (similar && unused && !exact) return { slot: unused, source: { slot: similar } }
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
