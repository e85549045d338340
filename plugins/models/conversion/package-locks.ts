import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { packageRoot } from '../../../core/system/package-info.ts'

/** Where the packages are listed with the SHA-256 of each of their wheels; `scripts/lock-packages.ts` writes them. */
export const LOCK_FOLDER = join(packageRoot, 'plugins', 'models', 'conversion', 'packages')

export const LOCKS = {
  packages: 'packages.lock',
  /** With CUDA's libraries on Linux; for processors only elsewhere. */
  torch: 'torch.lock',
  torchForProcessors: 'torch-cpu.lock'
}

/** The condition on which a wheel of torch for processors is taken. */
export function lockedFor(machine: string, pythonMinor: number): string {
  return `sys_platform == 'linux' and platform_machine == '${machine}' and python_version == '3.${pythonMinor}'`
}

export interface PackageLock {
  /** What the installer is given. */
  text: string
  /** The converter's own requirements that it was made for. */
  madeFor: string[]
}

/**
 * The packages for a Python of this machine.
 * @param forProcessors whether torch comes without CUDA's libraries, where there is a choice
 */
export async function readLock(folder: string, forProcessors: boolean): Promise<PackageLock> {
  const read = (name: string) => readFile(join(folder, name), 'utf8')
  const packages = await read(LOCKS.packages)
  const torch = await read(forProcessors ? LOCKS.torchForProcessors : LOCKS.torch)
  return { text: `${packages}\n${torch}`, madeFor: [...packages.matchAll(/^# for (.+)$/gm)].map(([, line]) => line!) }
}

/** Whether torch without CUDA's libraries is listed for a Python of this machine. On other systems torch never has them. */
export async function hasTorchForProcessors(folder: string, pythonMinor: number): Promise<boolean> {
  if (process.platform !== 'linux') return false
  const machine = process.arch === 'x64' ? 'x86_64' : 'aarch64'
  return (await readFile(join(folder, LOCKS.torchForProcessors), 'utf8')).includes(lockedFor(machine, pythonMinor))
}

/** Names the environment for the locked packages; other packages are another environment. */
export async function environmentName(folder: string): Promise<string> {
  const digest = createHash('sha256')
  for (const name of Object.values(LOCKS)) digest.update(await readFile(join(folder, name)))
  return `converter-${digest.digest('hex').slice(0, 12)}`
}
