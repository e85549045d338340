import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { PullPlan } from '../../../core/contracts/downloads.ts'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import { CorralError } from '../../../core/errors.ts'
import { bareName } from '../../../core/models/model-name.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { freeSpace } from '../transfer/disk-space.ts'

/**
 * Bytes of memory that models can have: of this machine, or of the container that corral runs in, and of those of its
 * GPUs that work and have memory of their own.
 */
export function machineMemory({ memory, gpus }: Hardware): { ram: number; gpu: number } {
  const own = gpus.filter(gpu => gpu.usable && !gpu.unifiedMemory)
  return {
    ram: Math.min(memory.limit ?? memory.total, memory.total),
    gpu: own.reduce((sum, gpu) => sum + (gpu.totalMemory ?? 0), 0)
  }
}

/**
 * Whether files fit on a disk, by the folder that they go to.
 * @param missing bytes that are still to be fetched
 */
export async function diskRoom(folder: string, missing: number): Promise<PullPlan['disk']> {
  // People tidy up by hand.
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const { free: available, reserve } = await freeSpace(join(folder, 'files'))
  const required = missing === 0 ? 0 : missing + reserve
  return { required, available, fits: available >= required }
}

export function insufficientStorage(
  folder: string,
  plan: PullPlan,
  { required, available }: PullPlan['disk']
): CorralError {
  return new CorralError(
    'insufficient_storage',
    `"${bareName(plan.name)}" (${plan.label}) needs ${formatBytes(required)} more on the disk of ${folder}, which has ` +
      `${formatBytes(available)} free. Remove models that are not needed, choose a smaller variant, or choose another ` +
      'disk with CORRAL_MODELS.',
    { details: { required, available } }
  )
}
