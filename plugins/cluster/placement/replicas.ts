/** How many members may have a model in memory. */
export interface ReplicaBounds {
  /** So many always have it, where there are so many; 0: only when it is asked for. */
  min: number
  max: number
}

/** What the members have of a model together, those that are up. */
export interface ReplicaLoad {
  loaded: number
  loading: number
  /** Members that have it, or could: that are up and where it fits. */
  able: number
  /** Slots of those that have it loaded. */
  slots: number
  running: number
  queued: number
}

/** How many there should be, and since when it looks otherwise. */
export interface ReplicaState {
  wanted: number
  longSince?: number | undefined
  idleSince?: number | undefined
}

/** A queue has to be long for so long (milliseconds) before there is one more … */
export const GROW_AFTER = 2000
/** … and fewer slots needed for so long before there is one less. */
export const SHRINK_AFTER = 5 * 60_000
/** One less is enough when what is asked would take at most this share of the slots that are left. */
const SHARE_WHEN_FEWER = 0.5

/**
 * How many members should have a model in memory, from what it is like now; called whenever that has changed, and at `at`
 * where it gives one.
 *
 * - More when for `GROW_AFTER` at least half as many have waited as one member answers at once: enough for all who ask,
 *   though at most twice as many as there are, and none while some are loading.
 * - One less when for `SHRINK_AFTER` half the slots of those that are left would have done. Between the two nothing changes.
 * - Not below `min`, nor above `max` or what members are able to.
 * @returns the new state; `members` is how many able members there should be at least for all who ask, to ask for more
 */
export function decideReplicas(
  before: ReplicaState | undefined,
  load: ReplicaLoad,
  { min, max }: ReplicaBounds,
  now: number
): ReplicaState & { members: number; at?: number | undefined } {
  const { loaded, loading, able, slots, running, queued } = load
  const present = loaded + loading
  const slotsEach = loaded ? slots / loaded : 1
  const asked = running + queued
  const bound = (count: number) => Math.min(Math.max(count, min), max)

  const isLong = loaded > 0 && loading === 0 && queued >= slotsEach / 2
  const isIdle = loaded > 1 && loading === 0 && asked <= (loaded - 1) * slotsEach * SHARE_WHEN_FEWER
  const longSince = isLong ? (before?.longSince ?? now) : undefined
  const idleSince = isIdle ? (before?.idleSince ?? now) : undefined

  let wanted = Math.max(before?.wanted ?? 0, Math.min(present, 1))
  // What went away, or was unloaded where it was no longer used, is not loaded again unless it is asked for.
  if (present < wanted && queued === 0) wanted = present
  let members = Math.max(wanted, min)
  if (isLong && now - longSince! >= GROW_AFTER) {
    members = bound(Math.max(loaded + 1, Math.min(Math.ceil(asked / slotsEach), 2 * loaded)))
    wanted = Math.min(members, able)
    return { wanted: Math.min(bound(wanted), able), members, longSince: undefined, idleSince: undefined }
  }
  if (isIdle && now - idleSince! >= SHRINK_AFTER) {
    wanted = Math.min(wanted, loaded) - 1
    return {
      wanted: Math.min(bound(wanted), able),
      members: Math.max(wanted, min),
      longSince: undefined,
      idleSince: now
    }
  }
  return {
    wanted: Math.min(bound(wanted), able),
    members,
    longSince,
    idleSince,
    at:
      longSince !== undefined ? longSince + GROW_AFTER : idleSince !== undefined ? idleSince + SHRINK_AFTER : undefined
  }
}
