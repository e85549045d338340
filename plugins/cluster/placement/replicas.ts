/** How many members may have a model in memory. */
export interface ReplicaBounds {
  /** So many always have it, where there are so many; 0: only when it is asked for. */
  min: number
  max: number
}

/** What the members that are up have of a model, together. */
export interface ReplicaLoad {
  loaded: number
  /** On its way into memory. */
  loading: number
  /** Members that have it in memory, or where it could be loaded. */
  able: number
  /** Slots of those that have it loaded. */
  slots: number
  running: number
  queued: number
}

/** Since when (milliseconds) there are too few or too many. */
export interface ReplicaState {
  longSince?: number | undefined
  idleSince?: number | undefined
}

export interface ReplicaDecision {
  state: ReplicaState
  /** How many should have it now: more than have it or load it means to load it, fewer means to unload it where it rests. */
  wanted: number
  /** Whether others may be evicted for more: not for a minimum, or two that do not fit would evict each other for ever. */
  evicts: boolean
  /** How many it would take, were there enough members: what exceeds `able` is to be asked of who can add machines. */
  needed: number
  /** When to decide again if nothing changes before. */
  at: number | undefined
}

/** A queue is long when it has been for so long (milliseconds) … */
const GROW_AFTER = 2000
/** … and members are too many when they have been for so long. */
const SHRINK_AFTER = 5 * 60_000
/** Members are too many when what is asked takes at most this share of the slots of one less. */
const IDLE_SHARE = 0.5

/**
 * How many members should have a model in memory; called whenever its load has changed, and at `at`.
 *
 * - More, when at least half as many wait as a member answers at once: as many as have slots for all who ask, though at most
 *   twice as many as there are, and none more while one is loading.
 * - One less, when half the slots of the others would do.
 * - Else as many as there are: a model that its member unloads because nobody uses it is not loaded again.
 *
 * What is long or idle has to stay so for a while, so that nothing flaps; `min` and `max` hold in any case.
 */
export function decideReplicas(
  before: ReplicaState,
  load: ReplicaLoad,
  bounds: ReplicaBounds,
  now: number
): ReplicaDecision {
  const { loaded, loading, able, slots, running, queued } = load
  const asked = running + queued
  const each = loaded ? Math.max(1, slots / loaded) : 1
  const present = loaded + loading

  const isLong = loaded > 0 && !loading && queued >= each / 2
  const isIdle = loaded > Math.max(1, bounds.min) && !loading && asked <= IDLE_SHARE * each * (loaded - 1)
  const longSince = isLong ? (before.longSince ?? now) : undefined
  const idleSince = isIdle ? (before.idleSince ?? now) : undefined
  const decide = (count: number, state: ReplicaState, at?: number): ReplicaDecision => {
    const needed = Math.max(bounds.min, Math.min(count, bounds.max))
    return { state, wanted: Math.min(needed, able), evicts: count > present, needed, at }
  }

  if (longSince !== undefined) {
    if (now < longSince + GROW_AFTER) return decide(present, { longSince }, longSince + GROW_AFTER)
    const enough = Math.max(loaded + 1, Math.min(Math.ceil(asked / each), 2 * loaded))
    // It stays long until there are more.
    return decide(enough, { longSince })
  }
  if (idleSince !== undefined) {
    if (now < idleSince + SHRINK_AFTER) return decide(present, { idleSince }, idleSince + SHRINK_AFTER)
    // The next one has its own time.
    return decide(loaded - 1, { idleSince: now }, now + SHRINK_AFTER)
  }
  return decide(present, {})
}
