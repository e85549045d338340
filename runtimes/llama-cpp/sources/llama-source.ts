import { existsSync } from 'node:fs'
import { cp, mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { findExecutable, runTool, type ToolLog } from '../../../core/system/child-process.ts'

export interface SourcePackage {
  /** An npm package with llama.cpp's source as a git bundle: node-llama-cpp. */
  name: string
  /** Its exact version. */
  version: string
}

export interface FetchOptions extends SourcePackage {
  /** Where it is unpacked; what is whole there from an earlier time is used. */
  work: string
  env: NodeJS.ProcessEnv
  log: ToolLog
}

/** llama.cpp's source tree. */
export interface LlamaSource {
  directory: string
  /** Release tag, such as `v0.5.0`. */
  release: string
}

/** The program and first arguments that run npm: the one on PATH, else the one that came with this Node. */
function findNpm(env: NodeJS.ProcessEnv): [string, string[]] {
  const beside = dirname(process.execPath)
  const onPath = findExecutable('npm', env, [beside])
  if (onPath) return [onPath, []]
  const scripts = [
    join(beside, 'node_modules', 'npm', 'bin', 'npm-cli.js'),
    join(beside, '..', 'lib', 'node_modules', 'npm', 'bin', 'npm-cli.js')
  ]
  const script = scripts.find(path => existsSync(path))
  if (script) return [process.execPath, [script]]
  throw new Error(`npm is needed to fetch llama.cpp's source, and is neither on PATH nor beside ${process.execPath}`)
}

/**
 * Fetches an npm package through npm, so that the user's registry, proxy and credentials count, and unpacks it.
 * Returns its folder.
 */
export async function fetchPackage(spec: SourcePackage, options: FetchOptions, signal?: AbortSignal): Promise<string> {
  const { work, env, log } = options
  const folder = join(work, `${spec.name.replace(/[@/]/g, '-').replace(/^-/, '')}-${spec.version}`)
  if (existsSync(folder)) return folder
  const unfinished = `${folder}.unfinished`
  await rm(unfinished, { recursive: true, force: true })
  await mkdir(unfinished, { recursive: true })
  const [npm, npmArguments] = findNpm(env)
  const args = ['pack', `${spec.name}@${spec.version}`, '--ignore-scripts', '--loglevel=error']
  await runTool(npm, [...npmArguments, ...args], { cwd: unfinished, env, signal, log })
  const archive = (await readdir(unfinished)).find(name => name.endsWith('.tgz'))
  if (archive === undefined) throw new Error(`npm pack ${spec.name}@${spec.version} brought no archive`)
  const tar = await import('tar')
  await tar.x({ file: join(unfinished, archive), cwd: unfinished, strict: true, preserveOwner: false })
  signal?.throwIfAborted()
  await rename(join(unfinished, 'package'), folder)
  await rm(unfinished, { recursive: true, force: true })
  return folder
}

/** Fetches llama.cpp's source as the package carries it. */
export async function fetchSource(options: FetchOptions, { signal, onProgress }: Waiting): Promise<LlamaSource> {
  const { work, env, log } = options
  onProgress?.({ phase: 'downloading', subject: `${options.name} ${options.version}` })
  const folder = join(await fetchPackage(options, options, signal), 'llama')
  const info = JSON.parse(await readFile(join(folder, 'llama.cpp.info.json'), 'utf8')) as { tag?: unknown }
  if (typeof info.tag !== 'string' || !/^[\w.-]+$/.test(info.tag)) {
    throw new Error(`${options.name} ${options.version} does not say which release of llama.cpp it holds`)
  }
  const directory = join(work, `llama.cpp-${info.tag}`)
  if (!existsSync(directory)) {
    onProgress?.({ phase: 'unpacking', subject: `llama.cpp ${info.tag}` })
    const unfinished = `${directory}.unfinished`
    await rm(unfinished, { recursive: true, force: true })
    // Line ends as they are, and no hooks or maintenance from the user's configuration.
    const settings = ['-c', 'core.autocrlf=false', '-c', 'core.hooksPath=/dev/null', '-c', 'gc.auto=0']
    const args = ['clone', '--quiet', join(folder, 'gitRelease.bundle'), unfinished]
    await runTool('git', [...settings, ...args], { cwd: work, env, signal, log })
    await rename(unfinished, directory)
  }
  return { directory, release: info.tag }
}

/** What the converter consists of, in the source tree. */
export const CONVERTER = [
  'convert_hf_to_gguf.py',
  'conversion',
  'gguf-py',
  'requirements',
  'requirements.txt',
  'LICENSE'
]

/** Copies llama.cpp's converter out of its source tree. Returns whether there is one. */
export async function copyConverter(source: LlamaSource, target: string): Promise<boolean> {
  if (!existsSync(join(source.directory, CONVERTER[0]!))) return false
  await mkdir(target, { recursive: true })
  for (const name of CONVERTER) {
    const from = join(source.directory, name)
    if (existsSync(from)) await cp(from, join(target, name), { recursive: true })
  }
  return true
}

/**
 * The converter of the pinned source without compiling anything, for builds that bring none. Kept in `directory`
 * under its version.
 */
export async function fetchConverter(
  options: FetchOptions & { directory: string },
  waiting: Waiting = {}
): Promise<{ directory: string; version: string }> {
  const kept = join(options.directory, `converter-${options.name.replace(/[@/]/g, '-')}-${options.version}`)
  const release = join(kept, 'RELEASE')
  if (!existsSync(kept)) {
    await mkdir(options.work, { recursive: true })
    const source = await fetchSource(options, waiting)
    const unfinished = `${kept}.unfinished`
    await rm(unfinished, { recursive: true, force: true })
    if (!(await copyConverter(source, unfinished))) throw new Error(`llama.cpp ${source.release} has no converter`)
    await writeFile(join(unfinished, 'RELEASE'), `${source.release}\n`)
    await rename(unfinished, kept)
    await rm(options.work, { recursive: true, force: true })
  }
  return { directory: kept, version: (await readFile(release, 'utf8')).trim() }
}
