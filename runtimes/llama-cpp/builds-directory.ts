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

export interface LockLog {
  info(object: object, message: string): void
  warn(object: object, message: string): void
}

/** Folder for unfinished work in the builds' directory; what is whole in it is reused. */
export const WORK_FOLDER = 'work'
/** Milliseconds after which the lock of a process that died is taken over. */
const LOCK_STALE = 10_000
const LOCK_RETRY = 500

/** Unfinished folders of this process: an earlier one may have had the same id, as in containers. */
const own = new Set<string>()

/** A folder to make something in, in the builds' directory; renamed when it is whole. */
export async function unfinishedFolder(directory: string): Promise<string> {
  const folder = join(directory, `unfinished-${process.pid}-${randomUUID().slice(0, 8)}`)
  own.add(folder)
  await mkdir(folder, { recursive: true })
  return folder
}

/** Whether somebody still works in a folder: converters are fetched without the lock. */
async function isUsed(folder: string): Promise<boolean> {
  const pid = Number(/^unfinished-(\d+)-/.exec(basename(folder))?.[1])
  return pid === process.pid ? own.has(folder) : (await processStartTime(pid)) !== undefined
}

/**
 * Keeps other processes from building in the same directory at the same time; waits for the one that does.
 * @param onWait called when it has to wait
 */
export async function lockDirectory(
  directory: string,
  signal: AbortSignal,
  log: LockLog,
  onWait?: () => void
): Promise<() => Promise<void>> {
  await mkdir(directory, { recursive: true })
  for (let told = false; ; ) {
    signal.throwIfAborted()
    try {
      let lost: Error | undefined
      const release = await lock(directory, {
        stale: LOCK_STALE,
        onCompromised: error => {
          lost = error
          log.warn({ reason: error.message }, 'The lock of the llama.cpp builds was lost; this process slept too long.')
        }
      })
      return async () => {
        if (!lost) await release()
      }
    } catch (error) {
      if (!isSystemError(error, 'ELOCKED')) throw error
      if (!told) {
        log.info({ directory }, 'Another process is getting a llama.cpp build into this directory; waiting for it.')
        onWait?.()
      }
      told = true
      while (await check(directory, { stale: LOCK_STALE })) {
        await sleep(LOCK_RETRY, undefined, { signal }).catch(() => signal.throwIfAborted())
      }
    }
  }
}

/** Removes what an interrupted search left: folders that are neither a recorded build nor work that goes on or is reused. */
export async function removeLeftovers(directory: string): Promise<void> {
  const kept = new Set((await readRecords(directory)).map(record => record.build.directory))
  for (const entry of await readdir(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name)
    if (!entry.isDirectory() || kept.has(path)) continue
    if (entry.name.startsWith(WORK_FOLDER) || entry.name.startsWith('converter-') || (await isUsed(path))) continue
    await rm(path, { recursive: true, force: true })
  }
}

/** The programs of a llama.cpp build that corral uses, by their names without ending. */
export const PROGRAMS = {
  server: 'llama-server',
  quantize: 'llama-quantize',
  ggufSplit: 'llama-gguf-split',
  fitParams: 'llama-fit-params',
  rpcServer: 'ggml-rpc-server'
} as const

const ENDING = process.platform === 'win32' ? '.exe' : ''

/** The name of a program's file on this system. */
export function programFile(name: string): string {
  return name + ENDING
}

/** The programs that a folder holds; undefined when llama-server is not among them or may not be run. */
export function programsIn(directory: string): Build['executables'] | undefined {
  const found = Object.entries(PROGRAMS).flatMap(([role, name]) => {
    const path = findExecutable(join(directory, programFile(name)))
    return path === undefined ? [] : [[role, path] as const]
  })
  const executables = Object.fromEntries(found) as Partial<Build['executables']>
  return executables.server === undefined ? undefined : { ...executables, server: executables.server }
}

/** The folder that programs are in: the given one, or where builds and installations keep them inside it. */
export function programFolder(directory: string): string | undefined {
  return ['', 'bin', join('build', 'bin'), join('bin', 'Release'), join('build', 'bin', 'Release')]
    .map(inner => join(directory, inner))
    .find(folder => existsSync(join(folder, programFile(PROGRAMS.server))))
}

/** Whether a file of this name belongs beside the programs: they and the libraries they load. */
export function isProgramOrLibrary(name: string): boolean {
  if (Object.values(PROGRAMS).some(program => programFile(program) === name)) return true
  return /\.(so(\.\d+)*|dylib|dll)$/.test(name) || /^lib.+\.v[\d.]+\.so$/.test(name) || name.endsWith('.metallib')
}

/** The libraries of llama.cpp in a folder of prebuilt ones, by role; undefined when one is missing. */
export function prebuiltLibraries(
  names: readonly string[]
): Record<'LIB_LLAMA' | 'LIB_LLAMA_COMMON' | 'LIB_GGML' | 'LIB_GGML_BASE', string> | undefined {
  // Some carry the release in their name: libllama.v0.5.0.so.
  const find = (stem: string) => names.find(name => new RegExp(`^lib${stem}(\\.v?[\\w.]+)?\\.(so|dylib)$`).test(name))
  const [llama, common, ggml, base] = [find('llama'), find('llama-common'), find('ggml'), find('ggml-base')]
  if (!llama || !common || !ggml || !base) return undefined
  return { LIB_LLAMA: llama, LIB_LLAMA_COMMON: common, LIB_GGML: ggml, LIB_GGML_BASE: base }
}
