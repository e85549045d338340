import { existsSync } from 'node:fs'
import { mkdir, readdir, readFile, rename, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { findExecutable, runTool, type ToolLog } from '../../../core/system/child-process.ts'

/** An npm package with llama.cpp's source as a git bundle (node-llama-cpp), and how it is fetched. */
export interface SourcePackage {
  name: string
  /** Its exact version. */
  version: string
  /** Where it is unpacked; complete folders from earlier attempts are reused. */
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

/** Fills a folder unless it exists already; an interrupted attempt leaves nothing under its name. */
export async function fillOnce(folder: string, fill: (unfinished: string) => Promise<void>): Promise<void> {
  if (existsSync(folder)) return
  const unfinished = `${folder}.unfinished`
  await rm(unfinished, { recursive: true, force: true })
  await fill(unfinished)
  await rename(unfinished, folder)
}

/** The program and first arguments that run npm: the one on PATH, else the one that comes with this Node. */
function findNpm(env: NodeJS.ProcessEnv): [string, string[]] {
  const beside = dirname(process.execPath)
  const onPath = findExecutable('npm', env, [beside])
  if (onPath) return [onPath, []]
  const script = [beside, join(beside, '..', 'lib')]
    .map(folder => join(folder, 'node_modules', 'npm', 'bin', 'npm-cli.js'))
    .find(path => existsSync(path))
  if (script) return [process.execPath, [script]]
  throw new Error(`npm is needed to fetch llama.cpp's source, and is neither on PATH nor beside ${process.execPath}`)
}

/**
 * Fetches an npm package of the source's version with npm, so that the user's registry, proxy and credentials apply,
 * and unpacks it. Returns its folder.
 */
export async function fetchPackage(
  name: string,
  { version, work, env, log }: SourcePackage,
  signal?: AbortSignal
): Promise<string> {
  const folder = join(work, `${name.replace(/[@/]/g, '-').replace(/^-/, '')}-${version}`)
  await fillOnce(folder, async unfinished => {
    await mkdir(unfinished, { recursive: true })
    const [npm, npmArguments] = findNpm(env)
    const args = ['pack', `${name}@${version}`, '--ignore-scripts', '--loglevel=error']
    await runTool(npm, [...npmArguments, ...args], { cwd: unfinished, env, signal, log })
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

/** Fetches the source of llama.cpp that the package carries. */
export async function fetchSource(options: SourcePackage, { signal, onProgress }: Waiting): Promise<LlamaSource> {
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
    // Line ends unchanged, and no hooks or maintenance from the user's configuration.
    const settings = ['-c', 'core.autocrlf=false', '-c', 'core.hooksPath=/dev/null', '-c', 'gc.auto=0']
    const args = ['clone', '--quiet', join(folder, 'gitRelease.bundle'), unfinished]
    await runTool('git', [...settings, ...args], { cwd: work, env, signal, log })
  })
  return { directory, release: info.tag }
}
