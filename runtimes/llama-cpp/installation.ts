import { basename } from 'node:path'
import type {
  Build,
  InstalledBuild,
  RankedCandidate,
  RuntimeDescriptor,
  Runtimes
} from '../../core/contracts/builds.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import { createBuildInstaller, type InstallerDeps } from './build-installer.ts'
import {
  type BuildRecord,
  changeSelection,
  isOwn,
  machineFingerprint,
  readRecords,
  recordsNow,
  removeRecord,
  type Selection,
  selectionIn,
  sizeOf
} from './build-records.ts'
import { lockDirectory, removeLeftovers } from './builds-directory.ts'
import { matchesChoice } from './ranking.ts'
import { parseDigest, readArchiveName } from './sources/archive.ts'
import { type FoundArchives, nightlyNumber, releaseId, releaseTag } from './sources/release.ts'

export interface InstallationDeps extends InstallerDeps {
  kinds(): readonly RuntimeDescriptor[]
  ranking(): Promise<readonly RankedCandidate[]>
  /** The build for new engines. */
  current(): Build | undefined
  /** Sets the build for new engines; undefined starts a new search. */
  setCurrent(build: Build | undefined): void
  /** The build for new engines, after a search if there is none yet. */
  search(waiting: Waiting): Promise<Build>
  /** The folder that the user names, which takes precedence, and the setting that names it. */
  named?: { folder: string; by: string }
  /** The sections of models in config.yaml. */
  models?: ModelRuntimes
  /** Aborts all work. */
  stopped: AbortSignal
}

export interface Installation extends Pick<Runtimes, 'install' | 'use' | 'upgrade' | 'remove'> {
  /** All recorded builds, the one proven last first. */
  list(): InstalledBuild[]
  /** Starts an engine on a build; see `startOnTrial`. */
  start<T>(build: Build, attempt: (build: Build) => Promise<T>): Promise<T>
}

/** Installs, selects, upgrades and removes builds: one process at a time, and only proven builds count. */
export function createInstallation(deps: InstallationDeps): Installation {
  const { directory, log, releases, setCurrent } = deps
  const installer = createBuildInstaller(deps)

  /** Runs work with the lock of the builds' directory. */
  async function withLock<T>(waiting: Waiting, work: (waiting: Required<Waiting>) => Promise<T>): Promise<T> {
    const signal = AbortSignal.any([deps.stopped, ...(waiting.signal ? [waiting.signal] : [])])
    const onProgress = waiting.onProgress ?? (() => undefined)
    const wait = () => onProgress({ phase: 'queued', subject: 'behind another installation' })
    const release = await lockDirectory(directory, signal, log, wait)
    try {
      await removeLeftovers(directory)
      return await work({ signal, onProgress })
    } finally {
      await release()
    }
  }

  /** The kind of a name, or the best one without a name. */
  async function kindNamed(name: string | undefined): Promise<RuntimeDescriptor> {
    const kinds = deps.kinds()
    const ranking = await deps.ranking()
    const best = ranking.find(candidate => (name === undefined ? candidate.usable : matchesChoice(name, candidate)))
    const found = kinds.find(kind => kind.name === best?.runtime)
    if (found) return found
    if (name === undefined) {
      throw new CorralError(
        'runtime_missing',
        'No kind of llama.cpp build can work on this machine; "corral doctor" shows why.'
      )
    }
    throw new CorralError(
      'runtime_not_found',
      `There is no kind of llama.cpp build named "${name}". Kinds are: ${kinds.map(kind => kind.name).join(', ')}.`,
      { param: 'runtime' }
    )
  }

  async function findArchives(runtime: RuntimeDescriptor, version: string | undefined, waiting: Waiting) {
    const hardware = await deps.hardware()
    waiting.onProgress?.({ phase: 'downloading', subject: 'the list of llama.cpp releases' })
    const found = await releases.find(runtime, hardware, waiting, version)
    if (found) return found
    throw new CorralError(
      'runtime_not_found',
      `${version === undefined ? 'No release' : `Release ${version}`} of llama.cpp has a ${runtime.name} archive for ` +
        `${hardware.platform} ${hardware.arch} that works with its drivers. "corral doctor" shows what there is.`,
      { param: 'version' }
    )
  }

  /** @throws CorralError if the user names a folder, which takes precedence over any choice */
  function refuseWhileNamed(): void {
    if (!deps.named) return
    const { by, folder } = deps.named
    throw new CorralError(
      'invalid_request',
      `${by} names ${folder}, and that llama.cpp build takes precedence over any choice. Unset it first.`
    )
  }

  /** Whether a release is an upgrade; one that the settings name always is. */
  function isNewer(tag: string, used: string | undefined): boolean {
    const [offered, present] = [nightlyNumber(tag), nightlyNumber(used)]
    if (!releases.followsLatest || offered === undefined || present === undefined) return tag !== used
    return offered > present
  }

  /** @throws CorralError `runtime_missing` for a release that failed on this machine before */
  async function refuseFailed(runtime: RuntimeDescriptor, { tag }: FoundArchives, previous: Build): Promise<void> {
    const failure = selectionIn(directory).failed?.[releaseId(tag, runtime)]
    if (failure === undefined || failure.machine !== machineFingerprint(await deps.hardware())) return
    throw new CorralError(
      'runtime_missing',
      `${previous.id} stays in use: the newest release, ${tag}, was tried on ${failure.at.slice(0, 10)} and does not ` +
        `work here: ${failure.reason.replace(/\.?$/, '.')} ` +
        `To try it anyway: corral runtime install ${runtime.name} --version ${tag}`
    )
  }

  return {
    async install(request, waiting) {
      if ('archive' in request) {
        const expected = parseDigest(request.sha256)
        const read = readArchiveName(basename(request.archive), deps.kinds(), await deps.hardware())
        const runtime = request.runtime === undefined ? read.runtime : await kindNamed(request.runtime)
        const told = { ...(expected && { expected }), ...(read.tag && { tag: read.tag }), ...(runtime && { runtime }) }
        return await withLock(waiting, waiting => installer.fromArchive(request, told, waiting))
      }
      const runtime = await kindNamed(request.runtime)
      const found = await findArchives(runtime, request.version, waiting)
      return await withLock(waiting, waiting => installer.fromRelease(runtime, found, waiting))
    },

    async use(choice, waiting) {
      refuseWhileNamed()
      if (choice.toLowerCase() === 'auto') {
        await changeSelection(directory, ({ failed }) => ({ ...(failed && { failed }) }))
        setCurrent(undefined)
        return await deps.search(waiting)
      }
      return await withLock(waiting, async waiting => {
        const record = findInstalled(await readRecords(directory), choice, deps.kinds())
        const build = await installer.proveAgain(record, waiting)
        await changeSelection(directory, ({ failed }) => ({ selected: build.id, ...(failed && { failed }) }))
        setCurrent(build)
        log.info({ build: build.id }, `New engines use llama.cpp ${build.id}.`)
        return build
      })
    },

    async upgrade(waiting) {
      refuseWhileNamed()
      const previous = deps.current() ?? (await deps.search(waiting))
      const runtime = await kindNamed(previous.runtime ?? (previous.kind === 'unknown' ? undefined : previous.kind))
      const found = await findArchives(runtime, undefined, waiting)
      if (previous.runtime === runtime.name && !isNewer(found.tag, releaseTag(previous.id))) {
        return { build: previous, previous, changed: false }
      }
      await refuseFailed(runtime, found, previous)
      return await withLock(waiting, async waiting => {
        const build = await installer.fromRelease(runtime, found, waiting).catch(error => {
          if (!(error instanceof CorralError) || error.code !== 'runtime_missing') throw error
          const message = `${error.message.replace(/\.?$/, '.')} ${previous.id} stays in use.`
          throw new CorralError('runtime_missing', message, { cause: error })
        })
        await changeSelection(directory, ({ failed }) => ({
          selected: build.id,
          previous: previous.id,
          trial: build.id,
          ...(failed && { failed })
        }))
        setCurrent(build)
        log.info({ build: build.id, previous: previous.id }, `New engines use llama.cpp ${build.id}.`)
        return { build, previous, changed: true }
      })
    },

    async remove(id) {
      await withLock({}, async () => {
        const records = await readRecords(directory)
        const record = recordOf(records, id)
        const { build } = record
        if (!isOwn(build, directory)) {
          throw new CorralError(
            'invalid_request',
            `corral did not install ${build.id} and does not remove it: it is in ${build.directory}.`
          )
        }
        if (deps.inUse(build.id)) {
          throw new CorralError(
            'runtime_in_use',
            `An engine runs on ${build.id}. Stop the models on it first ("corral ps" lists them, "corral stop <model>").`
          )
        }
        const { selected, previous } = selectionIn(directory)
        if ([deps.current()?.id, selected].includes(build.id) || deps.named?.folder === build.directory) {
          throw new CorralError(
            'runtime_in_use',
            `New engines use ${build.id}. Choose another build first: corral runtime use <build>, or auto.`
          )
        }
        const model = modelThatNeeds(build.id, records, deps.models ?? {})
        if (model !== undefined) {
          throw new CorralError(
            'runtime_in_use',
            `${model} uses ${build.id}, because models.${model}.runtime in config.yaml says so. Change that setting and restart corral first.`
          )
        }
        await removeRecord(directory, record)
        if (previous === build.id) await changeSelection(directory, ({ previous: _, ...others }) => others)
        log.info({ build: build.id }, `Removed llama.cpp ${build.id}.`)
      })
    },

    list() {
      const selection = selectionIn(directory)
      const current = deps.current()
      return recordsNow(directory).map(record => ({
        build: record.build,
        provenAt: record.provenAt,
        size: sizeOf(record),
        state: stateOf(record, selection, current),
        ...(record.failure && { failure: record.failure.reason })
      }))
    },

    start: (build, attempt) => startOnTrial(build, attempt, { ...deps, recordFailure: installer.recordFailure })
  }
}

/** The state of an installed build. Pure. */
export function stateOf(
  { build, failure }: Pick<BuildRecord, 'build' | 'failure'>,
  { selected, previous }: Selection,
  current: Build | undefined
): InstalledBuild['state'] {
  if (build.id === current?.id) return 'in use'
  if (failure) return 'failed'
  if (build.id === selected) return 'selected'
  return build.id === previous ? 'previous' : 'installed'
}

/** The setting `runtime` in the sections of models, by their names. */
export type ModelRuntimes = Readonly<Record<string, { runtime?: string }>>

/** The model whose section means this build and no other working one. Pure. */
export function modelThatNeeds(id: string, records: readonly BuildRecord[], models: ModelRuntimes): string | undefined {
  return Object.keys(models).find(model => {
    const choice = models[model]!.runtime
    if (choice === undefined) return false
    const named = records.filter(({ build }) => build.id.toLowerCase() === choice.toLowerCase())
    const works = records.filter(({ build, failure }) => !failure && matchesChoice(choice, build))
    const meant = named.length > 0 ? named : works
    return meant.length === 1 && meant[0]!.build.id === id
  })
}

function installedText(records: readonly BuildRecord[]): string {
  const ids = records.map(({ build }) => build.id)
  return ids.length > 0 ? `Installed: ${ids.join(', ')}.` : 'None is installed.'
}

/** The record of an id. Pure. @throws CorralError `runtime_not_found` with what is installed */
export function recordOf(records: readonly BuildRecord[], id: string): BuildRecord {
  const record = records.find(({ build }) => build.id.toLowerCase() === id.toLowerCase())
  if (record) return record
  throw new CorralError('runtime_not_found', `No llama.cpp build "${id}" is installed. ${installedText(records)}`, {
    param: 'runtime'
  })
}

const numberOf = ({ build }: BuildRecord) => nightlyNumber(releaseTag(build.id)) ?? -1

/**
 * The record of an id, else the newest build of that kind, failed ones last. Pure.
 * @throws CorralError `runtime_not_found` with what is installed
 */
export function findInstalled(
  records: readonly BuildRecord[],
  choice: string,
  kinds: readonly RuntimeDescriptor[]
): BuildRecord {
  const byId = records.find(({ build }) => build.id.toLowerCase() === choice.toLowerCase())
  if (byId) return byId
  const [newest] = records
    .filter(({ build }) => matchesChoice(choice, build))
    .sort(
      (a, b) =>
        Number(a.failure !== undefined) - Number(b.failure !== undefined) ||
        numberOf(b) - numberOf(a) ||
        b.provenAt.localeCompare(a.provenAt)
    )
  if (newest) return newest
  if (kinds.some(kind => matchesChoice(choice, { runtime: kind.name, kind: kind.kind }))) {
    throw new CorralError(
      'runtime_not_found',
      `No llama.cpp build of the kind "${choice}" is installed. Install one with: corral runtime install ${choice}`,
      { param: 'runtime' }
    )
  }
  throw new CorralError(
    'runtime_not_found',
    `No llama.cpp build "${choice}" is installed, and there is no kind of that name. ${installedText(records)} ` +
      `Kinds are: ${kinds.map(({ name }) => name).join(', ')}.`,
    { param: 'runtime' }
  )
}

/** Errors of a start that the build may have caused. */
const SUSPICIOUS = new Set(['runtime_missing', 'load_failed', 'engine_crashed', 'load_timeout'])

export interface TrialDeps {
  /** Where builds and their records lie. */
  directory: string
  log: { warn(object: object, message: string): void }
  /** Records that a build does not work here. */
  recordFailure(id: string, reason: string): Promise<void>
  /** Sets the build for new engines. */
  setCurrent(build: Build): void
}

/**
 * Starts an engine. If the first start after an upgrade fails, it is tried on the previous build: if that succeeds, the
 * new build is to blame, and corral returns to the previous one for good.
 * @throws what `attempt` throws on the given build
 */
export async function startOnTrial<T>(
  build: Build,
  attempt: (build: Build) => Promise<T>,
  { directory, log, recordFailure, setCurrent }: TrialDeps
): Promise<T> {
  if (selectionIn(directory).trial !== build.id) return await attempt(build)
  try {
    const started = await attempt(build)
    await changeSelection(directory, ({ trial: _, ...others }) => others)
    return started
  } catch (error) {
    const { previous } = selectionIn(directory)
    const former = (await readRecords(directory)).find(record => record.build.id === previous)?.build
    if (!former || !(error instanceof CorralError) || !SUSPICIOUS.has(error.code)) throw error
    const started = await attempt(former).catch(() => {
      // The previous build fails too, so the new one is not to blame.
      throw error
    })
    // Another failed start may have returned to it already.
    if (selectionIn(directory).trial === build.id) {
      const reason = messageOf(error)
      await recordFailure(build.id, reason)
      await changeSelection(directory, ({ failed }) => ({ selected: former.id, ...(failed && { failed }) }))
      setCurrent(former)
      log.warn(
        { failed: build.id, build: former.id, reason },
        `llama.cpp ${build.id} fails where ${former.id} works, so corral uses ${former.id} again. ` +
          '"corral runtime list" shows both.'
      )
    }
    return started
  }
}
