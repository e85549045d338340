import type { Build } from '../../core/contracts/builds.ts'
import { type OnProgress, type Progress, progressText, type Waiting } from '../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../core/errors.ts'
import { untilAborted } from '../../core/system/abort-signals.ts'
import type { BuildsLog } from './builds-directory.ts'

/** Milliseconds before a failed search is repeated. Doubles with each consecutive failure. */
const BACK_OFF = 10_000
const MAX_BACK_OFF = 300_000

/** Shares the progress of work with several waiting callers. The work continues when one of them leaves. */
export function createSharedProgress(log: BuildsLog) {
  const listeners = new Set<OnProgress>()
  let now: Progress | undefined
  let logged = ''
  return {
    get now() {
      return now
    },
    report(step: Progress): void {
      now = step
      for (const listener of [...listeners]) listener(step)
      const inSteps = step.fraction === undefined ? step : { ...step, fraction: Math.floor(step.fraction * 20) / 20 }
      const line = progressText(inSteps)
      if (line !== logged) log.info({ ...step }, line)
      logged = line
    },
    clear(): void {
      now = undefined
      logged = ''
    },
    async follow<T>(pending: Promise<T>, { signal, onProgress }: Waiting): Promise<T> {
      signal?.throwIfAborted()
      if (onProgress) {
        listeners.add(onProgress)
        if (now) onProgress(now)
      }
      try {
        return await untilAborted(pending, signal)
      } finally {
        if (onProgress) listeners.delete(onProgress)
      }
    }
  }
}

interface Search {
  build?: Build | undefined
  running?: Promise<Build> | undefined
  failure?: { error: CorralError; at: number; count: number } | undefined
}

/** Runs each search once for all callers, and stores its result by choice. Undefined is the default build. */
export function createSearches(
  find: (choice: string | undefined) => Promise<Build>,
  progress: ReturnType<typeof createSharedProgress>,
  { log, signal, now }: { log: BuildsLog; signal: AbortSignal; now: () => number }
) {
  const searches = new Map<string | undefined, Search>()
  const running = new Set<Promise<Build>>()

  function searchFor(choice: string | undefined): Search {
    const search = searches.get(choice) ?? {}
    searches.set(choice, search)
    return search
  }

  function begin(choice: string | undefined): Promise<Build> {
    const search = searchFor(choice)
    if (search.running) return search.running
    if (signal.aborted) return Promise.reject(signal.reason)
    const { failure } = search
    if (failure && now() - failure.at < Math.min(BACK_OFF * 2 ** (failure.count - 1), MAX_BACK_OFF)) {
      return Promise.reject(failure.error)
    }
    const started = run(search, choice)
    search.running = started
    running.add(started)
    const end = () => running.delete(started)
    started.then(end, end)
    return started
  }

  async function run(search: Search, choice: string | undefined): Promise<Build> {
    try {
      search.build = await find(choice)
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

  return {
    get usual(): Readonly<Search> {
      return searchFor(undefined)
    },
    async get(choice: string | undefined, waiting: Waiting): Promise<Build> {
      return searchFor(choice).build ?? (await progress.follow(begin(choice), waiting))
    },
    /** Sets the default build. Undefined makes the next caller search again. */
    set(build: Build | undefined): void {
      searches.clear()
      searchFor(undefined).build = build
    },
    /** Makes the next caller who needs this build start a new search. */
    forget(build: Build): void {
      for (const search of searches.values()) if (search.build?.id === build.id) search.build = undefined
    },
    /** Lets the next search start immediately although the last one failed. */
    forgetFailure(choice: string | undefined): void {
      searchFor(choice).failure = undefined
    },
    settled: () => Promise.allSettled([...running])
  }
}
