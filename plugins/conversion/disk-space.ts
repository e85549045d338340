import { statfs } from 'node:fs/promises'
import { formatBytes } from '../../core/bytes.ts'
import { CorralError } from '../../core/errors.ts'
import type { DtypePlan } from './dtypes.ts'

/** Vocabulary and metadata, which no count of weights tells. */
const OVERHEAD = 16e6
/** Norms and the like stay finer than the type says. */
const MARGIN = 1.03

/** Bytes that a conversion needs while it runs and leaves, estimated from the count of weights. Pure. */
export function diskNeed(plan: DtypePlan, parameters: number): number {
  const converted = (parameters * plan.bits.converted) / 8
  const result = plan.quantize ? (parameters * plan.bits.result) / 8 : 0
  return Math.ceil((converted + result) * MARGIN + OVERHEAD)
}

/** @throws CorralError `insufficient_storage` when the disk of a folder has less free */
export async function requireSpace(folder: string, needed: number, what: string): Promise<void> {
  const { bavail, bsize } = await statfs(folder)
  const free = bavail * bsize
  if (free >= needed) return
  throw new CorralError(
    'insufficient_storage',
    `${what} needs about ${formatBytes(needed)} on the disk of ${folder}, which has ${formatBytes(free)} free. ` +
      'Remove models that are not needed, or make room otherwise.',
    { details: { required: needed, available: free } }
  )
}
