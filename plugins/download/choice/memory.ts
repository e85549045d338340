import type { PullPlan } from '../../../core/contracts/downloads.ts'
import type { MemoryFacts } from './choice.ts'

const GIB = 2 ** 30
/** Graphics memory below this is not worth a choice of its own. */
const SMALLEST_GPU = 4 * GIB

/** Bytes that models may take on a machine: in the fastest memory it has, and in all together. */
export interface Budget {
  best: number
  all: number
  /** Whether the fastest is graphics memory. */
  gpu: boolean
}

/** The rest is for the system, other programs and the conversation. */
export function budgetOf({ ram, gpu }: MemoryFacts): Budget {
  if (gpu < SMALLEST_GPU) return { best: 0.7 * ram, all: 0.7 * ram, gpu: false }
  return { best: 0.9 * gpu, all: 0.7 * ram + gpu, gpu: true }
}

/** Bytes that a model is likely to take with a conversation of usual length. */
export function requiredMemory(weights: number, projector: number): number {
  return Math.round(weights * 1.1 + 0.5 * GIB + projector)
}

/** How a need compares with what there is. */
export function memoryFor(required: number, budget: Budget): PullPlan['memory'] {
  const available = Math.round(required <= budget.best ? budget.best : budget.all)
  return { required, available, fits: required <= available }
}
