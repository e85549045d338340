/** How many members may have a model in memory. */
export interface ReplicaBounds {
  /** So many always have it, where there is room for so many; 0: only when it is asked for. */
  min: number
  /** At least `min`; infinite where there is no limit. */
  max: number
  /** Milliseconds for which fewer have to be enough until one is unloaded. */
  cooldown: number
}

/** What the members that are up have of a model, together. */
export interface ReplicaLoad {
  loaded: number
  /** On its way into memory. */
  loading: number
  /** Slots of those that have it loaded … */
  slots: number
  /** … and those that a new request would have at once: free ones of members where none waits. */
  free: number
  running: number
  queued: number
}

/** Since when (milliseconds) there are fewer than the minimum, too few for those who ask, or too many. */
export interface ReplicaState {
  shortSince?: number | undefined
  longSince?: number | undefined
  idleSince?: number | undefined
  loaded?: number
}

export interface ReplicaDecision {
  state: ReplicaState
  /** How many should have it now: more than have it or load it means to load it, fewer means to unload it where it rests. */
  wanted: number
  /** Why there should be more or fewer, or that there are as many as there should be. */
  why: 'minimum' | 'queue' | 'idle' | 'maximum' | 'enough'
  /** When to decide again if nothing changes before. */
  at: number | undefined
}

/** A queue is long, or a minimum not met, when it has been so for so long (milliseconds). */
const GROW_AFTER = 2000
/** Members are too many when what is asked takes at most this share of the slots of one less. */
const IDLE_SHARE = 0.5
/** Machines are asked for when there has been no room for so long (milliseconds). */
const LACKING_AFTER = 30_000

/**
 * How many members should have a model in memory; called whenever its load has changed, and at `at`.
 *
 * - More, when at least half as many wait as a member answers at once and no slot is free: as many as have slots for all
 *   who ask, though at most twice as many as there are, and none more while one is loading.
 * - `min`, where there are fewer.
 * - One less, when half the slots of the others would do, until one has gone.
 * - Else as many as there are: a model that its member unloads because nobody uses it is not loaded again.
 *
 * What is long or idle has to stay so for a while, so that nothing flaps; `max` holds in any case.
 */
export function decideReplicas(
  before: ReplicaState,
  load: ReplicaLoad,
  { min, max, cooldown }: ReplicaBounds,
  now: number
): ReplicaDecision {
  const { loaded, loading, slots, free, running, queued } = load
  const asked = running + queued
  const each = loaded ? Math.max(1, slots / loaded) : 1
  const present = loaded + loading

  const isLong = loaded > 0 && !loading && !free && queued >= each / 2
  const isIdle = loaded > Math.max(1, min) && !loading && asked <= IDLE_SHARE * each * (loaded - 1)
  const longSince = isLong ? (before.longSince ?? now) : undefined
  // The next one has its own time.
  const idleSince = isIdle ? ((before.loaded === loaded ? before.idleSince : undefined) ?? now) : undefined
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
    // A member that is lost for a moment need not be replaced.
    if (now < shortSince + GROW_AFTER) return decide(present, 'enough', shortSince + GROW_AFTER)
    return decide(min, 'minimum')
  }
  if (longSince !== undefined) {
    if (now < longSince + GROW_AFTER) return decide(present, 'enough', longSince + GROW_AFTER)
    // It stays long until there are more.
    return decide(Math.max(loaded + 1, Math.min(Math.ceil(asked / each), 2 * loaded)), 'queue')
  }
  if (idleSince !== undefined) {
    if (now < idleSince + cooldown) return decide(present, 'enough', idleSince + cooldown)
    return decide(loaded - 1, 'idle')
  }
  return decide(present, 'enough')
}

/** The members of a source that can add machines, all models together. */
export interface MachineLoad {
  /** Those that it tells of … */
  known: number
  /** … those of them that are up … */
  present: number
  /** … and those of them with a model in memory, or on its way there. */
  occupied: number
  /** How many more it would take for all models to have as many members as they should. */
  lacking: number
}

export interface MachineState {
  wanted: number
  /** Since when (milliseconds) there has been no room. */
  lackingSince?: number | undefined
  /** Since when so many have not been needed, and the most that were since. */
  low?: { since: number; peak: number } | undefined
}

/**
 * How many members a source should have at least; called whenever the load has changed, and at `at`.
 *
 * - More, when room has been lacking for a while.
 * - Fewer, down to the most that had models in memory meanwhile, so that neither a pause of the clients nor a
 *   member that is started again gives a machine back.
 *
 * @param before undefined at first: what it tells of counts as wanted then
 * @param cooldown milliseconds for which fewer have to be enough
 */
export function decideMachines(
  before: MachineState | undefined,
  { known, present, occupied, lacking }: MachineLoad,
  cooldown: number,
  now: number
): { state: MachineState; at: number | undefined } {
  const lackingSince = lacking > 0 ? (before?.lackingSince ?? now) : undefined
  const isLacking = lackingSince !== undefined && now >= lackingSince + LACKING_AFTER
  const need = isLacking ? present + lacking : occupied
  const wanted = before?.wanted ?? known
  const low = before?.low ?? { since: now, peak: need }
  const peak = Math.max(low.peak, need)
  const isOver = now >= low.since + cooldown
  const state: MachineState = { wanted: need >= wanted ? need : isOver ? peak : wanted, lackingSince }
  if (state.wanted > need) state.low = isOver ? { since: now, peak: need } : { since: low.since, peak }
  const times = [
    ...(lackingSince === undefined || isLacking ? [] : [lackingSince + LACKING_AFTER]),
    ...(state.low ? [state.low.since + cooldown] : [])
  ]
  return { state, at: times.length > 0 ? Math.min(...times) : undefined }
}
