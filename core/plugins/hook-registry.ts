import type { FastifyBaseLogger } from 'fastify'
import type { Delta } from '../contracts/engines.ts'
import type { CaptureRecord, HookedRequest, Hooks, PluginHooks } from '../contracts/hooks.ts'
import type { StateTopic } from '../contracts/state-events.ts'
import { CorralError, errorMessage } from '../errors.ts'
import { untilAborted } from '../system/abort-signals.ts'
import { DeadlineError, hookFailure, hookTimeout, within } from './plugin-error.ts'

type HookName = keyof PluginHooks
type Observer =
  | 'modelLoaded'
  | 'modelUnloaded'
  | 'loadFailed'
  | 'pullFinished'
  | 'pullFailed'
  | 'administered'
  | 'toolCalled'

type Holder = { hooks: PluginHooks }

export class HookRegistry implements Hooks {
  /** Replaced as a whole, so that requests in progress keep the filters that they began with. */
  #hooks: ReadonlyMap<string, Holder> = new Map()
  readonly #begun = new WeakMap<HookedRequest, ReadonlyMap<string, Holder>>()
  readonly #log: FastifyBaseLogger
  /** Failures that were logged: a failing hook may fail for each token, and one line is enough. */
  readonly #logged = new Set<string>()
  readonly #timeout: () => number
  readonly modelLoaded = this.#observer('modelLoaded')
  readonly modelUnloaded = this.#observer('modelUnloaded')
  readonly loadFailed = this.#observer('loadFailed')
  readonly pullFinished = this.#observer('pullFinished')
  readonly pullFailed = this.#observer('pullFailed')
  readonly administered = this.#observer('administered')
  readonly toolCalled = this.#observer('toolCalled')

  /** @param timeout returns the maximum milliseconds of a hook, 0 for unlimited */
  constructor(log: FastifyBaseLogger, timeout: () => number = () => 0) {
    this.#log = log
    this.#timeout = timeout
  }

  /** Adds or replaces a plugin's hooks. @returns a function that removes them, also from requests in progress */
  add(plugin: string, hooks: PluginHooks): () => void {
    const holder = { hooks }
    this.#hooks = new Map(this.#hooks).set(plugin, holder)
    // Its place stays, so that the order is the same if it is switched on again.
    return () => {
      holder.hooks = {}
    }
  }

  #of(request: HookedRequest): ReadonlyMap<string, Holder> {
    const found = this.#begun.get(request)
    if (!found) this.#begun.set(request, this.#hooks)
    return found ?? this.#hooks
  }

  hasRequestFilters(): boolean {
    return this.#has('request')
  }

  hasEventFilters(request: HookedRequest): boolean {
    for (const [plugin, { hooks }] of this.#of(request)) if (this.#wantsEvents(plugin, hooks, request)) return true
    return false
  }

  request(request: HookedRequest): Promise<void> {
    return this.#ask('request', request)
  }

  leased(request: HookedRequest): Promise<void> | undefined {
    return this.#has('leased') ? this.#ask('leased', request) : undefined
  }

  again(request: HookedRequest): Promise<void> {
    return this.#ask('again', request)
  }

  async #ask(hook: 'request' | 'leased' | 'again', request: HookedRequest): Promise<void> {
    for (const [plugin, { hooks }] of this.#of(request)) {
      if (!hooks[hook]) continue
      const pending = this.#filter(plugin, hook, request.signal, () => hooks[hook]?.(request))
      if (pending) await pending
    }
  }

  async event(event: Delta, request: HookedRequest): Promise<Delta | undefined> {
    for (const [plugin, { hooks }] of this.#of(request)) {
      if (!this.#wantsEvents(plugin, hooks, request)) continue
      const kept = await this.#filter(plugin, 'event', request.signal, () => hooks.event?.(event, request))
      if (kept !== false) continue
      const { choice, finish, usage, timing } = event
      if (finish === undefined && usage === undefined) return undefined
      return {
        ...(choice && { choice }),
        ...(finish && { finish }),
        ...(usage && { usage }),
        ...(timing && { timing })
      }
    }
    return event
  }

  async capture(record: CaptureRecord): Promise<CaptureRecord | undefined> {
    for (const [plugin, { hooks }] of this.#hooks) {
      try {
        if ((await hooks.capture?.(record)) === false) return undefined
      } catch (error) {
        this.#logFailure(plugin, 'capture', error)
        return undefined
      }
    }
    return record
  }

  stateChanged(topic: StateTopic): void {
    for (const [plugin, { hooks }] of this.#hooks) {
      try {
        hooks.stateChanged?.(topic)
      } catch (error) {
        this.#logFailure(plugin, 'stateChanged', error)
      }
    }
  }

  #has(hook: HookName): boolean {
    for (const { hooks } of this.#hooks.values()) if (hooks[hook]) return true
    return false
  }

  #wantsEvents(plugin: string, hooks: PluginHooks, request: HookedRequest): boolean {
    if (!hooks.event || !hooks.eventsOf) return hooks.event !== undefined
    try {
      return hooks.eventsOf(request) !== false
    } catch (error) {
      return this.#fail(plugin, 'eventsOf', error)
    }
  }

  /** Waits for a hook until its deadline. @throws DeadlineError */
  #within<T>(pending: Promise<T>): Promise<T> {
    return within(this.#timeout() || Number.POSITIVE_INFINITY, () => pending)
  }

  #fail(plugin: string, hook: HookName, error: unknown): never {
    if (error instanceof CorralError) throw error
    this.#logFailure(plugin, hook, error)
    if (error instanceof DeadlineError) throw hookTimeout(plugin, hook, this.#timeout())
    throw hookFailure(plugin, hook, error)
  }

  /** Runs a filter: synchronously if possible, otherwise until its end, its deadline or the end of its request. */
  #filter<T>(plugin: string, hook: HookName, signal: AbortSignal, run: () => T | Promise<T>): T | Promise<T> {
    signal.throwIfAborted()
    const fail = (error: unknown): never => {
      if (signal.aborted) throw error
      return this.#fail(plugin, hook, error)
    }
    try {
      const result = run()
      return isPromise(result) ? this.#within(untilAborted(result, signal)).catch(fail) : result
    } catch (error) {
      return fail(error)
    }
  }

  #observer<Hook extends Observer>(hook: Hook): Hooks[Hook] {
    const notify = (event: Parameters<Hooks[Hook]>[0]) => {
      for (const [plugin, { hooks }] of this.#hooks) {
        // Deferred, because it may call the very service that is reporting.
        Promise.resolve()
          .then(() => this.#within((async () => hooks[hook]?.(event as never))()))
          .catch(error => this.#logFailure(plugin, hook, error))
      }
    }
    return notify as Hooks[Hook]
  }

  #logFailure(plugin: string, hook: HookName, error: unknown): void {
    const message = `Plugin "${plugin}" failed in its hook "${hook}": ${errorMessage(error)}`
    if (this.#logged.has(message) || this.#logged.size >= 1000) return
    this.#logged.add(message)
    this.#log.error({ err: error, plugin }, message)
  }
}

function isPromise<T>(result: T | Promise<T>): result is Promise<T> {
  return typeof (result as Promise<T> | undefined | null)?.then === 'function'
}
