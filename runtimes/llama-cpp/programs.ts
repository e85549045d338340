import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Build } from '../../core/contracts/builds.ts'
import { findExecutable } from '../../core/system/child-process.ts'

/** The programs of a llama.cpp build that corral uses, without file extension. */
export const PROGRAMS = {
  server: 'llama-server',
  quantize: 'llama-quantize',
  ggufSplit: 'llama-gguf-split',
  fitParams: 'llama-fit-params',
  rpcServer: 'ggml-rpc-server'
} as const

const EXTENSION = process.platform === 'win32' ? '.exe' : ''

export function programFile(name: string): string {
  return name + EXTENSION
}

/** Returns the programs in a folder, or undefined without an executable llama-server. */
export function programsIn(directory: string): Build['executables'] | undefined {
  const found = Object.entries(PROGRAMS).flatMap(([role, name]) => {
    const path = findExecutable(join(directory, programFile(name)))
    return path === undefined ? [] : [[role, path] as const]
  })
  const executables = Object.fromEntries(found) as Partial<Build['executables']>
  return executables.server === undefined ? undefined : { ...executables, server: executables.server }
}

/** Finds the folder with the programs: the given folder, or a usual folder inside it. */
export function programFolder(directory: string): string | undefined {
  return ['', 'bin', join('build', 'bin'), join('bin', 'Release'), join('build', 'bin', 'Release')]
    .map(inner => join(directory, inner))
    .find(folder => existsSync(join(folder, programFile(PROGRAMS.server))))
}

export function isProgramOrLibrary(name: string): boolean {
  if (Object.values(PROGRAMS).some(program => programFile(program) === name)) return true
  return /\.(so(\.\d+)*|dylib|dll)$/.test(name) || /^lib.+\.v[\d.]+\.so$/.test(name) || name.endsWith('.metallib')
}

/** Finds the prebuilt libraries among file names, by role. Returns undefined if one is missing. */
export function prebuiltLibraries(names: readonly string[]) {
  // Some names contain the release: libllama.v0.5.0.so.
  const find = (stem: string) => names.find(name => new RegExp(`^lib${stem}(\\.v?[\\w.]+)?\\.(so|dylib)$`).test(name))
  const [llama, common, ggml, base] = [find('llama'), find('llama-common'), find('ggml'), find('ggml-base')]
  if (!llama || !common || !ggml || !base) return undefined
  return { LIB_LLAMA: llama, LIB_LLAMA_COMMON: common, LIB_GGML: ggml, LIB_GGML_BASE: base }
}
