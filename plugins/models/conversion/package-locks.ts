import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { packageRoot } from '../../../core/system/package-info.ts'

/** The list of packages with the SHA-256 of each wheel. `scripts/lock-packages.ts` writes it. */
export const LOCK_FOLDER = join(packageRoot, 'plugins', 'models', 'conversion', 'packages')

export const LOCKS = {
  packages: 'packages.lock',
  /** With CUDA's libraries on Linux, CPU-only elsewhere. */
  torch: 'torch.lock',
  torchCpu: 'torch-cpu.lock'
}

/** The environment marker of a CPU-only torch wheel. */
export function lockedFor(machine: string, pythonMinor: number): string {
  return `sys_platform == 'linux' and platform_machine == '${machine}' and python_version == '3.${pythonMinor}'`
}

export interface PackageLock {
  /** Requirements in the format that the installer takes. */
  text: string
  /** The converter's own requirements that the lock was made for. */
  madeFor: string[]
}

/** Reads the locked packages for this machine's Python. @param cpuOnly prefer torch without CUDA's libraries */
export async function readLock(folder: string, cpuOnly: boolean): Promise<PackageLock> {
  const read = (name: string) => readFile(join(folder, name), 'utf8')
  const packages = await read(LOCKS.packages)
  const torch = await read(cpuOnly ? LOCKS.torchCpu : LOCKS.torch)
  return { text: `${packages}\n${torch}`, madeFor: [...packages.matchAll(/^# for (.+)$/gm)].map(([, line]) => line!) }
}

/** Returns whether there is a CPU-only torch for this machine's Python. Only Linux has two kinds of torch. */
export async function hasCpuTorch(folder: string, pythonMinor: number): Promise<boolean> {
  if (process.platform !== 'linux') return false
  const machine = process.arch === 'x64' ? 'x86_64' : 'aarch64'
  return (await readFile(join(folder, LOCKS.torchCpu), 'utf8')).includes(lockedFor(machine, pythonMinor))
}

/** Returns the environment's name, which changes with the locked packages. */
export async function environmentName(folder: string): Promise<string> {
  const digest = createHash('sha256')
  for (const name of Object.values(LOCKS)) digest.update(await readFile(join(folder, name)))
  return `converter-${digest.digest('hex').slice(0, 12)}`
}
