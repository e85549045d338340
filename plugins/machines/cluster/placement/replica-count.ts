export interface ReplicaBounds {
  /** Minimum, if there is room. 0 loads it only on request. */
  min: number
  /** At least `min`. Infinite means no limit. */
  max: number
  /** Milliseconds for which fewer must be enough before one is unloaded. */
  cooldown: number
  /** Milliseconds without requests until the last one is unloaded, if there is no minimum. By default its node decides. */
  idle?: number | undefined
  /** Minimum number of nodes with its files. */
  copies?: number
}

export interface ReplicaLoad {
  loaded: number
  loading: number
  /** Slots of the nodes that have it loaded … */
  slots: number
  /** … and the slots that a new request would get immediately: free slots of nodes without a queue. */
  free: number
  running: number
  queued: number
  /** When it was last used anywhere, if known. */
  usedAt?: number
}

/** Since when (milliseconds) there are fewer than the minimum, too few for the demand, or too many. */
export interface ReplicaState {
  shortSince?: number | undefined
  longSince?: number | undefined
  idleSince?: number | undefined
  loaded?: number
}

export interface ReplicaDecision {
  state: ReplicaState
  /** The number of nodes that should have it: more are loaded, or idle ones are unloaded. */
  wanted: number
  /** Why there should be more or fewer, or why this number is right. */
  why: 'minimum' | 'queue' | 'idle' | 'unused' | 'maximum' | 'enough'
  /** The time of the next decision if nothing changes before. */
  at: number | undefined
}

/** Milliseconds for which a queue must be long, or a minimum missed, before a replica is added. */
const GROW_AFTER_MS = 2000
/** There are too many nodes if the demand takes at most this share of the slots of one node fewer. */
const IDLE_SHARE = 0.5
/** Machines are asked for after this many milliseconds without room. */
const LACKING_AFTER_MS = 30_000

/**
 * Decides how many nodes should have a model in memory. Called whenever its load has changed, and at `at`.
 *
 * - More, when no slot is free and the queue is at least half as long as a node has slots: enough for the demand, but
 *   at most twice as many as now, and none while one is loading.
 * - `min`, if there are fewer.
 * - One less, when half the slots of the others would be enough, until one is gone. The last one goes after `idle`.
 * - Otherwise the current number: a model that its node unloads because it is unused is not loaded again.
 *
 * Demand must stay high or low for a while, to prevent flapping. `max` always applies.
 */
export function decideReplicas(
  before: ReplicaState,
  load: ReplicaLoad,
  { min, max, cooldown, idle }: ReplicaBounds,
  now: number
): ReplicaDecision {
  const { loaded, loading, slots, free, running, queued, usedAt = 0 } = load
  const asked = running + queued
  const each = loaded ? Math.max(1, slots / loaded) : 1
  const present = loaded + loading

  const isLong = loaded > 0 && !loading && !free && queued >= each / 2
  const isLast = loaded === 1
  const least = idle === undefined ? Math.max(1, min) : min
  const isIdle = loaded > least && !loading && asked <= IDLE_SHARE * each * (loaded - 1)
  const longSince = isLong ? (before.longSince ?? now) : undefined
  // The next one has its own cooldown.
  const begun = (before.loaded === loaded ? before.idleSince : undefined) ?? now
  const idleSince = isIdle ? Math.max(begun, isLast ? usedAt : 0) : undefined
  const shortSince = present < min ? (before.shortSince ?? now) : undefined
  const decide = (count: number, why: ReplicaDecision['why'], at?: number): ReplicaDecision => {
    const wanted = Math.min(count, max)
    return {
      state: { shortSince, longSince, idleSince, loaded },
      wanted,
      why: wanted < count ? 'maximum' : why,
      at
    }
  }

  if (shortSince !== undefined) {
    // A node that is lost for a moment need not be replaced.
    if (now < shortSince + GROW_AFTER_MS) return decide(present, 'enough', shortSince + GROW_AFTER_MS)
    return decide(min, 'minimum')
  }
  if (longSince !== undefined) {
    if (now < longSince + GROW_AFTER_MS) return decide(present, 'enough', longSince + GROW_AFTER_MS)
    // The queue stays long until there are more.
    return decide(Math.max(loaded + 1, Math.min(Math.ceil(asked / each), 2 * loaded)), 'queue')
  }
  if (idleSince !== undefined) {
    const until = idleSince + (isLast ? idle! : cooldown)
    if (now < until) return decide(present, 'enough', until)
    return decide(loaded - 1, isLast ? 'unused' : 'idle')
  }
  return decide(present, 'enough')
}

/** The nodes of a source that can add machines, over all models. */
export interface MachineLoad {
  /** Nodes that it reports … */
  known: number
  /** … the nodes among them that are up … */
  present: number
  /** … and the nodes among those with a model in memory or loading. */
  occupied: number
  lacking: number
}

export interface MachineState {
  wanted: number
  /** Start of the current lack of room, in milliseconds. */
  lackingSince?: number | undefined
  /** Since when fewer nodes have been needed, and the maximum needed since then. */
  low?: { since: number; peak: number } | undefined
}

/**
 * Decides the minimum number of a source's nodes. Called whenever the load has changed, and at `at`.
 *
 * - More, when room has been lacking for a while.
 * - Fewer, down to the maximum number that had models in memory during the cooldown. So a pause of the clients or the
 *   restart of a node does not release a machine.
 *
 * @param before undefined at first: the reported nodes then count as wanted
 * @param cooldown milliseconds for which fewer nodes must be enough
 */
export function decideMachines(
  before: MachineState | undefined,
  { known, present, occupied, lacking }: MachineLoad,
  cooldown: number,
  now: number
): { state: MachineState; at: number | undefined } {
  const lackingSince = lacking > 0 ? (before?.lackingSince ?? now) : undefined
  const isLacking = lackingSince !== undefined && now >= lackingSince + LACKING_AFTER_MS
  const need = isLacking ? present + lacking : occupied
  const wanted = before?.wanted ?? known
  const low = before?.low ?? { since: now, peak: need }
  const peak = Math.max(low.peak, need)
  const isOver = now >= low.since + cooldown
  const state: MachineState = { wanted: need >= wanted ? need : isOver ? peak : wanted, lackingSince }
  if (state.wanted > need) state.low = isOver ? { since: now, peak: need } : { since: low.since, peak }
  const times = [
    ...(lackingSince === undefined || isLacking ? [] : [lackingSince + LACKING_AFTER_MS]),
    ...(state.low ? [state.low.since + cooldown] : [])
  ]
  return { state, at: times.length > 0 ? Math.min(...times) : undefined }
}
