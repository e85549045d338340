import type { SchedulerStats } from '../../../core/contracts/built-in-services.ts'
import type { EngineMode, MemoryUse } from '../../../core/contracts/engines.ts'
import type { UnloadReason } from '../../../core/contracts/hooks.ts'
import type { CorralError } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { OpenMap, type OpenSet } from '../../../core/system/open-tables.ts'
import type { Line, QueuedRequest, RequestQueue } from './request-queue.ts'

/*
 * The scheduler's state, the events that reach it and the effects that it asks for. `decide.ts` leads from an event to
 * effects. An "engine" is one model in one mode, named by its key. It exists while it has a process or requests.
 *
 *   absent → planned → loading → ready → (draining →) stopping → absent, or planned
 *
 * Every `prepare` is answered by exactly one `prepared` or `prepare-failed`, every `load` by one `loaded` or
 * `load-failed`, and every loaded engine ends with one `gone`. These events carry the `run` that they answer. Events of
 * an earlier run are ignored.
 */

/** Facts about a model, as of its latest request. */
export interface ModelFacts {
  name: string
  defaults: LoadOptions
  pinned: boolean
  /** Models that share a group are never in memory together. */
  groups: readonly string[]
  /** Its engines use no memory of this machine. */
  elsewhere: boolean
  /** Maximum number of concurrent answers, if lower than the number of slots. */
  maxConcurrent: number | undefined
}

export interface EngineState extends ModelFacts {
  /** The model, `#` and the mode. */
  key: string
  phase: Phase
  /** Waiting requests. `fair-share.ts` decides which is next. */
  queue: RequestQueue
  /** Milliseconds without requests until it is unloaded, unless a client asks for another time. May be infinite. */
  keepAlive: number
  /** The model's own setting, or the default of all models. */
  configuredKeepAlive: number
  /** Clients that use it or did lately, by id. */
  clients: Map<string, Client>
  /** Clients added since old ones were last forgotten. */
  newClients: number
  /** Clients whose reloads may still be charged. */
  reloaders: Set<string>
  /** The use that a new client starts with (`joinClients`): the least of the clients present. */
  share: number
  grants: number
  /** Answers that need no slot now and will continue (`Lease.rest`). */
  resting: OpenSet<number>
  /** The run of the `prepare` in progress, even if its plan has been dropped. */
  preparing: number | undefined
  alarm: number | undefined
  /** Keys of the engines whose room it needs, as last reported by a `waiting` effect. */
  waitsFor: readonly string[]
  /** Time since which no request has waited for its load. */
  unwantedSince: number | undefined
  /** Failed loads since the last success. */
  failure: { count: number; options: LoadOptions; error: CorralError; retryAt: number } | undefined
}

export type Phase =
  | { name: 'absent' }
  /** No engine yet: the load is being estimated, then waits for room. */
  | { name: 'planned'; plan: Plan }
  | { name: 'loading'; run: number; plan: PreparedPlan }
  | ({ name: 'ready' } & Loaded)
  /** Starts no more answers, because the next request needs other options. */
  | ({ name: 'draining'; plan: Plan } & Loaded)
  /** `reserved`: memory that it uses until it has ended. `plan`: the load that follows. */
  | { name: 'stopping'; run: number; reserved: MemoryUse; plan: Plan | undefined }

export interface Client {
  /** Its use of the engine in slots × milliseconds, without running answers. */
  used: number
  /** Engine time that its reloads took from everyone, in the same unit. Forgotten ten minutes after the last reload. */
  reloads: number
  reloadedAt: number
  /** When its last request arrived, started or ended. */
  lastUsed: number
  /** How long it wants the model to stay without requests; undefined means the engine's `keepAlive`. */
  keepAlive: number | undefined
}

export interface Loaded {
  run: number
  options: LoadOptions
  /** The client whose request determined the options. */
  chosenBy: string
  slots: number
  reserved: MemoryUse
  running: OpenMap<number, Running>
  /** The model defaults that the queue last judged requests with. */
  judged?: LoadOptions
  /** The next request, for which slots are kept free until there are enough, and since when. */
  keptFor: { id: number; since: number } | undefined
  readySince: number
  lastUsed: number
  /** When a background request last started or ended. */
  backgroundUsed: number | undefined
  loadTime: number
  /** Its configuration has changed: it starts no more answers and is unloaded. */
  outdated?: true
  /** Set while another model waits for its room: it grants no more after this time or this number of grants. */
  giveWay: { at: number; grants: number } | undefined
}

export interface Running {
  request: QueuedRequest
  slots: number
  /** Since when the slots are charged to the client. */
  since: number
}

export interface Plan {
  options: LoadOptions
  /** The client whose request determined the options. */
  chosenBy: string
  run: number | undefined
  /** Set when it is prepared. From then on the plan waits for room. */
  estimate: Estimate | undefined
  /** Start of its wait for room. The longest wait comes first. Infinity until it is prepared. */
  since: number
  /** The place of the newest client request that these options were found to satisfy. */
  checked: number
  /** Busy engines whose room it will get, with their grants when they were chosen. */
  claims: ReadonlyMap<EngineState, number>
  /** It ran out of memory and gets another attempt without idle engines beside it. */
  alone: boolean
  /** Set if it replaces an engine with other options. If it fails, they return and only the requester is refused. */
  reload: Reload | undefined
}

export interface Reload {
  previous: LoadOptions
  /** `Loaded.chosenBy` of the previous engine. */
  previouslyBy: string
  requester: number
  /** The client that pays: the requester's, or the one that changed the defaults if the request restores them. */
  paidBy: string
  /** When the engine began to drain for it. */
  since: number
}

export type PreparedPlan = Plan & { estimate: Estimate }

interface Estimate {
  use: MemoryUse
  /** Whether the estimate is reliable enough to load beside other loads. */
  certain: boolean
  /** A sentence for clients that are refused because it is too much. */
  advice: string
}

/** Whether no client waits for an engine: its queue is empty or has only background requests. */
export function onlyBackgroundWaits({ queue }: EngineState): boolean {
  return queue.clients.length === 0
}

/** Returns the requests that decide the load options: those of clients, or background ones if no client waits. */
export function decidingRequests({ queue }: EngineState): Line {
  return queue.clients.length > 0 ? queue.clients : queue.background
}

export type EngineInPhase<Name extends Phase['name']> = EngineState & { phase: Extract<Phase, { name: Name }> }

export function isIn<Name extends Phase['name']>(engine: EngineState, ...names: Name[]): engine is EngineInPhase<Name> {
  return (names as string[]).includes(engine.phase.name)
}

export function getPlan({ phase }: EngineState): Plan | undefined {
  return 'plan' in phase ? phase.plan : undefined
}

/** Memory that an engine uses of each pool, from the start of its load until it has ended. */
export function reservedBy({ phase }: EngineState): MemoryUse {
  if (phase.name === 'loading') return phase.plan.estimate.use
  return 'reserved' in phase ? phase.reserved : {}
}

/** Number of clients' active requests. Background requests can be displaced immediately, so they do not count. */
export function runningOn({ phase }: EngineState): number {
  let count = 0
  if ('running' in phase) for (const { request } of phase.running.values()) if (!request.background) count++
  return count
}

/** Whether a client's request can start at once: enough slots are free, and no other client waits for them. */
export function hasFreeSlots(engine: EngineState | undefined, slots: number): boolean {
  if (!engine || !isIn(engine, 'ready') || !onlyBackgroundWaits(engine)) return false
  const { phase, maxConcurrent = Number.POSITIVE_INFINITY } = engine
  let free = phase.slots
  for (const taken of phase.running.values()) if (!taken.request.background) free -= taken.slots
  return free >= Math.min(slots, phase.slots) && runningOn(engine) < maxConcurrent
}

export function getStats({ engines, budget, limits }: SchedulerState, now: number): Omit<SchedulerStats, 'requests'> {
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
      // Background requests may wait for any time.
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
  /** Waiting requests per engine … */
  maxQueue: number
  /** … and per client. */
  queuePerKey: number
  /** Reloads of engines that others use, per client in ten minutes. */
  reloads: number
  keepAlive: number
  /** How long a busy engine may start new answers while another model waits for its room … */
  fairWait: number
  /** … and how many. */
  fairCount: number
  roomTimeout: number
  /** How long a load continues without a waiting request. */
  loadGrace: number
}

export interface SchedulerState {
  engines: Map<string, EngineState>
  limits: Limits
  /** Bytes that all engines together may use of each pool. A missing pool has no limit. */
  budget: MemoryUse
  /** Recent loads by client id. */
  loads: Map<string, ClientLoads>
  /** Number of the last `prepare` or `load`. */
  runs: number
  closing: boolean
}

export interface ClientLoads {
  last: number
  /** When it made engines that others use reload or be evicted. */
  forcedReloads: number[]
}

export type Event =
  | ({
      type: 'request'
      id: number
      key: string
      clientId: string
      options: Partial<LoadOptions>
      fewerSlots?: boolean | undefined
      loadOnly: boolean
      slots: number
      background: boolean
      /** As `LeaseRequest.continues`. */
      continues?: boolean | undefined
      /** Milliseconds; Infinity means forever, undefined no change. */
      keepAlive?: number | undefined
      configuredKeepAlive?: number | undefined
    } & ModelFacts)
  /** A running request gives way to others. It is granted again later. */
  | { type: 'yield'; id: number; key: string }
  /** A waiting request was cancelled, or a running one has ended. `rests`: its answer will continue (`Lease.rest`). */
  | { type: 'leave'; id: number; key: string; rests?: boolean }
  | { type: 'prepared'; key: string; run: number; need: MemoryUse; certain: boolean; advice: string }
  | { type: 'prepare-failed'; key: string; run: number; error: CorralError }
  /** `use`: memory that the engine reports; `slots`: concurrent requests; `loadTime`: milliseconds. */
  | { type: 'loaded'; key: string; run: number; use?: MemoryUse | undefined; slots?: number; loadTime: number }
  | { type: 'load-failed'; key: string; run: number; error: CorralError }
  /** The engine has ended, by an `unload` or by itself. */
  | { type: 'gone'; key: string; run: number; error?: CorralError }
  | { type: 'stop'; key: string; running: CorralError; waiting: CorralError; save: boolean }
  /** Sets the time for all clients. */
  | { type: 'keep-alive'; key: string; keepAlive: number }
  /** The time of an `alarm` effect has come. */
  | { type: 'alarm'; key: string }
  /** The configuration has changed. `outdated`: the engine must be reloaded. */
  | ({ type: 'settings'; key: string; configuredKeepAlive?: number | undefined; outdated: boolean } & ModelFacts)
  | { type: 'budget'; budget: MemoryUse }
  | { type: 'close' }

export type Effect =
  /** Estimates a load, and prepares everything that does not need room (such as conversion). */
  | { type: 'prepare'; key: string; run: number; options: LoadOptions }
  | { type: 'abort-prepare'; key: string }
  | { type: 'load'; key: string; run: number; options: LoadOptions }
  | { type: 'abort-load'; key: string }
  /** `save`: it has no running answers, so its prompt caches can be saved. */
  | { type: 'unload'; key: string; save: boolean; reason: UnloadReason }
  | { type: 'grant'; id: number; key: string }
  | { type: 'refuse'; id: number; error: CorralError }
  | { type: 'revoke'; id: number; error: CorralError }
  /** Reports whose room this model waits for. Empty if it no longer waits. */
  | { type: 'waiting'; key: string; holders: string[] }
  /** Replaces this engine's alarm: send an `alarm` event at this time; undefined means never. */
  | { type: 'alarm'; key: string; at: number | undefined }

export function createState(limits: Limits): SchedulerState {
  return { engines: new Map(), limits, budget: {}, loads: new Map(), runs: 0, closing: false }
}

/** Options for which a larger value satisfies a smaller one. */
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

/** Returns the options of a reload: the running options, overridden by `wanted`, with the larger of both sizes. */
export function union(loaded: LoadOptions, wanted: Partial<LoadOptions>): LoadOptions {
  const merged = { ...loaded, ...wanted }
  for (const size of SIZES) merged[size] = Math.max(loaded[size], wanted[size] ?? 0)
  return merged
}

/** Returns the options of a first load: the defaults with the first request's, then the union with the others. */
export function firstLoad(defaults: LoadOptions, wanted: Partial<LoadOptions>[]): LoadOptions {
  const [first = {}, ...others] = wanted
  return others.reduce<LoadOptions>((options, ask) => (satisfies(options, ask) ? options : union(options, ask)), {
    ...defaults,
    ...first
  })
}
