const MIB = 2 ** 20
const GIB = 2 ** 30

/**
 * Bytes of the machine's memory that are left to the system and other programs: a tenth, one GiB at least and eight at
 * most; of a small machine or container a quarter, for nothing else is likely to run there.
 */
export function reserveOf(total: number): number {
  return Math.min(total / 4, Math.min(8 * GIB, Math.max(GIB, total / 10)))
}

export interface HostMemory {
  /** Of the machine, within a container's limit. */
  total: number
  /** That programs can have now. Weights that engines have mapped are among it: the system could read them again. */
  available: number
  /** That engines have beside mapped files. */
  engines: number
}

/**
 * Bytes of the machine's memory that engines may take together: what is configured, else all but a reserve; and never
 * more than there is for them now, which is what is available and what they have already.
 */
export function hostBudget({ total, available, engines }: HostMemory, configured: number | undefined): number {
  const most = configured ?? total - reserveOf(total)
  // What is available ebbs and flows.
  const now = available + engines - Math.min(256 * MIB, total / 50)
  return Math.max(0, Math.floor(Math.min(most, now)))
}
