import { basename } from 'node:path'
import type {
  Build,
  InstalledBuild,
  RankedCandidate,
  RuntimeDescriptor,
  Runtimes
} from '../../core/contracts/builds.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import { CorralError } from '../../core/errors.ts'
import { createBuildInstaller, type InstallerDeps } from './build-installer.ts'
import { isMeant } from './build-place.ts'
import { isOwn, readRecords, recordsNow, removeRecord, sizeOf } from './build-records.ts'
import { lockDirectory, removeLeftovers } from './builds-directory.ts'
import { machineMark } from './failed-attempts.ts'
import { findInstalled, type ModelRuntimes, modelThatNeeds, recordOf, stateOf } from './installed-builds.ts'
import { changeSelection, selectionIn } from './selection.ts'
import { parseDigest, readArchiveName } from './sources/archive.ts'
import { nightlyNumber, releaseId, releaseTag } from './sources/release.ts'
import type { FoundArchives } from './sources/releases.ts'
import { startOnTrial } from './upgrade-trial.ts'

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
    const best = ranking.find(candidate => (name === undefined ? candidate.usable : isMeant(name, candidate)))
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
    if (failure === undefined || failure.machine !== machineMark(await deps.hardware())) return
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
