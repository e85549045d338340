import type { CorralError } from '../../core/errors.ts'
import type { LoadOptions } from '../../core/options.ts'

/**
 * The words of the scheduler's state machine (`machine.ts`). An "engine" is one model in one mode, named by its key.
 *
 *   absent → loading → ready → (draining →) stopping → absent
 *
 * A drain ends in `stopping` with `next` set, which loads again at once. Every load and unload is answered by exactly
 * one event: `loaded` or `load-failed`, and `gone`.
 */
export type Phase = 'absent' | 'loading' | 'ready' | 'draining' | 'stopping'

interface Waiter {
  id: number
  asked: Partial<LoadOptions>
  /** Takes no slot: it is content once the engine is ready. */
  loadOnly: boolean
}

export interface EngineState {
  key: string
  phase: Phase
  /** What the engine was or is being started with. */
  options: LoadOptions | undefined
  /** The load to start when the present engine has gone. */
  next: LoadOptions | undefined
  /** While reloading: what ran before, restored when the new options fail, and whose request asked for the new ones. */
  reload: { previous: LoadOptions; asker: number } | undefined
  running: Set<number>
  queue: Waiter[]
  /** Milliseconds without requests after which it is unloaded; Infinity is never. */
  keepAlive: number
  pinned: boolean
  lastUsed: number
  failure: { count: number; options: LoadOptions; error: CorralError; retryAt: number } | undefined
}

export interface Limits {
  maxLoaded: number
  /** Waiting requests an engine. */
  maxQueue: number
  /** Milliseconds. */
  keepAlive: number
}

export interface SchedulerState {
  engines: Map<string, EngineState>
  limits: Limits
  closing: boolean
}

export type Event =
  | {
      type: 'request'
      id: number
      key: string
      asked: Partial<LoadOptions>
      loadOnly: boolean
      defaults: LoadOptions
      /** Milliseconds, Infinity for ever; undefined leaves what holds. */
      keepAlive?: number
      /** The model's own setting, for an engine that is not loaded yet. */
      initialKeepAlive?: number
      pinned: boolean
    }
  /** A waiting request goes away, or a running one ends. */
  | { type: 'leave'; id: number; key: string }
  | { type: 'loaded'; key: string }
  | { type: 'load-failed'; key: string; error: CorralError }
  /** The engine has ended, asked or unasked. */
  | { type: 'gone'; key: string; error?: CorralError }
  | { type: 'stop'; key: string; running: CorralError; waiting: CorralError }
  | { type: 'keep-alive'; key: string; keepAlive: number }
  | { type: 'idle'; key: string }
  | { type: 'close' }

export type Effect =
  | { type: 'load'; key: string; options: LoadOptions }
  | { type: 'abort-load'; key: string }
  | { type: 'unload'; key: string }
  | { type: 'grant'; id: number; key: string }
  | { type: 'refuse'; id: number; error: CorralError }
  | { type: 'revoke'; id: number; error: CorralError }
  /** Sends `idle` at this time, replacing an earlier alarm of this engine; undefined disarms it. */
  | { type: 'alarm'; key: string; at: number | undefined }

export function createState(limits: Limits): SchedulerState {
  return { engines: new Map(), limits, closing: false }
}
