import { join } from 'node:path'
import { CorralError, messageOf } from '../core/errors.ts'
import { type OnProgress, type Progress, progressText } from '../core/progress.ts'
import type { Attempt, Build, BuildSource, Runtimes, RuntimesReport } from '../core/runtimes.ts'
import type { Waiting } from '../core/services.ts'
import { type SearchLog, searchBuild } from './build-search.ts'
import type { Converter, FindConverter } from './find-converter.ts'
import type { Prove, StartEngine } from './prove-by-answer.ts'

export interface RuntimesDeps {
  sources: readonly BuildSource[]
  /** Where builds and their records lie. */
  directory: string
  log: SearchLog
  startEngine: StartEngine
  prove: Prove
  findConverter: FindConverter
  /** Milliseconds of a clock that only goes forward. */
  now?: () => number
}

export interface RuntimesService extends Runtimes {
  /** Calls a search off and settles when it has ended. */
  stop(): Promise<void>
}

/** Milliseconds after a failed search in which it is not repeated; doubles with each failure in a row. */
const BACK_OFF = 10_000
const LONGEST_BACK_OFF = 300_000

/** The `runtimes` service: one build for all, searched for once, however many wait for it. */
export function createRuntimes(deps: RuntimesDeps): RuntimesService {
  const { log, startEngine } = deps
  const now = deps.now ?? (() => performance.now())
  const sources = [...deps.sources]
  const stopped = new AbortController()
  const listeners = new Set<OnProgress>()
  let reports: Attempt[] = []
  let progress: Progress | undefined
  let build: Build | undefined
  let search: Promise<Build> | undefined
  let converter: Promise<Converter> | undefined
  let failure: { error: CorralError; at: number; count: number } | undefined

  let told = ''
  function onProgress(step: Progress): void {
    progress = step
    for (const listener of [...listeners]) listener(step)
    const inSteps = step.fraction === undefined ? step : { ...step, fraction: Math.floor(step.fraction * 20) / 20 }
    const line = progressText(inSteps)
    if (line === told) return
    told = line
    log.info({ ...step }, line)
  }

  async function runSearch(): Promise<Build> {
    reports = sources.map(({ name, description }) => ({
      source: name,
      description,
      outcome: 'not tried',
      reasons: []
    }))
    try {
      const found = await searchBuild({
        sources,
        directory: deps.directory,
        log,
        signal: stopped.signal,
        onProgress,
        reports,
        prove: deps.prove
      })
      build = found
      failure = undefined
      const { version, kind, directory } = found
      log.info({ build: found.id, version, kind, directory }, `llama.cpp ${version} (${kind}) is ready: ${directory}`)
      return found
    } catch (error) {
      if (stopped.signal.aborted) throw stopped.signal.reason
      const known =
        error instanceof CorralError
          ? error
          : new CorralError('runtime_missing', `Looking for a llama.cpp build failed: ${messageOf(error)}`, {
              cause: error
            })
      failure = { error: known, at: now(), count: (failure?.count ?? 0) + 1 }
      log.warn({ sources: reports }, known.message)
      throw known
    } finally {
      search = undefined
      progress = undefined
      told = ''
    }
  }

  function current(): Promise<Build> {
    if (search) return search
    if (stopped.signal.aborted) return Promise.reject(stopped.signal.reason)
    if (failure && now() - failure.at < Math.min(BACK_OFF * 2 ** (failure.count - 1), LONGEST_BACK_OFF)) {
      return Promise.reject(failure.error)
    }
    search = runSearch()
    return search
  }

  async function waitFor<T>(pending: Promise<T>, { signal, onProgress: listener }: Waiting): Promise<T> {
    signal?.throwIfAborted()
    if (listener) {
      listeners.add(listener)
      if (progress) listener(progress)
    }
    let onAbort: (() => void) | undefined
    const aborted = new Promise<never>((_, reject) => {
      onAbort = () => reject(signal!.reason)
      signal?.addEventListener('abort', onAbort, { once: true })
    })
    try {
      return await Promise.race([pending, aborted])
    } finally {
      if (listener) listeners.delete(listener)
      if (onAbort) signal?.removeEventListener('abort', onAbort)
    }
  }

  async function getBuild(waiting: Waiting = {}): Promise<Build> {
    waiting.signal?.throwIfAborted()
    return build ?? (await waitFor(current(), waiting))
  }

  return {
    addSource(source) {
      if (sources.some(({ name }) => name === source.name)) {
        throw new Error(`There is a source of llama.cpp builds named "${source.name}" already.`)
      }
      sources.push(source)
    },
    build: getBuild,
    async conversionTools(waiting) {
      const used = await getBuild(waiting)
      // A fetch goes on when its caller has left: the next one will be glad of it.
      converter ??= deps.findConverter(used, { signal: stopped.signal, onProgress }).finally(() => {
        converter = undefined
        progress = undefined
      })
      try {
        return { ...(await waitFor(converter, waiting)), quantize: used.executables.quantize }
      } catch (error) {
        waiting.signal?.throwIfAborted()
        stopped.signal.throwIfAborted()
        throw new CorralError(
          'runtime_missing',
          `llama.cpp's converter for SafeTensors models could not be had: ${messageOf(error)}. ` +
            'Check the network and its proxy, or put convert_hf_to_gguf.py with its folders conversion, gguf-py and ' +
            `requirements of llama.cpp's source into ${join(used.directory, 'converter')}.`,
          { cause: error }
        )
      }
    },
    async startEngine(spec, waiting) {
      const used = await getBuild(waiting)
      try {
        return await startEngine(used, spec, waiting)
      } catch (error) {
        // The build does not work any more (its folder may have been deleted): the next request looks for one anew.
        if (error instanceof CorralError && error.code === 'runtime_missing' && build === used) build = undefined
        throw error
      }
    },
    report(): RuntimesReport {
      const state = build ? 'ready' : search ? 'searching' : failure ? 'failed' : 'idle'
      return {
        state,
        ...(progress && { progress }),
        ...(build && { build }),
        sources: reports.map(report => ({ ...report, reasons: [...report.reasons] }))
      }
    },
    async stop() {
      stopped.abort(new CorralError('shutting_down', 'The server is shutting down.'))
      await converter?.catch(() => {
        // As below.
      })
      await search?.catch(() => {
        // Whoever waits for it is told.
      })
    }
  }
}
