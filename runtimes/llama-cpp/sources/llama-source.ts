import { createWriteStream, existsSync } from 'node:fs'
import { cp, mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import type { Build, ConversionTools } from '../../../core/contracts/builds.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { errorMessage } from '../../../core/errors.ts'
import { findExecutable, runTool, type ToolLog } from '../../../core/system/child-process.ts'
import type { ReleaseServer } from '../../../core/system/release-server.ts'
import { unpackTar } from '../../../core/system/unpack.ts'
import { unfinishedFolder, WORK_FOLDER } from '../builds-directory.ts'
import { releaseTag } from '../kinds/scores.ts'

/** An npm package with llama.cpp's source as a git bundle (node-llama-cpp), and how it is fetched. */
export interface SourcePackage {
  name: string
  version: string
  /** Where it is unpacked. Complete folders from earlier attempts are reused. */
  work: string
  env: NodeJS.ProcessEnv
  log: ToolLog
}

export type LlamaSource = Awaited<ReturnType<typeof fetchSource>>

/** Fills a folder unless it already exists. An interrupted attempt leaves nothing under this name. */
export async function fillOnce(folder: string, fill: (unfinished: string) => Promise<void>): Promise<void> {
  if (existsSync(folder)) return
  const unfinished = `${folder}.unfinished`
  await rm(unfinished, { recursive: true, force: true })
  await fill(unfinished)
  await rename(unfinished, folder)
}

/** Returns the program and first arguments that run npm from PATH, or the npm that comes with this Node. */
function findNpm(env: NodeJS.ProcessEnv): [string, string[]] {
  const beside = dirname(process.execPath)
  const onPath = findExecutable('npm', env, [beside])
  if (onPath) return [onPath, []]
  const script = [beside, join(beside, '..', 'lib')]
    .map(folder => join(folder, 'node_modules', 'npm', 'bin', 'npm-cli.js'))
    .find(path => existsSync(path))
  if (script) return [process.execPath, [script]]
  throw new Error(`npm is needed to fetch llama.cpp's source, but is neither on PATH nor beside ${process.execPath}`)
}

/** Fetches an npm package with npm, so that the user's registry, proxy and credentials apply. */
export async function fetchPackage(name: string, { version, work, env, log }: SourcePackage, signal?: AbortSignal) {
  const folder = join(work, `${name.replace(/[@/]/g, '-').replace(/^-/, '')}-${version}`)
  await fillOnce(folder, async unfinished => {
    await mkdir(unfinished, { recursive: true })
    const [npm, npmArguments] = findNpm(env)
    const args = ['pack', `${name}@${version}`, '--ignore-scripts', '--loglevel=error']
    await runTool(npm, [...npmArguments, ...args], { cwd: unfinished, env, purpose: 'packages', signal, log })
    const archive = (await readdir(unfinished)).find(file => file.endsWith('.tgz'))
    if (archive === undefined) throw new Error(`npm pack ${name}@${version} wrote no archive`)
    const file = join(unfinished, archive)
    const tar = await import('tar')
    await tar.x({ file, cwd: unfinished, strict: true, preserveOwner: false, strip: 1 })
    await rm(file)
    signal?.throwIfAborted()
  })
  return folder
}

export async function fetchSource(options: SourcePackage, { signal, onProgress }: Waiting) {
  const { name, version, work, env, log } = options
  onProgress?.({ phase: 'downloading', subject: `${name} ${version}` })
  const folder = join(await fetchPackage(name, options, signal), 'llama')
  const info = JSON.parse(await readFile(join(folder, 'llama.cpp.info.json'), 'utf8')) as { tag?: unknown }
  if (typeof info.tag !== 'string' || !/^[\w.-]+$/.test(info.tag)) {
    throw new Error(`${name} ${version} does not say which release of llama.cpp it carries`)
  }
  const directory = join(work, `llama.cpp-${info.tag}`)
  await fillOnce(directory, async unfinished => {
    onProgress?.({ phase: 'unpacking', subject: `llama.cpp ${info.tag}` })
    // Keeps line ends unchanged, and disables hooks and maintenance from the user's configuration.
    const settings = ['-c', 'core.autocrlf=false', '-c', 'core.hooksPath=/dev/null', '-c', 'gc.auto=0']
    const args = ['clone', '--quiet', join(folder, 'gitRelease.bundle'), unfinished]
    await runTool('git', [...settings, ...args], { cwd: work, env, signal, log })
  })
  return { directory, release: info.tag }
}

export type Converter = Pick<ConversionTools, 'directory' | 'version' | 'mismatch'>

/** Finds or fetches the converter for a build. @throws Error if there is none */
export type FindConverter = (build: Build, waiting: Waiting) => Promise<Converter>

const SCRIPT = 'convert_hf_to_gguf.py'
const PARTS = [SCRIPT, 'conversion', 'gguf-py', 'requirements', 'requirements.txt', 'LICENSE']

const isConverter = (folder: string) =>
  [SCRIPT, 'gguf-py', 'requirements'].every(name => existsSync(join(folder, name)))

/** Returns the folder of a build's own converter, or undefined if it would have to be fetched. */
export function presentConverter({ converter, directory }: Build): string | undefined {
  // In the build's folder, or in the source tree in which it was compiled.
  const places = [join(directory, 'converter'), directory, join(directory, '..'), join(directory, '..', '..')]
  return [...(converter ? [converter.directory] : []), ...places].find(isConverter)
}

/** Finds the converter of the engine's own version if possible, otherwise the converter of the pinned source. */
export function createFindConverter(options: {
  directory: string
  server: Pick<ReleaseServer, 'source'>
  source: Omit<SourcePackage, 'work'>
}): FindConverter {
  const { directory, server, source } = options
  return async (build, waiting) => {
    if (build.converter && isConverter(build.converter.directory)) return build.converter
    const tag = releaseTag(build.id)
    const present = presentConverter(build)
    if (present !== undefined) return { directory: present, version: tag ?? build.version }
    const own = join(build.directory, 'converter')
    const reasons: string[] = []
    if (tag !== undefined) {
      try {
        await fetchReleaseConverter(server, { tag, directory, target: own }, waiting)
        return { directory: own, version: tag }
      } catch (error) {
        waiting.signal?.throwIfAborted()
        reasons.push(errorMessage(error))
      }
    }
    try {
      const pinned = await fetchConverter(directory, source, waiting)
      if (pinned.version.replace(/^v/, '') === build.version.split(/[ -]/)[0]) return pinned
      const why = reasons.map(reason => ` The engine's own is unavailable: ${reason}.`).join('')
      const mismatch = `Models are converted by the converter of llama.cpp ${pinned.version}, while the engine is ${build.version}.`
      return { ...pinned, mismatch: mismatch + why }
    } catch (error) {
      waiting.signal?.throwIfAborted()
      throw new Error([...reasons, errorMessage(error)].join('; '), { cause: error })
    }
  }
}

/** Puts the converter of a release, from its source archive, into `target`. @throws Error if it is unavailable */
async function fetchReleaseConverter(
  server: Pick<ReleaseServer, 'source'>,
  { tag, directory, target }: { tag: string; directory: string; target: string },
  { signal = new AbortController().signal, onProgress }: Waiting
): Promise<void> {
  const folder = await unfinishedFolder(directory)
  try {
    const archive = join(folder, 'source.tar.gz')
    const subject = `source of llama.cpp ${tag}`
    onProgress?.({ phase: 'downloading', subject })
    await pipeline(await server.source(tag, signal), createWriteStream(archive), { signal })
    onProgress?.({ phase: 'unpacking', subject })
    const unpacked = await unfinishedFolder(folder)
    await unpackTar(archive, unpacked, path => PARTS.includes(path.split('/')[1] ?? ''))
    signal.throwIfAborted()
    await rm(target, { recursive: true, force: true })
    await rename(unpacked, target)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

/** Copies the converter from llama.cpp's source tree. Returns whether there is one. */
export async function copyConverter(source: LlamaSource, target: string): Promise<boolean> {
  if (!existsSync(join(source.directory, SCRIPT))) return false
  await mkdir(target, { recursive: true })
  for (const name of PARTS) {
    const from = join(source.directory, name)
    if (existsSync(from)) await cp(from, join(target, name), { recursive: true })
  }
  return true
}

/** Fetches the converter of the pinned source, and stores it in `directory` under its version. */
export async function fetchConverter(directory: string, options: Omit<SourcePackage, 'work'>, waiting: Waiting = {}) {
  const kept = join(directory, `converter-${options.name.replace(/[@/]/g, '-')}-${options.version}`)
  await fillOnce(kept, async unfinished => {
    const work = join(directory, `${WORK_FOLDER}-converter`)
    await mkdir(work, { recursive: true })
    const source = await fetchSource({ ...options, work }, waiting)
    if (!(await copyConverter(source, unfinished))) throw new Error(`llama.cpp ${source.release} has no converter`)
    await writeFile(join(unfinished, 'RELEASE'), `${source.release}\n`)
    await rm(work, { recursive: true, force: true })
  })
  return { directory: kept, version: (await readFile(join(kept, 'RELEASE'), 'utf8')).trim() }
}
