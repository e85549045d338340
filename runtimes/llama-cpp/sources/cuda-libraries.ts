import { existsSync, readdirSync } from 'node:fs'
import { symlink } from 'node:fs/promises'
import { basename, delimiter, dirname, join } from 'node:path'
import { isSystemError } from '../../../core/errors.ts'

/** What a CUDA build of llama.cpp loads beside the driver's own libcuda.so.1. */
const LIBRARIES = ['libcudart.so', 'libcublas.so', 'libcublasLt.so']

/** Folders that toolkits and packages put CUDA's libraries in, on Linux. */
function libraryFolders(env: NodeJS.ProcessEnv, nvcc: string | undefined): string[] {
  const toolkits = [env.CUDA_PATH, env.CUDA_HOME, nvcc && join(dirname(nvcc), '..'), '/usr/local/cuda', '/opt/cuda']
  const versions = namesIn('/usr/local').filter(name => name.startsWith('cuda-'))
  return [
    ...(env.LD_LIBRARY_PATH ?? '').split(delimiter),
    ...[...toolkits, ...versions.map(name => join('/usr/local', name))].flatMap(toolkit =>
      toolkit ? [join(toolkit, 'lib64'), join(toolkit, 'lib'), join(toolkit, 'targets', 'x86_64-linux', 'lib')] : []
    ),
    '/usr/lib/x86_64-linux-gnu',
    '/usr/lib64'
  ].filter(folder => folder !== '')
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch (error) {
    if (isSystemError(error, 'ENOENT') || isSystemError(error, 'EACCES')) return []
    throw error
  }
}

/** The libraries of one major version of CUDA on this machine, as absolute paths; else the names of the missing ones. */
export function findCudaLibraries(
  major: number,
  env: NodeJS.ProcessEnv,
  nvcc: string | undefined
): { paths: string[] } | { missing: string[] } {
  const folders = libraryFolders(env, nvcc)
  const found = LIBRARIES.map(library => {
    const name = `${library}.${major}`
    return { name, path: folders.map(folder => join(folder, name)).find(path => existsSync(path)) }
  })
  const missing = found.filter(({ path }) => path === undefined).map(({ name }) => name)
  return missing.length > 0 ? { missing } : { paths: found.map(({ path }) => path!) }
}

/** Puts links to libraries into a build's folder, where its own libraries look first: no LD_LIBRARY_PATH is needed. */
export async function linkLibraries(paths: readonly string[], folder: string): Promise<void> {
  for (const path of paths) await symlink(path, join(folder, basename(path)))
}
