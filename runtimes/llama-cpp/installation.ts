import { rm } from 'node:fs/promises'
import { basename } from 'node:path'
import type {
  Build,
  BuildCandidate,
  InstalledBuild,
  InstallRequest,
  RuntimeDescriptor
} from '../../core/contracts/builds.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../core/errors.ts'
import type { BuildsContext } from './build-search.ts'
import { type BuildRecord, failureNow, findDamage, machineFingerprint, type Selection } from './builds-directory.ts'
import { archiveTag, byRelease, isNewerRelease, releaseTag } from './kinds/scores.ts'
import { findRuntime, matchesChoice } from './ranking.ts'
import { archiveDigest, parseDigest, placeArchives, readArchiveName } from './sources/archive.ts'
import { type FoundArchives, type Releases, releaseId } from './sources/release.ts'
import { usableDevices } from './verify-build.ts'

type ArchiveRequest = Extract<InstallRequest, { archive: string }>

/** The setting `runtime` in the sections of models, by model name. */
export type ModelRuntimes = Readonly<Record<string, { runtime?: string }>>

export interface InstallationDeps extends BuildsContext {
  releases: Pick<Releases, 'find' | 'fetch' | 'followsLatest'>
  current(): Build | undefined
  /** Sets the build for new engines. Undefined starts a new search. */
  setCurrent(build: Build | undefined): void
  /** Returns the build for new engines, after a search if there is none yet. */
  search(waiting: Waiting): Promise<Build>
  inUse(id: string): boolean
  /** The folder that the user names, which takes precedence, and the setting that names it. */
  named?: { folder: string; by: string } | undefined
  models?: (() => ModelRuntimes) | undefined
}

const UNSELECTED: Selection = { selected: undefined, previous: undefined, trial: undefined }

/** Start errors that the build may have caused. */
const SUSPICIOUS = new Set(['runtime_missing', 'load_failed', 'engine_crashed', 'load_timeout'])

const notFound = (text: string, param = 'runtime') => new CorralError('runtime_not_found', text, { param })
const asSentence = (text: string) => text.replace(/\.?$/, '.')

/**
 * Installs, selects, upgrades and removes builds, one process at a time. After a kill, the next run removes leftovers.
 */
export function createInstallation(deps: InstallationDeps) {
  const { builds, log, kinds, releases, setCurrent, inUse } = deps

  async function withLock<T>(waiting: Waiting, work: (waiting: Required<Waiting>) => Promise<T>): Promise<T> {
    const signal = AbortSignal.any([deps.signal, ...(waiting.signal ? [waiting.signal] : [])])
    const onProgress = waiting.onProgress ?? (() => undefined)
    const wait = () => onProgress({ phase: 'queued', subject: 'behind another installation' })
    const locked = async () => {
      await builds.removeLeftovers()
      return await work({ signal, onProgress })
    }
    return await builds.locked(locked, { signal, log }, wait)
  }

  /** Records that a build does not work here, so that no upgrade tries it again. */
  async function fail(id: string, error: unknown): Promise<void> {
    const failure = failureNow(error, await deps.hardware.detect())
    await builds.markFailed(id, failure)
    await builds.select({ failed: { ...builds.selection().failed, [id]: failure } })
  }

  async function failure(id: string, cause: unknown, text: string, { signal }: Required<Waiting>) {
    signal.throwIfAborted()
    await fail(id, cause)
    return new CorralError('runtime_missing', text, { cause })
  }

  async function record(build: Build): Promise<Build> {
    await builds.save(build, { installed: true })
    const { [build.id]: known, ...failed } = builds.selection().failed ?? {}
    if (known) await builds.select({ failed })
    return build
  }

  /** Verifies one of corral's builds and records it. @throws Error with the reason if it does not work */
  async function verifyOwn(candidate: BuildCandidate, { signal, onProgress }: Required<Waiting>): Promise<Build> {
    onProgress({ phase: 'proving', subject: candidate.id })
    const hardware = await deps.hardware.detect()
    let runtime = kinds.find(({ name }) => name === candidate.runtime)
    if (!runtime) {
      const devices = await usableDevices(candidate.executables.server, { signal, log, hardware })
      runtime = findRuntime({ kind: candidate.kind, devices }, kinds, deps.ranking(), hardware.gpus)
    }
    return await record(await deps.verifyBuild(candidate, { own: true, signal, hardware, runtime }))
  }

  /** Verifies a new build, and removes it if it does not work. */
  async function verifyNew(candidate: BuildCandidate, waiting: Required<Waiting>, advice = ''): Promise<Build> {
    const { id, directory: folder } = candidate
    const build = await verifyOwn(candidate, waiting).catch(async error => {
      await rm(folder, { recursive: true, force: true })
      const text = `${id} was removed because it does not work here: ${errorMessage(error)}${advice}`
      throw await failure(id, error, text, waiting)
    })
    log.info({ build: id, version: build.version }, `llama.cpp ${id} is installed and works.`)
    return build
  }

  /** Verifies an installed build again, and marks it as failed. @throws CorralError `runtime_missing` */
  async function verifyAgain(installed: BuildRecord, waiting: Required<Waiting>): Promise<Build> {
    const { id } = installed.build
    try {
      const damage = await findDamage(installed, { signal: waiting.signal, log })
      if (damage !== undefined) throw new Error(damage)
      const candidate = { ...installed.build, commit: undefined, warnings: undefined }
      return await verifyOwn(candidate, waiting)
    } catch (error) {
      const advice = `To reinstall it: corral runtime remove ${id}, then corral runtime install.`
      const text = `${id} no longer works here: ${asSentence(errorMessage(error))} ${advice}`
      throw await failure(id, error, text, waiting)
    }
  }

  /** Returns the build if it is already installed. Removes a damaged build. */
  async function findIntact(fits: (build: Build) => boolean, waiting: Required<Waiting>): Promise<Build | undefined> {
    const found = builds.records().find(({ build }) => fits(build))
    if (found === undefined) return undefined
    const { build } = found
    const damage = await findDamage(found, { signal: waiting.signal, log })
    if (damage === undefined && found.failure) return await verifyAgain(found, waiting)
    if (damage === undefined) return found.installed ? build : await record(build)
    if (inUse(build.id)) {
      const text = `${build.id} is damaged (${damage}), but an engine still runs on it.`
      throw new CorralError('runtime_in_use', `${text} Stop its models, then install it again.`)
    }
    log.warn({ build: build.id, damage }, `${build.id} is damaged and will be installed again: ${damage}`)
    await builds.remove(found)
    return undefined
  }

  async function kindNamed(name: string | undefined): Promise<RuntimeDescriptor> {
    const ranking = await deps.liveRanking()
    const best = ranking.find(candidate => (name === undefined ? candidate.usable : matchesChoice(name, candidate)))
    const found = kinds.find(kind => kind.name === best?.runtime)
    if (found) return found
    const text = 'No kind of llama.cpp build can work on this machine; "corral doctor" shows why.'
    if (name === undefined) throw new CorralError('runtime_missing', text)
    throw notFound(`There is no kind of llama.cpp build named "${name}". ${kindsText(kinds)}`)
  }

  async function findArchives(runtime: RuntimeDescriptor, version: string | undefined, waiting: Waiting) {
    const hardware = await deps.hardware.detect()
    waiting.onProgress?.({ phase: 'downloading', subject: 'the list of llama.cpp releases' })
    const found = await releases.find(runtime, hardware, waiting, version)
    if (found) return found
    const what = version === undefined ? 'No release' : `Release ${version}`
    const machine = `${hardware.platform} ${hardware.arch} that works with its drivers`
    const text = `${what} of llama.cpp has a ${runtime.name} archive for ${machine}. "corral doctor" shows what there is.`
    throw notFound(text, 'version')
  }

  async function installRelease(runtime: RuntimeDescriptor, found: FoundArchives, waiting: Required<Waiting>) {
    const id = releaseId(found.tag, runtime)
    const intact = await findIntact(build => build.id === id, waiting)
    return intact ?? (await verifyNew(await releases.fetch(found, runtime, waiting), waiting))
  }

  async function installArchive(request: ArchiveRequest, waiting: Waiting): Promise<Build> {
    const { archive, companions = [] } = request
    const expected = parseDigest(request.sha256)
    const read = readArchiveName(basename(archive), kinds, await deps.hardware.detect())
    const runtime = request.runtime === undefined ? read.runtime : await kindNamed(request.runtime)
    return await withLock(waiting, async waiting => {
      const digest = await archiveDigest(archive, expected, waiting.signal)
      log.info({ archive, sha256: digest }, `${archive} has the SHA-256 ${digest}.`)
      const suffix = digest.slice(0, 8)
      const same = ({ id, source }: Build) => source === 'archive' && id.endsWith(`-${suffix}`)
      const intact = await findIntact(same, waiting)
      if (intact) return intact
      const idOf = (inner: string) => {
        const tag = read.tag ?? archiveTag(inner) ?? 'renamed'
        return `archive-${tag}-${runtime?.name ?? 'build'}-${suffix}`
      }
      const placed = await placeArchives([archive, ...companions], builds.path, idOf, waiting)
      const origin = `${basename(archive)} (sha256 ${digest})`
      const kind = runtime?.kind ?? 'unknown'
      const lacksLibraries = kind === 'cuda' && companions.length === 0
      const advice = ' Its libraries may be missing: also pass the cudart-… archive of the same version.'
      const candidate = { ...placed, kind, runtime: runtime?.name, source: 'archive', origin }
      return await verifyNew(candidate, waiting, lacksLibraries ? advice : '')
    })
  }

  function refuseWhileNamed(): void {
    if (!deps.named) return
    const what = `${deps.named.by} names ${deps.named.folder}, and that llama.cpp build`
    throw new CorralError('invalid_request', `${what} takes precedence over any choice. Unset it first.`)
  }

  function whyNeeded({ id, directory: folder }: Build, records: readonly BuildRecord[]): string | undefined {
    if (inUse(id)) {
      return `An engine runs on ${id}. Stop the models on it first ("corral ps" lists them, "corral stop <model>").`
    }
    const chosen = [deps.current()?.id, builds.selection().selected]
    if (chosen.includes(id) || deps.named?.folder === folder) {
      return `New engines use ${id}. Choose another build first: corral runtime use <build>, or auto.`
    }
    const model = modelThatNeeds(id, records, deps.models?.() ?? {})
    if (model === undefined) return undefined
    const setting = `models.${model}.runtime in config.yaml`
    return `${model} uses ${id}, because ${setting} says so. Change that setting and restart corral first.`
  }

  return {
    async install(request: InstallRequest, waiting: Waiting): Promise<Build> {
      if ('archive' in request) return await installArchive(request, waiting)
      const runtime = await kindNamed(request.runtime)
      const found = await findArchives(runtime, request.version, waiting)
      return await withLock(waiting, waiting => installRelease(runtime, found, waiting))
    },

    async use(choice: string, waiting: Waiting): Promise<Build> {
      refuseWhileNamed()
      if (choice.toLowerCase() === 'auto') {
        await builds.select(UNSELECTED)
        setCurrent(undefined)
        return await deps.search(waiting)
      }
      return await withLock(waiting, async waiting => {
        const build = await verifyAgain(findInstalled(builds.records(), choice, kinds), waiting)
        await builds.select({ ...UNSELECTED, selected: build.id })
        setCurrent(build)
        log.info({ build: build.id }, `New engines use llama.cpp ${build.id}.`)
        return build
      })
    },

    async upgrade(waiting: Waiting): Promise<{ build: Build; previous: Build; changed: boolean }> {
      refuseWhileNamed()
      const previous = deps.current() ?? (await deps.search(waiting))
      const runtime = await kindNamed(previous.runtime ?? (previous.kind === 'unknown' ? undefined : previous.kind))
      const found = await findArchives(runtime, undefined, waiting)
      const { tag } = found
      const present = releaseTag(previous.id)
      // A release that the settings name is an upgrade even if it is older.
      const isNewer = releases.followsLatest ? isNewerRelease(tag, present) : tag !== present
      if (previous.runtime === runtime.name && !isNewer) return { build: previous, previous, changed: false }
      const failure = builds.selection().failed?.[releaseId(tag, runtime)]
      if (failure?.machine === machineFingerprint(await deps.hardware.detect())) {
        const tried = `the newest release, ${tag}, was tried on ${failure.at.slice(0, 10)} and does not work here`
        const advice = `To try it anyway: corral runtime install ${runtime.name} --version ${tag}`
        const text = `${previous.id} stays in use: ${tried}: ${asSentence(failure.reason)} ${advice}`
        throw new CorralError('runtime_missing', text)
      }
      return await withLock(waiting, async waiting => {
        const build = await installRelease(runtime, found, waiting).catch(error => {
          if (!(error instanceof CorralError) || error.code !== 'runtime_missing') throw error
          const message = `${asSentence(error.message)} ${previous.id} stays in use.`
          throw new CorralError('runtime_missing', message, { cause: error })
        })
        await builds.select({ selected: build.id, previous: previous.id, trial: build.id })
        setCurrent(build)
        log.info({ build: build.id, previous: previous.id }, `New engines use llama.cpp ${build.id}.`)
        return { build, previous, changed: true }
      })
    },

    async remove(id: string): Promise<void> {
      await withLock({}, async () => {
        const records = builds.records()
        const found = records.find(hasId(id))
        if (!found) throw notFound(`No llama.cpp build "${id}" is installed. ${installedText(records)}`)
        const { build } = found
        if (!builds.owns(build)) {
          const text = `corral did not install ${build.id} and does not remove it: it is in ${build.directory}.`
          throw new CorralError('invalid_request', text)
        }
        const needed = whyNeeded(build, records)
        if (needed !== undefined) throw new CorralError('runtime_in_use', needed)
        await builds.remove(found)
        if (builds.selection().previous === build.id) await builds.select({ previous: undefined })
        log.info({ build: build.id }, `Removed llama.cpp ${build.id}.`)
      })
    },

    list(): InstalledBuild[] {
      const selection = builds.selection()
      const current = deps.current()
      return builds.records().map(record => ({
        build: record.build,
        provenAt: record.provenAt,
        size: Object.values(record.files).reduce((sum, size) => sum + size, 0),
        state: getState(record, selection, current),
        ...(record.failure && { failure: record.failure.reason })
      }))
    },

    /** Starts an engine, after an upgrade on the previous build if only that works, which then stays in use. */
    async start<T>(build: Build, attempt: (build: Build) => Promise<T>): Promise<T> {
      const onTrial = () => builds.selection().trial === build.id
      if (!onTrial()) return await attempt(build)
      try {
        const started = await attempt(build)
        await builds.select({ trial: undefined })
        return started
      } catch (error) {
        const { previous } = builds.selection()
        const former = builds.records().find(record => record.build.id === previous)?.build
        if (!former || !(error instanceof CorralError) || !SUSPICIOUS.has(error.code)) throw error
        const started = await attempt(former).catch(() => {
          // The previous build fails too, so the new build is not to blame.
          throw error
        })
        // Another failed start may already have returned to the previous build.
        if (onTrial()) {
          await fail(build.id, error)
          await builds.select({ ...UNSELECTED, selected: former.id })
          setCurrent(former)
          const text = `llama.cpp ${build.id} fails but ${former.id} works, so corral uses ${former.id} again. "corral runtime list" shows both.`
          log.warn({ failed: build.id, build: former.id, reason: error.message }, text)
        }
        return started
      }
    }
  }
}

export function getState(
  { build, failure }: Pick<BuildRecord, 'build' | 'failure'>,
  { selected, previous }: Selection,
  current: Build | undefined
): InstalledBuild['state'] {
  if (build.id === current?.id) return 'in use'
  if (failure) return 'failed'
  if (build.id === selected) return 'selected'
  return build.id === previous ? 'previous' : 'installed'
}

const hasId = (id: string) => (record: BuildRecord) => record.build.id.toLowerCase() === id.toLowerCase()

/** Returns a model whose section selects this build and no other working build. Pure. */
export function modelThatNeeds(id: string, records: readonly BuildRecord[], models: ModelRuntimes): string | undefined {
  return Object.keys(models).find(model => {
    const choice = models[model]!.runtime
    if (choice === undefined) return false
    const named = records.filter(hasId(choice))
    const works = records.filter(({ build, failure }) => !failure && matchesChoice(choice, build))
    const meant = named.length > 0 ? named : works
    return meant.length === 1 && meant[0]!.build.id === id
  })
}

const kindsText = (kinds: readonly RuntimeDescriptor[]) => `Kinds are: ${kinds.map(({ name }) => name).join(', ')}.`

const installedText = (records: readonly BuildRecord[]) =>
  `Installed: ${records.map(({ build }) => build.id).join(', ') || 'none'}.`

/** Returns the record with this id, or the newest build of that kind. Failed builds come last. Pure. */
export function findInstalled(records: readonly BuildRecord[], choice: string, kinds: readonly RuntimeDescriptor[]) {
  const failed = (record: BuildRecord) => Number(record.failure !== undefined)
  const release = ({ build }: BuildRecord) => releaseTag(build.id)
  const [newest] = records
    .filter(({ build }) => matchesChoice(choice, build))
    .sort((a, b) => failed(a) - failed(b) || byRelease(release(a), release(b)) || b.provenAt.localeCompare(a.provenAt))
  const found = records.find(hasId(choice)) ?? newest
  if (found) return found
  const isKind = kinds.some(({ name, kind }) => matchesChoice(choice, { runtime: name, kind }))
  const text = `No llama.cpp build ${isKind ? 'of the kind ' : ''}"${choice}" is installed`
  if (isKind) throw notFound(`${text}. Install one with: corral runtime install ${choice}`)
  throw notFound(`${text}, and there is no kind of that name. ${installedText(records)} ${kindsText(kinds)}`)
}
