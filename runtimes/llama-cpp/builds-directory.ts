import { randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, readdir, rm } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { check, lock } from 'proper-lockfile'
import type { Build } from '../../core/contracts/builds.ts'
import { isSystemError } from '../../core/errors.ts'
import { findExecutable } from '../../core/system/child-process.ts'
import { processStartTime } from '../../core/system/processes.ts'
import { readRecords } from './build-records.ts'
import type { BuildsLog } from './builds-context.ts'

/** Folder for work in the builds' directory; complete parts of it are reused. */
export const WORK_FOLDER = 'work'
/** Milliseconds after which the lock of a dead process is taken over. */
const LOCK_STALE = 10_000
const LOCK_RETRY = 500

/** Unfinished folders of this process: in containers an earlier process may have had the same id. */
const own = new Set<string>()

/** Makes a folder for unfinished work in the builds' directory; it is renamed when complete. */
export async function unfinishedFolder(directory: string): Promise<string> {
  const folder = join(directory, `unfinished-${process.pid}-${randomUUID().slice(0, 8)}`)
  own.add(folder)
  await mkdir(folder, { recursive: true })
  return folder
}

/** Whether a process still uses an unfinished folder: converters are fetched without the lock. */
async function isUsed(folder: string): Promise<boolean> {
  const pid = Number(/^unfinished-(\d+)-/.exec(basename(folder))?.[1])
  return pid === process.pid ? own.has(folder) : (await processStartTime(pid)) !== undefined
}

/**
 * Locks the directory against other processes and waits if one has the lock.
 * @param onWait called before waiting
 */
export async function lockDirectory(
  directory: string,
  signal: AbortSignal,
  log: Pick<BuildsLog, 'info' | 'warn'>,
  onWait?: () => void
): Promise<() => Promise<void>> {
  await mkdir(directory, { recursive: true })
  for (let waiting = false; ; ) {
    signal.throwIfAborted()
    try {
      let lost: Error | undefined
      const release = await lock(directory, {
        stale: LOCK_STALE,
        onCompromised: error => {
          lost = error
          log.warn(
            { reason: error.message },
            'The lock of the llama.cpp builds was lost: this process was suspended for too long.'
          )
        }
      })
      return async () => {
        if (!lost) await release()
      }
    } catch (error) {
      if (!isSystemError(error, 'ELOCKED')) throw error
      if (!waiting) {
        log.info({ directory }, 'Waiting for another process that is installing a llama.cpp build in this directory.')
        onWait?.()
      }
      waiting = true
      while (await check(directory, { stale: LOCK_STALE })) {
        await sleep(LOCK_RETRY, undefined, { signal }).catch(() => signal.throwIfAborted())
      }
    }
  }
}

/** Removes what an interrupted search left: folders that are neither recorded builds nor work in progress or for reuse. */
export async function removeLeftovers(directory: string): Promise<void> {
  const kept = new Set(readRecords(directory).map(record => record.build.directory))
  for (const entry of await readdir(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name)
    if (!entry.isDirectory() || kept.has(path)) continue
    if (entry.name.startsWith(WORK_FOLDER) || entry.name.startsWith('converter-') || (await isUsed(path))) continue
    await rm(path, { recursive: true, force: true })
  }
}

/** The programs of a llama.cpp build that corral uses, without file extension. */
export const PROGRAMS = {
  server: 'llama-server',
  quantize: 'llama-quantize',
  ggufSplit: 'llama-gguf-split',
  fitParams: 'llama-fit-params',
  rpcServer: 'ggml-rpc-server'
} as const

const EXTENSION = process.platform === 'win32' ? '.exe' : ''

/** The file name of a program on this system. */
export function programFile(name: string): string {
  return name + EXTENSION
}

/** The programs in a folder; undefined without an executable llama-server. */
export function programsIn(directory: string): Build['executables'] | undefined {
  const found = Object.entries(PROGRAMS).flatMap(([role, name]) => {
    const path = findExecutable(join(directory, programFile(name)))
    return path === undefined ? [] : [[role, path] as const]
  })
  const executables = Object.fromEntries(found) as Partial<Build['executables']>
  return executables.server === undefined ? undefined : { ...executables, server: executables.server }
}

/** The folder with the programs: the given one, or a usual folder inside it. */
export function programFolder(directory: string): string | undefined {
  return ['', 'bin', join('build', 'bin'), join('bin', 'Release'), join('build', 'bin', 'Release')]
    .map(inner => join(directory, inner))
    .find(folder => existsSync(join(folder, programFile(PROGRAMS.server))))
}

/** Whether a file name is that of a program or of a library. */
export function isProgramOrLibrary(name: string): boolean {
  if (Object.values(PROGRAMS).some(program => programFile(program) === name)) return true
  return /\.(so(\.\d+)*|dylib|dll)$/.test(name) || /^lib.+\.v[\d.]+\.so$/.test(name) || name.endsWith('.metallib')
}

/** The prebuilt libraries among file names, by role; undefined if one is missing. */
export function prebuiltLibraries(
  names: readonly string[]
): Record<'LIB_LLAMA' | 'LIB_LLAMA_COMMON' | 'LIB_GGML' | 'LIB_GGML_BASE', string> | undefined {
  // Some names contain the release: libllama.v0.5.0.so.
  const find = (stem: string) => names.find(name => new RegExp(`^lib${stem}(\\.v?[\\w.]+)?\\.(so|dylib)$`).test(name))
  const [llama, common, ggml, base] = [find('llama'), find('llama-common'), find('ggml'), find('ggml-base')]
  if (!llama || !common || !ggml || !base) return undefined
  return { LIB_LLAMA: llama, LIB_LLAMA_COMMON: common, LIB_GGML: ggml, LIB_GGML_BASE: base }
}
