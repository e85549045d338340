import type { MemoryUse } from '../../core/contracts/builds.ts'
import type { CorralError } from '../../core/errors.ts'
import type { LoadOptions } from '../../core/models/options.ts'

/**
 * The words of the scheduler's state machine (`machine.ts`). An "engine" is one model in one mode, named by its key.
 *
 *   absent → loading → ready → (draining →) stopping → absent
 *
 * Before a load there is a plan: its options are prepared (what memory will it take?), then it waits for room. A drain
 * for larger options has its plan beside the engine that still runs. Every `prepare` is answered by exactly one
 * `prepared` or `prepare-failed`, every `load` by one `loaded` or `load-failed`, every engine that was loaded ends with
 * one `gone`; answers carry the `run` that they belong to, and others are not heeded.
 */
export type Phase = 'absent' | 'loading' | 'ready' | 'draining' | 'stopping'

export interface Waiter {
  id: number
  asked: Partial<LoadOptions>
  /** Takes no slot: it is content once the engine is ready. */
  loadOnly: boolean
  /** How many slots it takes at once; all of the engine's where it has fewer. */
  slots: number
  /** When it came. */
  at: number
}

/** A load to be. */
export interface Plan {
  options: LoadOptions
  /** The `prepare` that was asked for it; undefined before. */
  run: number | undefined
  /** Known once it is prepared; from then on the plan waits for room. */
  need: MemoryUse | undefined
  /** Whether the need is known well enough to load beside other loads. */
  certain: boolean
  /** A sentence for who is refused because it is too much. */
  advice: string
  /** Since when it waits for room: whoever has waited longest is next. Infinity before it does. */
  since: number
  /** Busy engines whose room it is to have, and how many answers each had begun by then. */
  claims: Map<EngineState, number>
  /** It ran out of memory once and is tried again without idle engines beside it. */
  alone: boolean
}

export interface EngineState {
  /** Up to a `#` it names the model, then the mode. */
  key: string
  /** For people. */
  name: string
  phase: Phase
  /** What the engine was or is being started with. */
  options: LoadOptions | undefined
  /** The model's own options, for a load that nobody asks anything particular of. */
  defaults: LoadOptions | undefined
  plan: Plan | undefined
  /** The `prepare` whose answer is awaited. */
  preparing: number | undefined
  /** The `load` that made the present engine. */
  run: number
  /** While reloading: what ran before, restored when the new options fail, and whose request asked for the new ones. */
  reload: { previous: LoadOptions; asker: number } | undefined
  /** What it holds of each pool, from the beginning of its load until it has gone. */
  reserved: MemoryUse
  /** Whether that was known well enough to load others meanwhile. */
  certain: boolean
  /** Requests that are answered, and how many slots each takes. */
  running: Map<number, number>
  queue: Waiter[]
  /** Milliseconds without requests after which it is unloaded; Infinity is never. */
  keepAlive: number
  pinned: boolean
  /** Models that share one are never in memory together. */
  groups: readonly string[]
  /** Most requests answered at once, if fewer than there are slots. */
  maxConcurrent: number | undefined
  lastUsed: number
  /** When it became ready. */
  turn: number
  /** Milliseconds that its load took. */
  cost: number
  /** Answers begun so far. */
  grants: number
  /** When it grants no more since another model waits for its room: at this time, or after so many answers. */
  giveWay: { at: number; grants: number } | undefined
  /** Keys of the engines whose room it waits for, as it was last told. */
  waitsFor: string[]
  alarm: number | undefined
  failure: { count: number; options: LoadOptions; error: CorralError; retryAt: number } | undefined
}

/** Times are milliseconds. */
export interface Limits {
  maxLoaded: number
  /** Waiting requests an engine. */
  maxQueue: number
  keepAlive: number
  /** How long a busy engine goes on beginning answers while another model waits for its room … */
  fairWait: number
  /** … and how many. */
  fairCount: number
  /** How long a request waits for room. */
  roomTimeout: number
}

export interface SchedulerState {
  engines: Map<string, EngineState>
  limits: Limits
  /** Bytes that all engines together may hold of each pool; a pool that is absent has no limit. */
  budget: MemoryUse
  /** Number of the last `prepare` or `load`. */
  runs: number
  closing: boolean
}

export type Event =
  | {
      type: 'request'
      id: number
      key: string
      name: string
      asked: Partial<LoadOptions>
      loadOnly: boolean
      slots: number
      defaults: LoadOptions
      /** Milliseconds, Infinity for ever; undefined leaves what holds. */
      keepAlive?: number | undefined
      /** The model's own setting, for an engine that is not loaded yet. */
      initialKeepAlive?: number | undefined
      pinned: boolean
      groups: readonly string[]
      maxConcurrent: number | undefined
    }
  /** A waiting request goes away, or a running one ends. */
  | { type: 'leave'; id: number; key: string }
  | { type: 'prepared'; key: string; run: number; need: MemoryUse; certain: boolean; advice: string }
  | { type: 'prepare-failed'; key: string; run: number; error: CorralError }
  /** `use`: what the engine says that it holds; `cost`: milliseconds that the load took. */
  | { type: 'loaded'; key: string; run: number; use?: MemoryUse | undefined; cost: number }
  | { type: 'load-failed'; key: string; run: number; error: CorralError }
  /** The engine has ended, asked or unasked. */
  | { type: 'gone'; key: string; run: number; error?: CorralError }
  | { type: 'stop'; key: string; running: CorralError; waiting: CorralError; save: boolean }
  | { type: 'keep-alive'; key: string; keepAlive: number }
  /** The alarm of this engine went off. */
  | { type: 'idle'; key: string }
  | { type: 'budget'; budget: MemoryUse }
  | { type: 'close' }

export type Effect =
  /** Finds out what a load takes, and does what can be done before there is room. */
  | { type: 'prepare'; key: string; run: number; options: LoadOptions }
  | { type: 'abort-prepare'; key: string }
  | { type: 'load'; key: string; run: number; options: LoadOptions }
  | { type: 'abort-load'; key: string }
  /** `save`: it has ended its answers, so that what its slots have read can be kept. */
  | { type: 'unload'; key: string; save: boolean }
  | { type: 'grant'; id: number; key: string }
  | { type: 'refuse'; id: number; error: CorralError }
  | { type: 'revoke'; id: number; error: CorralError }
  /** Whose room this model waits for now; nobody's: it waits no more. */
  | { type: 'waiting'; key: string; holders: string[] }
  /** Sends `idle` at this time, replacing an earlier alarm of this engine; undefined disarms it. */
  | { type: 'alarm'; key: string; at: number | undefined }

export function createState(limits: Limits): SchedulerState {
  return { engines: new Map(), limits, budget: {}, runs: 0, closing: false }
}

export function createEngine(key: string, keepAlive: number): EngineState {
  return {
    key,
    name: key,
    phase: 'absent',
    options: undefined,
    defaults: undefined,
    plan: undefined,
    preparing: undefined,
    run: 0,
    reload: undefined,
    reserved: {},
    certain: false,
    running: new Map(),
    queue: [],
    keepAlive,
    pinned: false,
    groups: [],
    maxConcurrent: undefined,
    lastUsed: 0,
    turn: 0,
    cost: 0,
    grants: 0,
    giveWay: undefined,
    waitsFor: [],
    alarm: undefined,
    failure: undefined
  }
}
