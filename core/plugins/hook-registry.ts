import type { FastifyBaseLogger } from 'fastify'
import type { Delta } from '../contracts/engines.ts'
import type { CaptureRecord, HookedRequest, Hooks, PluginHooks } from '../contracts/hooks.ts'
import type { StateTopic } from '../contracts/state-events.ts'
import { CorralError, errorMessage } from '../errors.ts'
import { untilAborted } from '../system/abort-signals.ts'
import { DeadlineError, hookTimeout, within } from './plugin-error.ts'

type HookName = keyof PluginHooks
type Observer = 'modelLoaded' | 'modelUnloaded' | 'loadFailed' | 'pullFinished' | 'pullFailed' | 'administered'

/** The hooks of all active plugins. */
export class HookRegistry implements Hooks {
  readonly #hooks = new Map<string, PluginHooks>()
  readonly #log: FastifyBaseLogger
  /** Failures that were logged: a failing hook may fail for each token, and one line is enough. */
  readonly #logged = new Set<string>()

  readonly #timeout: () => number

  /** @param timeout returns the maximum milliseconds of a hook, 0 for unlimited */
  constructor(log: FastifyBaseLogger, timeout: () => number = () => 0) {
    this.#log = log
    this.#timeout = timeout
  }

  add(plugin: string, hooks: PluginHooks): void {
    this.#hooks.set(plugin, hooks)
  }

  remove(plugin: string): void {
    this.#hooks.delete(plugin)
  }

  hasRequestFilters(): boolean {
    return this.#has('request')
  }

  hasEventFilters(request: HookedRequest): boolean {
    for (const [plugin, hooks] of this.#hooks) if (this.#wantsEvents(plugin, hooks, request)) return true
    return false
  }

  async request(request: HookedRequest): Promise<void> {
    for (const [plugin, hooks] of this.#hooks) {
      if (!hooks.request) continue
      const pending = this.#filter(plugin, 'request', request.signal, () => hooks.request?.(request))
      if (pending) await pending
    }
  }

  leased(request: HookedRequest): Promise<void> | undefined {
    return this.#has('leased') ? this.#leased(request) : undefined
  }

  async #leased(request: HookedRequest): Promise<void> {
    for (const [plugin, hooks] of this.#hooks) {
      if (!hooks.leased) continue
      const pending = this.#filter(plugin, 'leased', request.signal, () => hooks.leased?.(request))
      if (pending) await pending
    }
  }

  async event(event: Delta, request: HookedRequest): Promise<Delta | undefined> {
    for (const [plugin, hooks] of this.#hooks) {
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
    for (const [plugin, hooks] of this.#hooks) {
      try {
        if ((await hooks.capture?.(record)) === false) return undefined
      } catch (error) {
        this.#logFailure(plugin, 'capture', error)
        return undefined
      }
    }
    return record
  }

  modelLoaded(event: Parameters<Hooks['modelLoaded']>[0]): void {
    this.#notify('modelLoaded', hooks => hooks.modelLoaded?.(event))
  }

  modelUnloaded(event: Parameters<Hooks['modelUnloaded']>[0]): void {
    this.#notify('modelUnloaded', hooks => hooks.modelUnloaded?.(event))
  }

  loadFailed(event: Parameters<Hooks['loadFailed']>[0]): void {
    this.#notify('loadFailed', hooks => hooks.loadFailed?.(event))
  }

  pullFinished(event: Parameters<Hooks['pullFinished']>[0]): void {
    this.#notify('pullFinished', hooks => hooks.pullFinished?.(event))
  }

  administered(event: Parameters<Hooks['administered']>[0]): void {
    this.#notify('administered', hooks => hooks.administered?.(event))
  }

  pullFailed(event: Parameters<Hooks['pullFailed']>[0]): void {
    this.#notify('pullFailed', hooks => hooks.pullFailed?.(event))
  }

  stateChanged(topic: StateTopic): void {
    for (const [plugin, hooks] of this.#hooks) {
      try {
        hooks.stateChanged?.(topic)
      } catch (error) {
        this.#logFailure(plugin, 'stateChanged', error)
      }
    }
  }

  #has(hook: HookName): boolean {
    for (const hooks of this.#hooks.values()) if (hooks[hook]) return true
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
    const message = `The plugin "${plugin}" failed in its hook "${hook}". The server's log says why.`
    throw new CorralError('internal', message, { cause: error })
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

  #notify(hook: Observer, run: (hooks: PluginHooks) => Promise<void> | void): void {
    for (const [plugin, hooks] of this.#hooks) {
      // Deferred, because it may call the very service that is reporting.
      Promise.resolve()
        .then(() => this.#within((async () => run(hooks))()))
        .catch(error => this.#logFailure(plugin, hook, error))
    }
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
