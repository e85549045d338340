import { type Static, Type } from 'typebox'
import { TrailSchema } from './trail.ts'

/*
 * Decides which states are stored, when, and which of them are evicted. While an owner stays within its share of the
 * budget, its states are never evicted for those of another owner, so that evictions reveal nothing about others.
 */

export const StateRecordSchema = Type.Object({
  version: Type.Literal(2),
  variant: Type.String(),
  key: Type.String(),
  revision: Type.String(),
  /** The owner of the prompt (`Caller.owner`). Prompts of other owners are never compared with it. */
  owner: Type.String(),
  trail: TrailSchema,
  tokens: Type.Integer({ minimum: 1 }),
  bytes: Type.Integer({ minimum: 1 }),
  crc32: Type.Integer({ minimum: 0 }),
  slots: Type.Integer({ minimum: 1 }),
  /** Streams of its file, 0 if it fits any number of slots. Absent if it cannot be rewritten for another number. */
  streams: Type.Optional(Type.Integer({ minimum: 0 })),
  /** Milliseconds per token that the engine took for prefill. */
  pace: Type.Optional(Type.Number({ minimum: 0 })),
  /** When the conversation last continued, in milliseconds since 1970. */
  usedAt: Type.Number(),
  tier: Type.Enum(['memory', 'disk'])
})
/** The record of a saved state on disk, beside its file. */
export type StateRecord = Static<typeof StateRecordSchema>
export type Tier = StateRecord['tier']
/** A saved state. Its checksum is unknown until its file has been read again. */
export interface SavedState extends Omit<StateRecord, 'version' | 'crc32'> {
  readonly id: string
  crc32?: number
}

/** Prompts with fewer bytes are processed again faster than they are restored. */
const MIN_PROMPT_BYTES = 256
/** Milliseconds after an answer until its state is saved, unless conversations are competing for slots. */
const IDLE_BEFORE_SAVE_MS = 5000
/** Bytes of a prompt that are worth a slower next turn, so that the end of corral cannot lose them. */
const MUCH_UNSAVED = 4096
const COMPETING_FOR_MS = 600_000
/** Milliseconds after which a conversation is half as likely to return. */
const HALF_LIFE_MS = 3_600_000

/** The share of the free memory that states may use, unless the admin sets an amount. */
const MEMORY_SHARE = 0.25

/** Returns the bytes that states in memory may use. @param free bytes, if the states are counted as free */
export function getMemoryBudget(configured: number | undefined, free: number): number {
  return Math.min(configured ?? Number.POSITIVE_INFINITY, MEMORY_SHARE * free)
}

/** Whether a slot's state is worth saving to a file. */
export function isWorthSaving(slot: {
  owner: string | undefined
  trail: { length: number } | undefined
  /** Whether it differs from the file that it was saved to or restored from. */
  changed: boolean
  /** Whether its request allows that it is stored. */
  allowed: boolean
}): boolean {
  return slot.changed && slot.allowed && slot.owner !== undefined && (slot.trail?.length ?? 0) >= MIN_PROMPT_BYTES
}

/**
 * Returns the milliseconds after the end of an answer until its state is saved in the background, or undefined to save
 * it only when its slot is needed.
 * @param exact whether saving rolls the slot back to the end of its prompt, which makes its next turn slower
 * @param sinceDisplaced milliseconds since a conversation last displaced another one in this engine
 * @param unsaved bytes of the prompt that no saved state has
 */
export function getSaveDelay(exact: boolean, sinceDisplaced: number, unsaved: number): number | undefined {
  if (sinceDisplaced < COMPETING_FOR_MS) return 0
  return exact && unsaved < MUCH_UNSAVED ? undefined : IDLE_BEFORE_SAVE_MS
}

/** The value of a state's bytes: the time to compute it again × the probability of its return ÷ its size. */
function getValue({ tokens, usedAt, bytes }: SavedState, pace: number, now: number): number {
  return (tokens * pace * 2 ** ((usedAt - now) / HALF_LIFE_MS)) / bytes
}

/** Chooses which states to evict for a new one: the least valuable ones of owners above their share of the budget. */
export function chooseEvicted(
  states: readonly SavedState[],
  bytes: number,
  { owner, added, budget, now }: { owner: string; added: number; budget: number; now: number }
): SavedState[] {
  const totals = new Map([[owner, added]])
  for (const state of states) totals.set(state.owner, (totals.get(state.owner) ?? 0) + state.bytes)
  const share = budget / totals.size
  const evicted: SavedState[] = []
  // The latest pace of a model counts for all its states: differences between them only show how busy the machine was.
  const latest = new Map<string, SavedState>()
  for (const state of states) {
    if (state.usedAt >= (latest.get(state.key)?.usedAt ?? 0)) latest.set(state.key, state)
  }
  const value = (state: SavedState) => getValue(state, latest.get(state.key)?.pace ?? 1, now)
  const left = [...states].sort((a, b) => value(a) - value(b))
  for (let freed = 0; freed < bytes && left.length > 0; ) {
    const found = left.findIndex(({ owner }) => totals.get(owner)! > share)
    const [state] = left.splice(Math.max(0, found), 1)
    evicted.push(state!)
    freed += state!.bytes
    totals.set(state!.owner, totals.get(state!.owner)! - state!.bytes)
  }
  return evicted
}
