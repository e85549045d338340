import type { Build } from '../../core/contracts/builds.ts'
import { type OnProgress, type Progress, progressText, type Waiting } from '../../core/contracts/progress.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import type { SearchLog } from './search-report.ts'

/** Milliseconds after a failed search in which it is not repeated; doubles with each failure in a row. */
const BACK_OFF = 10_000
const LONGEST_BACK_OFF = 300_000

interface Failure {
  error: CorralError
  at: number
  count: number
}

/** What everybody waits for who wants the same build. */
export interface Search {
  build: Build | undefined
  running: Promise<Build> | undefined
  failure: Failure | undefined
}

/** Waits that share work and its progress: the work goes on when one who waits leaves. */
export interface SharedProgress {
  readonly now: Progress | undefined
  tell: OnProgress
  clear(): void
  waitFor<T>(pending: Promise<T>, waiting: Waiting): Promise<T>
}

export function createSharedProgress(log: SearchLog): SharedProgress {
  const listeners = new Set<OnProgress>()
  let now: Progress | undefined
  let told = ''
  return {
    get now() {
      return now
    },
    tell(step) {
      now = step
      for (const listener of [...listeners]) listener(step)
      const inSteps = step.fraction === undefined ? step : { ...step, fraction: Math.floor(step.fraction * 20) / 20 }
      const line = progressText(inSteps)
      if (line === told) return
      told = line
      log.info({ ...step }, line)
    },
    clear() {
      now = undefined
      told = ''
    },
    async waitFor(pending, { signal, onProgress }) {
      signal?.throwIfAborted()
      if (onProgress) {
        listeners.add(onProgress)
        if (now) onProgress(now)
      }
      let onAbort: (() => void) | undefined
      const aborted = new Promise<never>((_, reject) => {
        onAbort = () => reject(signal!.reason)
        signal?.addEventListener('abort', onAbort, { once: true })
      })
      try {
        return await Promise.race([pending, aborted])
      } finally {
        if (onProgress) listeners.delete(onProgress)
        if (onAbort) signal?.removeEventListener('abort', onAbort)
      }
    }
  }
}

export interface SearchesDeps {
  /** Looks for a build; `choice` names another one than the usual. */
  search(choice: string | undefined): Promise<Build>
  progress: SharedProgress
  log: SearchLog
  signal: AbortSignal
  /** Milliseconds of a clock that only goes forward. */
  now: () => number
}

/** Builds by what they were wanted for: each is searched for once, however many wait for it. */
export function createSearches({ search, progress, log, signal, now }: SearchesDeps) {
  const searches = new Map<string | undefined, Search>()
  const running = new Set<Promise<Build>>()
  const of = (choice: string | undefined): Search => {
    const known = searches.get(choice)
    if (known) return known
    const made: Search = { build: undefined, running: undefined, failure: undefined }
    searches.set(choice, made)
    return made
  }

  async function run(state: Search, choice: string | undefined): Promise<Build> {
    try {
      const build = await search(choice)
      state.build = build
      state.failure = undefined
      return build
    } catch (error) {
      if (signal.aborted) throw signal.reason
      const known =
        error instanceof CorralError
          ? error
          : new CorralError('runtime_missing', `Looking for a llama.cpp build failed: ${messageOf(error)}`, {
              cause: error
            })
      state.failure = { error: known, at: now(), count: (state.failure?.count ?? 0) + 1 }
      log.warn({ ...known.details }, known.message)
      throw known
    } finally {
      state.running = undefined
      progress.clear()
    }
  }

  function begin(choice: string | undefined): Promise<Build> {
    const state = of(choice)
    if (state.running) return state.running
    if (signal.aborted) return Promise.reject(signal.reason)
    const { failure } = state
    if (failure && now() - failure.at < Math.min(BACK_OFF * 2 ** (failure.count - 1), LONGEST_BACK_OFF)) {
      return Promise.reject(failure.error)
    }
    const begun = run(state, choice)
    state.running = begun
    running.add(begun)
    const end = () => running.delete(begun)
    begun.then(end, end)
    return begun
  }

  return {
    /** What is known of the search for the usual build. */
    get usual(): Readonly<Search> {
      return of(undefined)
    },
    async get(choice: string | undefined, waiting: Waiting): Promise<Build> {
      waiting.signal?.throwIfAborted()
      return of(choice).build ?? (await progress.waitFor(begin(choice), waiting))
    },
    /** From now on this is the usual build, or it is to be searched for anew. */
    set(build: Build | undefined): void {
      searches.clear()
      of(undefined).build = build
    },
    /** Whoever wants this build next looks anew. */
    forget(build: Build): void {
      for (const state of searches.values()) if (state.build?.id === build.id) state.build = undefined
    },
    /** Whoever wants this build next need not wait because the last search failed. */
    forgetFailure(choice: string | undefined): void {
      of(choice).failure = undefined
    },
    async settled(): Promise<void> {
      await Promise.allSettled([...running])
    }
  }
}
