import { mkdir } from 'node:fs/promises'
import { totalmem } from 'node:os'
import { join } from 'node:path'
import { formatBytes } from '../../../core/bytes.ts'
import type { PullPlan } from '../../../core/downloads.ts'
import { CorralError } from '../../../core/errors.ts'
import { bareName } from '../../../core/model-name.ts'
import type { RuntimesReport } from '../../../core/runtimes.ts'
import { freeSpace } from '../transfer/disk-space.ts'

/** Bytes of memory that models can have: of this machine, or of the container that corral runs in, and of its GPUs. */
export function machineMemory(report: RuntimesReport): { ram: number; gpu: number } {
  // 0 or more than there is, where nothing limits it.
  const limit = process.constrainedMemory()
  const total = totalmem()
  return {
    ram: limit > 0 ? Math.min(limit, total) : total,
    gpu: (report.build?.devices ?? []).reduce((sum, device) => sum + device.totalMemory, 0)
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
