import { join } from 'node:path'
import type {
  Attempt,
  Build,
  BuildCandidate,
  BuildSource,
  EngineRunSettings,
  RankedCandidate,
  RuntimeDescriptor,
  Runtimes,
  RuntimesReport
} from '../../core/contracts/builds.ts'
import type { HardwareService } from '../../core/contracts/hardware.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import { machineFingerprint, readRecords, readSelection } from './build-records.ts'
import { searchBuild } from './build-search.ts'
import { createEngineStarts } from './engine-starts.ts'
import { createInstallation, type ModelRuntimes } from './installation.ts'
import type { Prove } from './prove.ts'
import { usableDevices } from './prove.ts'
import { matchesChoice, rankRuntimes, runtimeOf } from './ranking.ts'
import { checkRecord } from './recorded-builds.ts'
import { type SearchLog, warningsFor } from './search-report.ts'
import { createSearches, createSharedProgress } from './searches.ts'
import type { Converter, FindConverter } from './sources/converter.ts'
import type { ReleaseListing, Releases } from './sources/release.ts'
import { snapshot } from './sources/release-snapshot.ts'

export interface RuntimesDeps {
  sources: readonly BuildSource[]
  /** Kinds of builds to begin with. */
  kinds: readonly RuntimeDescriptor[]
  hardware: HardwareService
  /** Asked for the names of files only where `release` is among the sources. */
  releases: Pick<Releases, 'listing' | 'find' | 'fetch' | 'followsLatest'>
  /** The folder of a build that the user names, and what names it. */
  named?: { folder: string; by: string }
  /** What the sections of models in config.yaml say. */
  models?: ModelRuntimes
  /** Where builds and their records lie. */
  directory: string
  log: SearchLog
  engineSettings: EngineRunSettings
  prove: Prove
  findConverter: FindConverter
  /** Milliseconds of a clock that only goes forward. */
  now?: () => number
}

export interface RuntimesService extends Runtimes {
  /** Calls all work off and settles when it has ended. */
  stop(): Promise<void>
}

/** The `runtimes` service: the builds that there are, the one that is used, and the engines on them. */
export function createRuntimes(deps: RuntimesDeps): RuntimesService {
  const { log, directory, hardware, prove } = deps
  const sources = [...deps.sources]
  const kinds = [...deps.kinds]
  const stopped = new AbortController()
  const { signal } = stopped
  const progress = createSharedProgress(log)
  let listing: ReleaseListing = { tag: snapshot.tag, list: 'snapshot', names: snapshot.names }
  let attempts: Attempt[] = []
  let converter: Promise<Converter> | undefined

  function ranking(): RankedCandidate[] {
    const machine = hardware.known()
    if (!machine) return []
    return rankRuntimes(kinds, machine, listing.names)
  }

  async function liveRanking(): Promise<RankedCandidate[]> {
    await hardware.detect()
    if (sources.some(({ name }) => name === 'release')) listing = await deps.releases.listing()
    return ranking()
  }

  /** Detection ends when it does; who calls everything off does not wait for it. */
  const detect = () => progress.waitFor(hardware.detect(), { signal })

  /** What people decided, where that is why a build is used. */
  async function reasonForChoice({ id }: Build): Promise<string | undefined> {
    if (deps.named) return `${deps.named.by} names another build`
    return (await readSelection(directory)).selected === id ? '"corral runtime use" chose another build' : undefined
  }

  async function findUsual(): Promise<Build> {
    const tried: Attempt[] = []
    attempts = tried
    const machine = await detect()
    const found = await searchFor(undefined, tried)
    const why = await reasonForChoice(found)
    const warnings = [...(found.warnings ?? []), ...warningsFor(found, ranking(), machine, tried, why)]
    for (const warning of warnings) log.warn({ build: found.id }, `llama.cpp: ${warning}`)
    const { version, kind, directory: folder } = found
    log.info(
      { build: found.id, version, kind, directory: folder },
      `llama.cpp ${version} (${kind}) is ready: ${folder}`
    )
    return warnings.length > 0 ? { ...found, warnings } : found
  }

  async function searchFor(choice: string | undefined, tried: Attempt[]): Promise<Build> {
    return await searchBuild({
      sources,
      directory,
      log,
      signal,
      onProgress: progress.tell,
      attempts: tried,
      hardware: await detect(),
      kinds,
      ranking: { known: ranking(), live: () => progress.waitFor(liveRanking(), { signal }) },
      selection: await readSelection(directory),
      ...(choice !== undefined && { choice }),
      prove
    })
  }

  /** A build that a model is to run on: one that is installed, else a kind of them. */
  async function findChosen(choice: string): Promise<Build> {
    const machine = await detect()
    const records = await readRecords(directory)
    const record = records.find(({ build }) => build.id.toLowerCase() === choice.toLowerCase())
    if (record) {
      const runtime = runtimeOf(record.build, kinds, ranking(), machine.gpus)
      const deps = { directory, hardware: machine, machine: machineFingerprint(machine), log, signal }
      const found = await checkRecord(record, runtime, deps)
      if (typeof found !== 'string') return found
      throw new CorralError('runtime_missing', `The llama.cpp build "${choice}" cannot be used: ${found}.`)
    }
    if (kinds.some(kind => matchesChoice(choice, { runtime: kind.name, kind: kind.kind })))
      return await searchFor(choice, [])
    throw new CorralError(
      'runtime_missing',
      `There is no llama.cpp build "${choice}". Kinds are ${kinds.map(({ name }) => name).join(', ')}; ` +
        `installed are ${records.map(({ build }) => build.id).join(', ') || 'none'}. Correct the setting "runtime".`
    )
  }

  const searches = createSearches({
    search: choice => (choice === undefined ? findUsual() : findChosen(choice)),
    progress,
    log,
    signal,
    now: deps.now ?? (() => performance.now())
  })

  async function getBuild(waiting: Waiting = {}, choice?: string): Promise<Build> {
    waiting.signal?.throwIfAborted()
    const usual = searches.usual.build
    const served = usual && (choice === undefined || usual.id === choice || matchesChoice(choice, usual))
    return served ? usual : await searches.get(choice, waiting)
  }

  const environmentOf = (build: Build): Record<string, string> => {
    const machine = hardware.known()
    return (machine && kinds.find(({ name }) => name === build.runtime)?.environment?.(machine)) ?? {}
  }

  async function proveInstalled(candidate: BuildCandidate, signal: AbortSignal): Promise<Build> {
    const machine = await hardware.detect()
    let runtime = kinds.find(({ name }) => name === candidate.runtime)
    if (!runtime) {
      const devices = await usableDevices(candidate.executables.server, { signal, log, hardware: machine })
      runtime = runtimeOf({ kind: candidate.kind, devices }, kinds, ranking(), machine.gpus)
    }
    return await prove(candidate, { own: true, signal, hardware: machine, ...(runtime && { runtime }) })
  }

  const installation = createInstallation({
    directory,
    log,
    hardware: () => hardware.detect(),
    kinds: () => kinds,
    ranking: liveRanking,
    releases: deps.releases,
    prove: proveInstalled,
    current: () => searches.usual.build,
    setCurrent(build) {
      searches.set(build)
      if (!build) search()
    },
    search: waiting => getBuild(waiting),
    inUse: id => starts.inUse(id),
    ...(deps.named && { named: deps.named }),
    ...(deps.models && { models: deps.models }),
    stopped: signal
  })

  /** Looks for the usual build in the background. */
  function search(): void {
    getBuild().catch(error => {
      log.debug({ reason: messageOf(error) }, 'No llama.cpp build yet; the next request that needs one looks again.')
    })
  }

  const starts = createEngineStarts({
    sources,
    hardware,
    directory,
    log,
    start: installation.start,
    build: getBuild,
    forget: build => searches.forget(build),
    forgetFailure: choice => searches.forgetFailure(choice)
  })

  const { list, start: _, ...installing } = installation
  return {
    ...installing,
    addSource(source) {
      if (sources.some(({ name }) => name === source.name)) {
        throw new Error(`There is a source of llama.cpp builds named "${source.name}" already.`)
      }
      sources.push(source)
    },
    addRuntime(runtime) {
      if (kinds.some(({ name }) => name === runtime.name)) {
        throw new Error(`There is a kind of llama.cpp build named "${runtime.name}" already.`)
      }
      kinds.push(runtime)
    },
    build: getBuild,
    environment: environmentOf,
    startOn: starts.startOn,
    engineSettings: deps.engineSettings,
    async conversionTools(waiting) {
      const used = await getBuild(waiting)
      // A fetch goes on when its caller has left: the next one will be glad of it.
      converter ??= deps.findConverter(used, { signal, onProgress: progress.tell }).finally(() => {
        converter = undefined
        progress.clear()
      })
      try {
        return { ...(await progress.waitFor(converter, waiting)), quantize: used.executables.quantize }
      } catch (error) {
        waiting.signal?.throwIfAborted()
        signal.throwIfAborted()
        throw new CorralError(
          'runtime_missing',
          `llama.cpp's converter for SafeTensors models could not be had: ${messageOf(error)}. ` +
            'Check the network and its proxy, or put convert_hf_to_gguf.py with its folders conversion, gguf-py and ' +
            `requirements of llama.cpp's source into ${join(used.directory, 'converter')}.`,
          { cause: error }
        )
      }
    },
    current: () => searches.usual.build,
    async rank(waiting = {}) {
      await progress.waitFor(liveRanking(), waiting.signal ? { signal: waiting.signal } : {})
    },
    report(): RuntimesReport {
      const { build, running, failure } = searches.usual
      const machine = hardware.known()
      const { tag, list: from } = listing
      return {
        state: build ? 'ready' : running ? 'searching' : failure ? 'failed' : 'idle',
        ...(progress.now && { progress: progress.now }),
        ...(machine && { hardware: machine }),
        ranking: ranking(),
        release: { tag, list: from },
        ...(build && { chosen: build }),
        attempts: attempts.map(attempt => ({ ...attempt, reasons: [...attempt.reasons] })),
        installed: list()
      }
    },
    async stop() {
      stopped.abort(new CorralError('shutting_down', 'The server is shutting down.'))
      await converter?.catch(() => {
        // As below.
      })
      await searches.settled()
    }
  }
}
