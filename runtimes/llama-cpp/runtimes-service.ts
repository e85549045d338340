import { join } from 'node:path'
import type { Attempt, Build, EngineRunSettings, Runtimes, RuntimesReport } from '../../core/contracts/builds.ts'
import { type OnProgress, type Progress, progressText, type Waiting } from '../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../core/errors.ts'
import { untilAborted } from '../../core/system/abort-signals.ts'
import { addTo, getOrAdd } from '../../core/system/collections.ts'
import { SharedWork } from '../../core/system/shared-work.ts'
import { reactionTo } from '../llama-server/failure.ts'
import type { BuildsContext } from './build-search.ts'
import { searchBuild } from './build-search.ts'
import { BuildsDirectory, type BuildsLog, failureNow } from './builds-directory.ts'
import { createInstallation, type InstallationDeps } from './installation.ts'
import { matchesChoice, rankRuntimes } from './ranking.ts'
import { kindReason, warningsFor } from './search-report.ts'
import { type Converter, type FindConverter, presentConverter } from './sources/llama-source.ts'
import { BUNDLED_LISTING, type ReleaseListing, type Releases } from './sources/release.ts'

export interface RuntimesDeps
  extends Omit<BuildsContext, 'builds' | 'signal' | 'ranking' | 'liveRanking'>,
    Pick<InstallationDeps, 'named' | 'models'> {
  directory: string
  /** Used for the ranking only if `release` is among the sources. */
  releases: Pick<Releases, 'listing' | 'find' | 'fetch' | 'followsLatest'>
  engineSettings: EngineRunSettings
  findConverter: FindConverter
  now?: () => number
}

/** Milliseconds before a failed search is repeated. Doubles with each consecutive failure. */
const BACK_OFF = 10_000
const MAX_BACK_OFF = 300_000

/** Remembers and logs the latest step of the work for builds. */
function createProgressLog(log: BuildsLog) {
  let now: Progress | undefined
  let logged = ''
  return {
    get now() {
      return now
    },
    /** Also passes each step on. */
    report:
      (onProgress: OnProgress): OnProgress =>
      step => {
        now = step
        onProgress(step)
        const inSteps = step.fraction === undefined ? step : { ...step, fraction: Math.floor(step.fraction * 20) / 20 }
        const line = progressText(inSteps)
        if (line !== logged) log.info({ ...step }, line)
        logged = line
      },
    clear(): void {
      now = undefined
      logged = ''
    }
  }
}

interface Search {
  build?: Build | undefined
  failure?: { error: CorralError; at: number; count: number } | undefined
}

/** Runs each search once for all callers, and stores its result by choice. Undefined is the default build. */
function createSearches(
  find: (choice: string | undefined, onProgress: OnProgress) => Promise<Build>,
  { log, signal, now }: { log: BuildsLog; signal: AbortSignal; now: () => number }
) {
  const searches = new Map<string | undefined, Search>()
  const works = new SharedWork<Build>({ lasting: true })
  /** Searches from before the default build was set are not joined. */
  let round = 0
  const getKey = (choice: string | undefined) => `${round} ${choice ?? ''}`

  const searchFor = (choice: string | undefined): Search => getOrAdd(searches, choice, () => ({}))

  async function run(search: Search, choice: string | undefined, onProgress: OnProgress): Promise<Build> {
    try {
      search.build = await find(choice, onProgress)
      search.failure = undefined
      return search.build
    } catch (cause) {
      signal.throwIfAborted()
      const message = `Looking for a llama.cpp build failed: ${errorMessage(cause)}`
      const error = cause instanceof CorralError ? cause : new CorralError('runtime_missing', message, { cause })
      search.failure = { error, at: now(), count: (search.failure?.count ?? 0) + 1 }
      log.warn({ ...error.details }, error.message)
      throw error
    }
  }

  return {
    get usual(): Readonly<Search> {
      return searchFor(undefined)
    },
    isRunning: () => works.has(getKey(undefined)),
    async get(choice: string | undefined, waiting: Waiting): Promise<Build> {
      const search = searchFor(choice)
      if (search.build) return search.build
      const { failure } = search
      if (!works.has(getKey(choice))) {
        signal.throwIfAborted()
        if (failure && now() - failure.at < Math.min(BACK_OFF * 2 ** (failure.count - 1), MAX_BACK_OFF)) {
          throw failure.error
        }
      }
      return await works.run(getKey(choice), waiting, ({ onProgress }) => run(search, choice, onProgress))
    },
    /** Sets the default build. Undefined makes the next caller search again. */
    set(build: Build | undefined): void {
      searches.clear()
      round++
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
    end: async (error: Error) => await works.end(() => true, error)
  }
}

function add<Named extends { name: string }>(what: string, list: Named[], added: Named): () => void {
  if (list.some(({ name }) => name === added.name)) throw new Error(`There is a ${what} named "${added.name}" already.`)
  return addTo(list, added)
}

/** Provides the `runtimes` service: lists the builds, chooses the one to use, and starts engines on it. */
export function createRuntimes(deps: RuntimesDeps): Runtimes & { stop(): Promise<void> } {
  const { log, hardware, releases, named } = deps
  const builds = new BuildsDirectory(deps.directory)
  const sources = [...deps.sources]
  const kinds = [...deps.kinds]
  const stopped = new AbortController()
  const { signal } = stopped
  const progress = createProgressLog(log)
  const converters = new SharedWork<Converter>({ lasting: true })
  let listing: ReleaseListing = BUNDLED_LISTING
  let attempts: Attempt[] = []
  /** Number of engines on each build, by its id. */
  const engines = new Map<string, number>()

  function ranking() {
    const machine = hardware.known()
    return machine ? rankRuntimes(kinds, machine, listing.names) : []
  }

  async function liveRanking() {
    await hardware.detect()
    if (sources.some(({ name }) => name === 'release')) listing = await releases.listing()
    return ranking()
  }

  const context = { ...deps, builds, signal, sources, kinds, ranking, liveRanking }

  async function findUsual(onProgress: OnProgress): Promise<Build> {
    const tried: Attempt[] = []
    attempts = tried
    const found = await searchBuild(context, { attempts: tried, onProgress })
    const { id, version, kind, runtime = kind, directory: folder } = found
    const machine = await untilAborted(hardware.detect(), signal)
    const chooser = builds.selection().selected === id ? '"corral runtime use" chose' : undefined
    const decision = named ? `${named.by} names` : chooser
    const idle = warningsFor(found, ranking(), machine, tried, decision && `${decision} another build`)
    const warnings = [...(found.warnings ?? []), ...idle]
    for (const warning of warnings) log.warn({ build: id }, `llama.cpp: ${warning}`)
    const why = decision ? `${decision} it` : kindReason(found, machine)
    const text = `llama.cpp is ready: ${runtime}, since ${why}; ${version} in ${folder}`
    log.info({ build: id, version, kind, directory: folder }, text)
    return warnings.length > 0 ? { ...found, warnings } : found
  }

  const find = async (choice: string | undefined, passOn: OnProgress) => {
    const onProgress = progress.report(passOn)
    const found =
      choice === undefined ? findUsual(onProgress) : searchBuild(context, { choice, attempts: [], onProgress })
    return await found.finally(progress.clear)
  }
  const searches = createSearches(find, { log, signal, now: deps.now ?? (() => performance.now()) })

  async function build(waiting: Waiting = {}, choice?: string): Promise<Build> {
    waiting.signal?.throwIfAborted()
    const usual = searches.usual.build
    const serves = usual && (choice === undefined || usual.id === choice || matchesChoice(choice, usual))
    return serves ? usual : await searches.get(choice, waiting)
  }

  const { list, start, ...installing } = createInstallation({
    ...context,
    current: () => searches.usual.build,
    setCurrent: searches.set,
    search: waiting => build(waiting),
    inUse: id => (engines.get(id) ?? 0) > 0
  })

  function state(): RuntimesReport['state'] {
    const { build: chosen, failure } = searches.usual
    return chosen ? 'ready' : searches.isRunning() ? 'searching' : failure ? 'failed' : 'idle'
  }

  async function noteFailure({ id, source, runtime }: Build, error: unknown): Promise<void> {
    const failure = failureNow(error, await hardware.detect())
    await builds.markFailed(id, failure)
    const description = sources.find(({ name }) => name === source)?.description
    if (runtime === undefined || description === undefined) return
    await builds.addFailedAttempt({ ...failure, source, description, runtime })
  }

  /** Returns the build to try if the first one is at fault. Undefined if there is no other build. */
  async function otherBuild(first: Build, error: unknown, waiting: Waiting, choice?: string) {
    if (!(error instanceof CorralError) || waiting.signal?.aborted) return undefined
    const cause = error.details?.cause
    if (reactionTo(typeof cause === 'string' ? cause : undefined) !== 'other_build') return undefined
    // If the folder is missing, the search finds out. Any other failure is the build's fault.
    const gone = cause === 'executable_missing'
    if (!gone) await noteFailure(first, error)
    searches.forget(first)
    try {
      const other = await build(waiting, choice)
      return other.id === first.id && !gone ? undefined : other
    } catch (reason) {
      waiting.signal?.throwIfAborted()
      // A moved folder may return at any moment, and checking costs nothing.
      if (gone) searches.forgetFailure(choice)
      const text = `${first.id} does not work, and there is no other: ${errorMessage(reason)}`
      log.warn({ build: first.id }, `llama.cpp: ${text}`)
      return undefined
    }
  }

  return {
    ...installing,
    addSource: source => add('source of llama.cpp builds', sources, source),
    addRuntime: runtime => add('kind of llama.cpp build', kinds, runtime),
    build,
    environment({ runtime }) {
      const machine = hardware.known()
      return (machine && kinds.find(({ name }) => name === runtime)?.environment?.(machine)) ?? {}
    },
    async startOn({ name, choice }, attempt, waiting) {
      const startCounted = (on: Build) =>
        start(on, async on => {
          const engine = await attempt(on)
          const count = (by: number) => engines.set(on.id, (engines.get(on.id) ?? 0) + by)
          count(1)
          void engine.exited.then(() => count(-1))
          return engine
        })
      const first = await build(waiting, choice)
      try {
        return await startCounted(first)
      } catch (error) {
        const other = await otherBuild(first, error, waiting, choice)
        if (!other) throw error
        const text = `${first.id} does not work here (${errorMessage(error)}); "${name}" is started on ${other.id}.`
        log.warn({ build: first.id, other: other.id }, `llama.cpp: ${text}`)
        return await startCounted(other)
      }
    },
    engineSettings: deps.engineSettings,
    async conversionTools(waiting) {
      const used = await build(waiting)
      try {
        // The work continues when its caller has left, because the next conversion needs it too.
        const converter = await converters.run('', waiting, ({ onProgress }) =>
          deps.findConverter(used, { signal, onProgress: progress.report(onProgress) }).finally(progress.clear)
        )
        return { ...converter, quantize: used.executables.quantize }
      } catch (error) {
        waiting.signal?.throwIfAborted()
        signal.throwIfAborted()
        const text =
          `llama.cpp's converter for SafeTensors models is unavailable: ${errorMessage(error)}. ` +
          'Check the network and its proxy, or put convert_hf_to_gguf.py with its folders conversion, gguf-py and ' +
          `requirements of llama.cpp's source into ${join(used.directory, 'converter')}.`
        throw new CorralError('runtime_missing', text, { cause: error })
      }
    },
    presentConverter: () => searches.usual.build && presentConverter(searches.usual.build),
    current: () => searches.usual.build,
    state,
    working: () => progress.now,
    async rank(waiting) {
      await untilAborted(liveRanking(), waiting?.signal)
    },
    report(): RuntimesReport {
      const { build: chosen } = searches.usual
      const machine = hardware.known()
      const { tag, list: from } = listing
      return {
        state: state(),
        ...(progress.now && { progress: progress.now }),
        ...(machine && { hardware: machine }),
        ranking: ranking(),
        release: { tag, list: from },
        ...(chosen && { chosen }),
        attempts: attempts.map(attempt => ({ ...attempt, reasons: [...attempt.reasons] })),
        installed: list()
      }
    },
    /** Aborts all work and waits for its end. */
    async stop() {
      const error = new CorralError('shutting_down', 'The server is shutting down.')
      stopped.abort(error)
      await Promise.all([searches.end(error), converters.end(() => true, error)])
    }
  }
}
