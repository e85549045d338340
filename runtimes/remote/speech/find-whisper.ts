import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { findExecutable, runTool } from '../../../core/system/child-process.ts'
import { compile, findToolChain } from '../../../core/system/compile.ts'
import { type ReleaseAsset, ReleaseServer } from '../../../core/system/release-server.ts'
import { unpackArchive, unpackTar } from '../../../core/system/unpack.ts'
import SOURCE from './packages/whisper-source.json' with { type: 'json' }
import type { SpeechOptions } from './speech-options.ts'

const PROGRAM = process.platform === 'win32' ? 'whisper-server.exe' : 'whisper-server'
const REPOSITORY = 'ggml-org/whisper.cpp'
/** Official archives with the server for the processor. There are none for macOS. */
const ARCHIVES: Partial<Record<string, string>> = {
  'linux x64': 'whisper-bin-ubuntu-x64.tar.gz',
  'linux arm64': 'whisper-bin-ubuntu-arm64.tar.gz',
  'win32 x64': 'whisper-bin-x64.zip'
}
const CHECK_MS = 20_000
/** Prefix of folders that a crash may leave behind. */
const UNFINISHED = '.unfinished-'

export interface FindOptions {
  options: SpeechOptions
  /** Folder for what corral installs. */
  directory: string
  env: NodeJS.ProcessEnv
  log: FastifyBaseLogger
}

/**
 * Returns the path of whisper.cpp's server: the configured one, the one on PATH, an installed one, that of the newest
 * release, or one that is compiled now. Archives are verified by their digests.
 * @throws CorralError `runtime_missing` with the reasons
 */
export async function findWhisper({ options, directory, env, log }: FindOptions, waiting: Waiting): Promise<string> {
  const { signal = new AbortController().signal, onProgress } = waiting
  const named = options.whisper_server
  const target = join(directory, 'whisper.cpp')
  const installed = join(target, PROGRAM)
  const present =
    findExecutable(named || 'whisper-server', env) ?? (existsSync(installed) && !named ? installed : undefined)
  if (present) return present
  if (named) {
    const what = `speech.whisper_server names ${named}, which is not an executable program.`
    throw new CorralError('runtime_missing', `${what} Correct it in config.yaml, or leave it empty.`)
  }
  await mkdir(directory, { recursive: true })
  const left = (await readdir(directory)).filter(name => name.startsWith(UNFINISHED))
  for (const name of left) await rm(join(directory, name), { recursive: true, force: true })
  const server = new ReleaseServer({
    api_url: options.release_api,
    download_url: options.release_mirror,
    repository: REPOSITORY,
    connect_timeout: '3s',
    advice: ', or set speech.release_api to a mirror'
  })
  const reasons: string[] = []
  for (const install of [fromRelease, fromSource]) {
    const work = await mkdtemp(join(directory, UNFINISHED))
    try {
      const made = await install(work)
      await runTool(join(made, PROGRAM), ['--help'], { env, signal, log, timeout: CHECK_MS })
      await rename(made, target)
      return installed
    } catch (error) {
      signal.throwIfAborted()
      reasons.push(errorMessage(error).replace(/\.$/, ''))
    } finally {
      await rm(work, { recursive: true, force: true, maxRetries: 3 })
    }
  }
  const message = `The server of whisper.cpp cannot be installed: ${reasons.join('; ')}. Install it, and name it with speech.whisper_server.`
  throw new CorralError('runtime_missing', message)

  async function fromRelease(work: string): Promise<string> {
    const wanted = ARCHIVES[`${process.platform} ${process.arch}`]
    const release = wanted === undefined ? undefined : await server.latest(signal)
    const asset = release?.assets.find(({ name }) => name === wanted)
    if (!asset) throw new Error(`the newest release has no archive for ${process.platform} ${process.arch}`)
    const folder = join(work, 'unpacked')
    await mkdir(folder)
    await unpackArchive(await fetched(asset, work), folder)
    const program = (await readdir(folder, { recursive: true })).find(path => path.endsWith(PROGRAM))
    if (program === undefined) throw new Error(`${asset.name} has no ${PROGRAM}`)
    return join(folder, program, '..')
  }

  async function fromSource(work: string): Promise<string> {
    const subject = `whisper.cpp ${SOURCE.version}`
    const tools = await findToolChain(subject, env)
    await unpackTar(await fetched(SOURCE.asset, work), work, path => path.split('/')[1] === SOURCE.folder)
    const made = join(work, 'made')
    const settings = { BUILD_SHARED_LIBS: 'OFF', WHISPER_BUILD_TESTS: 'OFF' }
    const places = { work: join(work, 'build'), target: made }
    const build = { subject, tools, ...places, isResult: (name: string) => name === PROGRAM, env, log }
    await compile(join(work, SOURCE.folder), () => settings, ['whisper-server'], build, waiting)
    return made
  }

  async function fetched(asset: ReleaseAsset, work: string): Promise<string> {
    const file = join(work, asset.name)
    const { size: total } = asset
    const onBytes = (completed: number) =>
      onProgress?.({ phase: 'downloading', subject: 'whisper.cpp', fraction: completed / total, completed, total })
    await server.download(asset, file, onBytes, signal)
    return file
  }
}
