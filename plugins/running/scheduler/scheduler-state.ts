import type { EngineMode, MemoryUse } from '../../../core/contracts/engines.ts'
import type { UnloadReason } from '../../../core/contracts/hooks.ts'
import type { SchedulerStats } from '../../../core/contracts/scheduler-stats.ts'
import type { CorralError } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { OpenMap } from '../../../core/system/open-tables.ts'
import type { Line, QueuedRequest, RequestQueue } from './request-queue.ts'

/*
 * What the scheduler knows, what happens to it (events) and what it wants done (effects); `decide.ts` leads from one to
 * the other. An "engine" is one model in one mode, named by its key; it is here while it has an engine or requests.
 *
 *   absent → planned → loading → ready → (draining →) stopping → absent, or planned
 *
 * Every `prepare` is answered by exactly one `prepared` or `prepare-failed`, every `load` by one `loaded` or
 * `load-failed`, and every engine that was loaded ends with one `gone`. Answers carry the `run` of what they answer;
 * those to an earlier run are ignored.
 */

/** What is known of a model, as its latest request says. */
export interface ModelFacts {
  /** For people. */
  name: string
  /** The model's own options, for a load without particular requests. */
  defaults: LoadOptions
  /** Never unloaded for want of room. */
  pinned: boolean
  /** Models that share one are never in memory together. */
  groups: readonly string[]
  /** Its engines take nothing of this machine. */
  elsewhere: boolean
  /** Most requests answered at once, if fewer than there are slots. */
  maxConcurrent: number | undefined
}

export interface EngineState extends ModelFacts {
  /** Up to a `#` it names the model, then the mode. */
  key: string
  phase: Phase
  /** Requests that wait; `turns.ts` says whose is next. */
  queue: RequestQueue
  /** Milliseconds without requests after which it is unloaded, where a client has no wish of its own; Infinity is never. */
  keepAlive: number
  /** Those that use it or did lately, by `turn`. */
  clients: Map<string, Client>
  /** How many came since those that have gone were forgotten. */
  newClients: number
  /** Of them those whose reloads may still count. */
  reloaders: Set<string>
  /** The share that a client has had which comes now (`joinClients`): the least of those that were here. */
  share: number
  /** Answers begun so far. */
  grants: number
  /** The `prepare` whose answer is still to come, though its plan may have been dropped meanwhile. */
  preparing: number | undefined
  /** When an `alarm` event is due. */
  alarm: number | undefined
  /** Keys of the engines whose room it waits for, as last reported by a `waiting` effect. */
  waitsFor: readonly string[]
  /** Since when nobody waits for its load any more. */
  unwantedSince: number | undefined
  /** The last loads that failed, all since the last success. */
  failure: { count: number; options: LoadOptions; error: CorralError; retryAt: number } | undefined
}

export type Phase =
  | { name: 'absent' }
  /** No engine yet: what its load takes is being estimated, then it waits for room. */
  | { name: 'planned'; plan: Plan }
  | { name: 'loading'; run: number; plan: PreparedPlan }
  | ({ name: 'ready' } & Loaded)
  /** It begins no more answers: the first request in its queue needs it to be loaded with other options. */
  | ({ name: 'draining'; plan: Plan } & Loaded)
  /** `reserved`: what it holds of each pool until it has gone; `plan`: the load that follows. */
  | { name: 'stopping'; run: number; reserved: MemoryUse; plan: Plan | undefined }

/** One who shares an engine's slots with others. */
export interface Client {
  /** What it has had of them: slots × milliseconds. Answers that run are not counted yet. */
  had: number
  /** What reloads for it took from all, counted the same way; forgotten some minutes after the last one. */
  reloads: number
  reloadedAt: number
  /** When its last request came, began or ended. */
  lastUsed: number
  /** How long it wants the model to stay without requests; undefined leaves what holds. */
  keepAlive: number | undefined
}

/** An engine that answers requests. */
export interface Loaded {
  /** The `load` that made it. */
  run: number
  /** What it was started with. */
  options: LoadOptions
  /** The client whose request these were chosen for. */
  chosenBy: string
  /** Requests that it answers at once. */
  slots: number
  /** What it holds of each pool. */
  reserved: MemoryUse
  /** Requests that are being answered. */
  running: OpenMap<number, Running>
  /** The model's defaults by which the queue knows which requests fit. */
  judged?: LoadOptions
  /** The request that is next: slots are kept free for it until there are as many as it takes; and since when. */
  keptFor: { id: number; since: number } | undefined
  readySince: number
  lastUsed: number
  /** When one that takes what is idle began or ended last, if one did. */
  idleUsed: number | undefined
  /** Milliseconds that its load took. */
  loadTime: number
  /** The configuration says something else than what it was loaded with: it begins no more answers, and goes. */
  outdated?: true
  /** Set while another model waits for its room: it grants no more from this time on, or after so many grants. */
  giveWay: { at: number; grants: number } | undefined
}

/** A request that has slots. */
export interface Running {
  request: QueuedRequest
  slots: number
  /** Since when they count as taken. */
  since: number
}

/** A load to come. */
export interface Plan {
  options: LoadOptions
  /** The client whose request they are chosen for. */
  chosenBy: string
  /** The `prepare` that was sent for it. */
  run: number | undefined
  /** Known once it is prepared; from then on the plan waits for room. */
  estimate: Estimate | undefined
  /** Since when it waits for room: whoever has waited longest is next. Infinity before it does. */
  since: number
  /** The place of the newest request of a client that was found to be content with these options. */
  checked: number
  /** Busy engines whose room it is to have, and how many grants each had made when it was chosen. */
  claims: ReadonlyMap<EngineState, number>
  /** It ran out of memory once and is tried again with no idle engine beside it. */
  alone: boolean
  /** Replaces an engine with other options: the old ones come back if that fails, and only the requester hears of it. */
  reload: Reload | undefined
}

export interface Reload {
  previous: LoadOptions
  /** As `Loaded.chosenBy`, of what ran. */
  previouslyBy: string
  requester: number
  /** The client whose share it counts for: the requester's, or the one that took the defaults away, if these are wanted. */
  paidBy: string
  /** When the engine began to drain for it. */
  since: number
}

export type PreparedPlan = Plan & { estimate: Estimate }

interface Estimate {
  /** What the load takes of each pool. */
  use: MemoryUse
  /** Whether that is known well enough to load beside other loads. */
  certain: boolean
  /** A sentence for those who are refused because it is too much. */
  advice: string
}

/** Whether of those who wait for an engine, if any, none is a client: only lines of batches and their like. */
export function onlyIdleWait({ queue }: EngineState): boolean {
  return queue.clients.length === 0
}

/** Those whose wishes count: clients, and where none waits those that take what is idle. */
export function wishers({ queue }: EngineState): Line {
  return queue.clients.length > 0 ? queue.clients : queue.idle
}

/** An engine in one of these phases. */
export type EngineIn<Name extends Phase['name']> = EngineState & { phase: Extract<Phase, { name: Name }> }

export function isIn<Name extends Phase['name']>(engine: EngineState, ...names: Name[]): engine is EngineIn<Name> {
  return (names as string[]).includes(engine.phase.name)
}

export function planOf({ phase }: EngineState): Plan | undefined {
  return 'plan' in phase ? phase.plan : undefined
}

/** What an engine holds of each pool, from the beginning of its load until it has gone. */
export function reservedBy({ phase }: EngineState): MemoryUse {
  if (phase.name === 'loading') return phase.plan.estimate.use
  return 'reserved' in phase ? phase.reserved : {}
}

/** How many requests of clients it answers; those that take what is idle make way at once. */
export function runningOn({ phase }: EngineState): number {
  let count = 0
  if ('running' in phase) for (const { request } of phase.running.values()) if (!request.idle) count++
  return count
}

/** What the state says for those who watch. */
export function statsOf({ engines, budget, limits }: SchedulerState, now: number): Omit<SchedulerStats, 'requests'> {
  const reserved: MemoryUse = {}
  const stats = [...engines.values()].map(engine => {
    const { key, name, phase, queue, failure } = engine
    const held = reservedBy(engine)
    for (const [pool, bytes] of Object.entries(held)) reserved[pool] = (reserved[pool] ?? 0) + bytes
    const { slots = 0, running = new OpenMap<number, Running>() } = 'running' in phase ? phase : {}
    let used = 0
    for (const one of running.values()) used += one.slots
    return {
      model: name,
      mode: key.slice(key.lastIndexOf('#') + 1) as EngineMode,
      isLoaded: 'running' in phase,
      slots,
      freeSlots: Math.max(0, slots - used),
      running: running.size,
      // What takes only idle slots may wait for as long as it likes.
      waiting: queue.clients.length,
      longestWait: now - (queue.clients.first?.arrivedAt ?? now),
      isBlocked: failure !== undefined && now < failure.retryAt,
      reserved: held
    }
  })
  return { engines: stats, maxLoaded: limits.maxLoaded, memory: { reserved, budget } }
}

/** Times are milliseconds. */
export interface Limits {
  maxLoaded: number
  /** Waiting requests an engine … */
  maxQueue: number
  /** … and of them those of one client. */
  queuePerKey: number
  /** How often in ten minutes a client may have engines of others loaded anew. */
  reloads: number
  keepAlive: number
  /** How long a busy engine goes on beginning answers while another model waits for its room … */
  fairWait: number
  /** … and how many. */
  fairCount: number
  /** How long a request waits for room. */
  roomTimeout: number
  /** How long a load goes on that nobody waits for any more. */
  loadGrace: number
}

export interface SchedulerState {
  engines: Map<string, EngineState>
  limits: Limits
  /** Bytes that all engines together may hold of each pool; a pool that is absent has no limit. */
  budget: MemoryUse
  /** What each client had loaded, by `turn`. */
  loads: Map<string, ClientLoads>
  /** Number of the last `prepare` or `load`. */
  runs: number
  closing: boolean
}

/** What a client had loaded in the last ten minutes. */
export interface ClientLoads {
  /** When the last load for it began. */
  last: number
  /** When it had engines that others use loaded anew with other options, or evicted. */
  disturbances: number[]
}

export type Event =
  | ({
      type: 'request'
      id: number
      key: string
      turn: string
      options: Partial<LoadOptions>
      loadOnly: boolean
      slots: number
      idle: boolean
      /** Milliseconds, Infinity for ever; undefined leaves what holds. */
      keepAlive?: number | undefined
      /** The model's own setting, for an engine that is not loaded yet. */
      initialKeepAlive?: number | undefined
    } & ModelFacts)
  /** One that runs lets others have their turn; it is granted again. */
  | { type: 'yield'; id: number; key: string }
  /** A request that waits is cancelled, or one that runs has ended. */
  | { type: 'leave'; id: number; key: string }
  | { type: 'prepared'; key: string; run: number; need: MemoryUse; certain: boolean; advice: string }
  | { type: 'prepare-failed'; key: string; run: number; error: CorralError }
  /** `use`: what the engine says that it holds; `slots`: requests that it answers at once; `loadTime`: milliseconds that the load took. */
  | { type: 'loaded'; key: string; run: number; use?: MemoryUse | undefined; slots?: number; loadTime: number }
  | { type: 'load-failed'; key: string; run: number; error: CorralError }
  /** The engine has ended, by an `unload` or by itself. */
  | { type: 'gone'; key: string; run: number; error?: CorralError }
  | { type: 'stop'; key: string; running: CorralError; waiting: CorralError; save: boolean }
  /** For the requests of all clients. */
  | { type: 'keep-alive'; key: string; keepAlive: number }
  /** The time of an `alarm` effect has come. */
  | { type: 'alarm'; key: string }
  /** The configuration has changed; `outdated`: and with it what the engine is loaded with. */
  | ({ type: 'settings'; key: string; keepAlive: number | undefined; outdated: boolean } & ModelFacts)
  | { type: 'budget'; budget: MemoryUse }
  | { type: 'close' }

export type Effect =
  /** Finds out what a load takes, and does what can be done before there is room. */
  | { type: 'prepare'; key: string; run: number; options: LoadOptions }
  | { type: 'abort-prepare'; key: string }
  | { type: 'load'; key: string; run: number; options: LoadOptions }
  | { type: 'abort-load'; key: string }
  /** `save`: it has ended its answers, so that what its slots have read can be kept. */
  | { type: 'unload'; key: string; save: boolean; reason: UnloadReason }
  | { type: 'grant'; id: number; key: string }
  | { type: 'refuse'; id: number; error: CorralError }
  | { type: 'revoke'; id: number; error: CorralError }
  /** Whose room this model waits for now; nobody's: it waits no more. */
  | { type: 'waiting'; key: string; holders: string[] }
  /** Sends an `alarm` event at this time, and not at an earlier one of this engine; undefined: at no time. */
  | { type: 'alarm'; key: string; at: number | undefined }

export function createState(limits: Limits): SchedulerState {
  return { engines: new Map(), limits, budget: {}, loads: new Map(), runs: 0, closing: false }
}

/** Options of which more satisfies less. */
const SIZES = ['num_ctx', 'num_parallel'] as const

/** Whether an engine started with `loaded` can serve a request for `wanted`. */
export function satisfies(loaded: LoadOptions, wanted: Partial<LoadOptions>): boolean {
  for (const name of Object.keys(wanted) as (keyof LoadOptions)[]) {
    const value = wanted[name]
    if (value === undefined || value === loaded[name]) continue
    if (!(SIZES as readonly string[]).includes(name) || !(Number(value) <= Number(loaded[name]))) return false
  }
  return true
}

/** The options of a reload: what runs together with what is wanted, the larger sizes of both. */
export function union(loaded: LoadOptions, wanted: Partial<LoadOptions>): LoadOptions {
  const merged = { ...loaded, ...wanted }
  for (const size of SIZES) merged[size] = Math.max(loaded[size], wanted[size] ?? 0)
  return merged
}

/** The options of a first load for requests that wait together: the first one's options, then the union with the others. */
export function firstLoad(defaults: LoadOptions, wanted: Partial<LoadOptions>[]): LoadOptions {
  const [first = {}, ...others] = wanted
  return others.reduce<LoadOptions>((options, ask) => (satisfies(options, ask) ? options : union(options, ask)), {
    ...defaults,
    ...first
  })
}
