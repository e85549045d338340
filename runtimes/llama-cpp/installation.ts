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
  /** What new engines run on. */
  current(): Build | undefined
  /** Undefined: it is searched for anew. */
  setCurrent(build: Build | undefined): void
  /** The build that new engines run on, searched for where there is none yet. */
  search(waiting: Waiting): Promise<Build>
  /** The folder that the user names, which always counts, and what names it. */
  named?: { folder: string; by: string }
  /** What the sections of models in config.yaml say. */
  models?: ModelRuntimes
  /** Ends all work. */
  stopped: AbortSignal
}

export interface Installation extends Pick<Runtimes, 'install' | 'use' | 'upgrade' | 'remove'> {
  /** All builds that are written down, the one proven last first. */
  list(): InstalledBuild[]
  /** Starts an engine on a build; see `startOnTrial`. */
  start<T>(build: Build, attempt: (build: Build) => Promise<T>): Promise<T>
}

/** Installing, choosing, upgrading and removing builds: one process at a time, and nothing that is not proven counts. */
export function createInstallation(deps: InstallationDeps): Installation {
  const { directory, log, releases, setCurrent } = deps
  const installer = createBuildInstaller(deps)

  /** Runs work with the lock of the builds' directory. */
  async function alone<T>(waiting: Waiting, work: (waiting: Required<Waiting>) => Promise<T>): Promise<T> {
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

  /** The kind of build that a name means, else the best one. */
  async function kindNamed(name: string | undefined): Promise<RuntimeDescriptor> {
    const kinds = deps.kinds()
    const ranking = await deps.ranking()
    const best = ranking.find(candidate => (name === undefined ? candidate.usable : matchesChoice(name, candidate)))
    const found = kinds.find(kind => kind.name === best?.runtime)
    if (found) return found
    if (name === undefined) {
      throw new CorralError(
        'runtime_missing',
        'No kind of llama.cpp build can work on this machine; "corral doctor" tells why.'
      )
    }
    throw new CorralError(
      'runtime_not_found',
      `There is no kind of llama.cpp build named "${name}". There are: ${kinds.map(kind => kind.name).join(', ')}.`,
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
      `${version === undefined ? 'No release' : `Release ${version}`} of llama.cpp has an archive of ${runtime.name} ` +
        `for ${hardware.platform} ${hardware.arch} that works with its drivers. "corral doctor" shows what there is.`,
      { param: 'version' }
    )
  }

  /** @throws CorralError where the user names a folder, which counts whatever is chosen */
  function refuseWhileNamed(): void {
    if (!deps.named) return
    const { by, folder } = deps.named
    throw new CorralError(
      'invalid_request',
      `${by} names ${folder}, and that llama.cpp build is used whatever is chosen here. Unset it first.`
    )
  }

  /** Whether a release is worth an upgrade; one that the settings name is, whichever is in use. */
  function isNewer(tag: string, used: string | undefined): boolean {
    const [offered, present] = [nightlyNumber(tag), nightlyNumber(used)]
    if (!releases.followsLatest || offered === undefined || present === undefined) return tag !== used
    return offered > present
  }

  /** @throws CorralError `runtime_missing` for a release that was tried on this machine and failed */
  async function refuseFailed(runtime: RuntimeDescriptor, { tag }: FoundArchives, previous: Build): Promise<void> {
    const failure = selectionIn(directory).failed?.[releaseId(tag, runtime)]
    if (failure === undefined || failure.machine !== machineFingerprint(await deps.hardware())) return
    throw new CorralError(
      'runtime_missing',
      `${previous.id} stays in use: the newest release, ${tag}, was tried on ${failure.at.slice(0, 10)} and does not ` +
        `work here: ${failure.reason.replace(/\.?$/, '.')} ` +
        `To try it all the same: corral runtime install ${runtime.name} --version ${tag}`
    )
  }

  return {
    async install(request, waiting) {
      if ('archive' in request) {
        const expected = parseDigest(request.sha256)
        const read = readArchiveName(basename(request.archive), deps.kinds(), await deps.hardware())
        const runtime = request.runtime === undefined ? read.runtime : await kindNamed(request.runtime)
        const told = { ...(expected && { expected }), ...(read.tag && { tag: read.tag }), ...(runtime && { runtime }) }
        return await alone(waiting, waiting => installer.fromArchive(request, told, waiting))
      }
      const runtime = await kindNamed(request.runtime)
      const found = await findArchives(runtime, request.version, waiting)
      return await alone(waiting, waiting => installer.fromRelease(runtime, found, waiting))
    },

    async use(choice, waiting) {
      refuseWhileNamed()
      if (choice.toLowerCase() === 'auto') {
        await changeSelection(directory, ({ failed }) => ({ ...(failed && { failed }) }))
        setCurrent(undefined)
        return await deps.search(waiting)
      }
      return await alone(waiting, async waiting => {
        const record = findInstalled(await readRecords(directory), choice, deps.kinds())
        const build = await installer.again(record, waiting)
        await changeSelection(directory, ({ failed }) => ({ selected: build.id, ...(failed && { failed }) }))
        setCurrent(build)
        log.info({ build: build.id }, `New engines run on llama.cpp ${build.id}.`)
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
      return await alone(waiting, async waiting => {
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
        log.info({ build: build.id, previous: previous.id }, `New engines run on llama.cpp ${build.id}.`)
        return { build, previous, changed: true }
      })
    },

    async remove(id) {
      await alone({}, async () => {
        const records = await readRecords(directory)
        const record = recordOf(records, id)
        const { build } = record
        if (!isOwn(build, directory)) {
          throw new CorralError(
            'invalid_request',
            `corral did not install ${build.id}: it lies in ${build.directory}, and corral only uses it.`
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
            `New engines run on ${build.id}. Choose another build first: corral runtime use <build>, or auto.`
          )
        }
        const model = modelThatNeeds(build.id, records, deps.models ?? {})
        if (model !== undefined) {
          throw new CorralError(
            'runtime_in_use',
            `${model} runs on ${build.id}: models.${model}.runtime in config.yaml says so. Change that setting and restart corral first.`
          )
        }
        await removeRecord(directory, record)
        if (previous === build.id) await changeSelection(directory, ({ previous: _, ...others }) => others)
        log.info({ build: build.id }, `llama.cpp ${build.id} is removed.`)
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

    start: (build, attempt) => startOnTrial(build, attempt, { ...deps, remember: installer.remember })
  }
}

/** What an installed build is for corral now. Pure. */
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

/** The model whose section means this build, and no other one that works. Pure. */
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
  return ids.length > 0 ? `Installed are: ${ids.join(', ')}.` : 'None is installed.'
}

/** The record of an id. Pure. @throws CorralError `runtime_not_found`, saying what there is */
export function recordOf(records: readonly BuildRecord[], id: string): BuildRecord {
  const record = records.find(({ build }) => build.id.toLowerCase() === id.toLowerCase())
  if (record) return record
  throw new CorralError('runtime_not_found', `No llama.cpp build "${id}" is installed. ${installedText(records)}`, {
    param: 'runtime'
  })
}

const numberOf = ({ build }: BuildRecord) => nightlyNumber(releaseTag(build.id)) ?? -1

/**
 * The record that a name means: an id, else the newest build of that kind, those that failed last. Pure.
 * @throws CorralError `runtime_not_found`, saying what there is
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
      `No llama.cpp build of the kind "${choice}" is installed. Get one with: corral runtime install ${choice}`,
      { param: 'runtime' }
    )
  }
  throw new CorralError(
    'runtime_not_found',
    `No llama.cpp build "${choice}" is installed, and no kind is named so. ${installedText(records)} ` +
      `Kinds are: ${kinds.map(({ name }) => name).join(', ')}.`,
    { param: 'runtime' }
  )
}

/** Failures of a start that may be the build's. */
const SUSPICIOUS = new Set(['runtime_missing', 'load_failed', 'engine_crashed', 'load_timeout'])

export interface TrialDeps {
  /** Where builds and their records lie. */
  directory: string
  log: { warn(object: object, message: string): void }
  /** Writes down that a build does not work here. */
  remember(id: string, reason: string): Promise<void>
  /** What new engines run on from now on. */
  setCurrent(build: Build): void
}

/**
 * Starts an engine. On a build that an upgrade brought, and that has started none yet, a failure is tried again on the
 * former build: when that one manages it, the new one is to blame, and corral returns to the former one for good.
 * @throws what `attempt` throws on the given build
 */
export async function startOnTrial<T>(
  build: Build,
  attempt: (build: Build) => Promise<T>,
  { directory, log, remember, setCurrent }: TrialDeps
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
      // It is not the build, then: the former one does not manage it either.
      throw error
    })
    // Another start that failed at the same time may have returned already.
    if (selectionIn(directory).trial === build.id) {
      const reason = messageOf(error)
      await remember(build.id, reason)
      await changeSelection(directory, ({ failed }) => ({ selected: former.id, ...(failed && { failed }) }))
      setCurrent(former)
      log.warn(
        { failed: build.id, build: former.id, reason },
        `llama.cpp ${build.id} fails where ${former.id} works: corral has returned to ${former.id}. ` +
          '"corral runtime list" shows both.'
      )
    }
    return started
  }
}
