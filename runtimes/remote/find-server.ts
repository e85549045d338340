import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import type { Waiting } from '../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../core/errors.ts'
import { findExecutable, runTool } from '../../core/system/child-process.ts'
import { compile, findToolChain } from '../../core/system/compile.ts'
import { recordDigests } from '../../core/system/file-digests.ts'
import { type ReleaseAsset, ReleaseServer } from '../../core/system/release-server.ts'
import { unpackArchive, unpackTar } from '../../core/system/unpack.ts'

/** A server program that corral installs. */
export interface ServerProgram {
  /** The name that people know. */
  title: string
  /** Name of the executable, without `.exe`. */
  executable: string
  /** The setting that names the executable, such as `speech.whisper_server`. */
  setting: string
  /** Repository on GitHub with releases. */
  repository: string
  /** Matches the archive of a release with the program for the processor. Undefined without one for this platform. */
  archive: RegExp | undefined
  /** An archive with the source in `folder`, and settings of CMake. */
  source: { version: string; folder: string; asset: ReleaseAsset }
  settings: Record<string, string>
}

const CHECK_MS = 20_000
/** Prefix of folders that a crash may leave behind. */
const UNFINISHED = '.unfinished-'

export interface FindOptions {
  /** The configured executable; may be empty. */
  named: string
  release: { release_api: string; release_mirror: string }
  /** Folder for what corral installs. */
  directory: string
  env: NodeJS.ProcessEnv
  log: FastifyBaseLogger
}

/**
 * Returns the path of a server: the configured one, the one on PATH, an installed one, that of the newest release, or one
 * that is compiled now. Archives are verified by their digests.
 * @throws CorralError `runtime_missing` with the reasons
 */
export async function findServer(
  program: ServerProgram,
  { named, release, directory, env, log }: FindOptions,
  waiting: Waiting
): Promise<string> {
  const { title, executable, setting, source } = program
  const { signal = new AbortController().signal, onProgress } = waiting
  const fileName = process.platform === 'win32' ? `${executable}.exe` : executable
  const target = join(directory, title)
  const installed = join(target, fileName)
  const present = findExecutable(named || executable, env) ?? (existsSync(installed) && !named ? installed : undefined)
  if (present) return present
  if (named) {
    const what = `${setting} names ${named}, which is not an executable program.`
    throw new CorralError('runtime_missing', `${what} Correct it in config.yaml, or leave it empty.`)
  }
  await mkdir(directory, { recursive: true })
  const left = (await readdir(directory)).filter(name => name.startsWith(UNFINISHED))
  for (const name of left) await rm(join(directory, name), { recursive: true, force: true })
  const server = new ReleaseServer({
    api_url: release.release_api,
    download_url: release.release_mirror,
    repository: program.repository,
    connect_timeout: '3s',
    advice: `, or set ${setting.replace(/\..*/, '.release_api')} to a mirror`
  })
  const reasons: string[] = []
  for (const install of [fromRelease, fromSource]) {
    const work = await mkdtemp(join(directory, UNFINISHED))
    try {
      const made = await install(work)
      await runTool(join(made, fileName), ['--help'], { env, signal, log, timeout: CHECK_MS })
      await recordDigests(made, signal)
      await rename(made, target)
      return installed
    } catch (error) {
      signal.throwIfAborted()
      reasons.push(errorMessage(error).replace(/\.$/, ''))
    } finally {
      await rm(work, { recursive: true, force: true, maxRetries: 3 })
    }
  }
  const message = `The server of ${title} cannot be installed: ${reasons.join('; ')}. Install it, and name it with ${setting}.`
  throw new CorralError('runtime_missing', message)

  async function fromRelease(work: string): Promise<string> {
    const { archive } = program
    const asset = archive && (await server.latest(signal))?.assets.find(({ name }) => archive.test(name))
    if (!asset) throw new Error(`the newest release has no archive for ${process.platform} ${process.arch}`)
    const folder = join(work, 'unpacked')
    await mkdir(folder)
    await unpackArchive(await fetched(asset, work), folder)
    const found = (await readdir(folder, { recursive: true })).find(path => basename(path) === fileName)
    if (found === undefined) throw new Error(`${asset.name} has no ${fileName}`)
    return dirname(join(folder, found))
  }

  async function fromSource(work: string): Promise<string> {
    const subject = `${title} ${source.version}`
    const tools = await findToolChain(subject, env)
    await unpackTar(await fetched(source.asset, work), work, path =>
      path.slice(path.indexOf('/') + 1).startsWith(`${source.folder}/`)
    )
    const made = join(work, 'made')
    const places = { work: join(work, 'build'), target: made }
    const build = { subject, tools, ...places, isResult: (name: string) => name === fileName, env, log }
    await compile(join(work, source.folder), () => program.settings, [executable], build, waiting)
    return made
  }

  async function fetched(asset: ReleaseAsset, work: string): Promise<string> {
    const file = join(work, asset.name)
    const { size: total } = asset
    const onBytes = (completed: number) =>
      onProgress?.({ phase: 'downloading', subject: title, fraction: completed / total, completed, total })
    await server.download(asset, file, onBytes, signal)
    return file
  }
}
