import type { Build } from '../../core/contracts/builds.ts'
import { type OnProgress, type Progress, progressText, type Waiting } from '../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../core/errors.ts'
import { untilAborted } from '../../core/system/abort-signals.ts'
import type { BuildsLog } from './builds-directory.ts'

/** Milliseconds before a failed search is repeated. Doubles with each consecutive failure. */
const BACK_OFF = 10_000
const MAX_BACK_OFF = 300_000

/** Shares the progress of work with several waiting callers. The work continues when one of them leaves. */
export class SharedProgress {
  now: Progress | undefined
  readonly #log: BuildsLog
  readonly #listeners = new Set<OnProgress>()
  #logged = ''

  constructor(log: BuildsLog) {
    this.#log = log
  }

  readonly report: OnProgress = step => {
    this.now = step
    for (const listener of [...this.#listeners]) listener(step)
    const inSteps = step.fraction === undefined ? step : { ...step, fraction: Math.floor(step.fraction * 20) / 20 }
    const line = progressText(inSteps)
    if (line === this.#logged) return
    this.#logged = line
    this.#log.info({ ...step }, line)
  }

  clear(): void {
    this.now = undefined
    this.#logged = ''
  }

  /** Waits for the work until the caller's signal is aborted. */
  async follow<T>(pending: Promise<T>, { signal, onProgress }: Waiting): Promise<T> {
    signal?.throwIfAborted()
    if (onProgress) {
      this.#listeners.add(onProgress)
      if (this.now) onProgress(this.now)
    }
    try {
      return await untilAborted(pending, signal)
    } finally {
      if (onProgress) this.#listeners.delete(onProgress)
    }
  }
}

/** One search for a build, shared by all callers that need it. */
interface Search {
  build?: Build | undefined
  running?: Promise<Build> | undefined
  failure?: { error: CorralError; at: number; count: number } | undefined
}

export interface SearchesOptions {
  /** Finds a build. Without a choice, finds the default build. */
  search(choice: string | undefined): Promise<Build>
  progress: SharedProgress
  log: BuildsLog
  signal: AbortSignal
  now: () => number
}

/** Runs each search once for all callers, and stores its result by choice. */
export class Searches {
  readonly #options: SearchesOptions
  readonly #searches = new Map<string | undefined, Search>()
  readonly #running = new Set<Promise<Build>>()

  constructor(options: SearchesOptions) {
    this.#options = options
  }

  #of(choice: string | undefined): Search {
    const search = this.#searches.get(choice) ?? {}
    this.#searches.set(choice, search)
    return search
  }

  /** The search for the default build. */
  get usual(): Readonly<Search> {
    return this.#of(undefined)
  }

  async get(choice: string | undefined, waiting: Waiting): Promise<Build> {
    return this.#of(choice).build ?? (await this.#options.progress.follow(this.#begin(choice), waiting))
  }

  #begin(choice: string | undefined): Promise<Build> {
    const { signal, now } = this.#options
    const search = this.#of(choice)
    if (search.running) return search.running
    if (signal.aborted) return Promise.reject(signal.reason)
    const { failure } = search
    if (failure && now() - failure.at < Math.min(BACK_OFF * 2 ** (failure.count - 1), MAX_BACK_OFF)) {
      return Promise.reject(failure.error)
    }
    const running = this.#run(search, choice)
    search.running = running
    this.#running.add(running)
    const end = () => this.#running.delete(running)
    running.then(end, end)
    return running
  }

  async #run(search: Search, choice: string | undefined): Promise<Build> {
    const { signal, now, log, progress } = this.#options
    try {
      search.build = await this.#options.search(choice)
      search.failure = undefined
      return search.build
    } catch (cause) {
      signal.throwIfAborted()
      const message = `Looking for a llama.cpp build failed: ${errorMessage(cause)}`
      const error = cause instanceof CorralError ? cause : new CorralError('runtime_missing', message, { cause })
      search.failure = { error, at: now(), count: (search.failure?.count ?? 0) + 1 }
      log.warn({ ...error.details }, error.message)
      throw error
    } finally {
      search.running = undefined
      progress.clear()
    }
  }

  /** Sets the default build. Undefined makes the next caller search again. */
  set(build: Build | undefined): void {
    this.#searches.clear()
    this.#of(undefined).build = build
  }

  /** Makes the next caller who needs this build start a new search. */
  forget(build: Build): void {
    for (const search of this.#searches.values()) if (search.build?.id === build.id) search.build = undefined
  }

  /** Lets the next search start at once although the last one failed. */
  forgetFailure(choice: string | undefined): void {
    this.#of(choice).failure = undefined
  }

  async settled(): Promise<void> {
    await Promise.allSettled([...this.#running])
  }
}
