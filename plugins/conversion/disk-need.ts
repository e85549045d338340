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
