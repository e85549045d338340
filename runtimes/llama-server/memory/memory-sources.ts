import type { MemoryUse } from '../../../core/contracts/builds.ts'
import { addUse, type Reckoning, totalOf } from './engine-need.ts'
import type { Device } from './placement.ts'

/** Most that another try is taken to need of what was too little. */
const MORE = 1.1

/**
 * What an engine takes from the start by llama-fit-params, made whole by what that leaves out: weights that are packed
 * anew for the processor, LoRA, projector, draft model and the process. Where the processor alone computes, it counts
 * an answer for every token of a batch, which llama-server does not ask for; that much may be too much, but never less
 * than the metadata say. Undefined where layers find a place by themselves and not all fit, which it does not see.
 */
export function fromFit(fit: MemoryUse, reckoning: Reckoning, devices: readonly Device[]): MemoryUse | undefined {
  if (!reckoning.settled) return undefined
  if (devices.length === 0) {
    const core = reckoning.core.host ?? 0
    return addUse({ host: Math.max(core, (fit.host ?? 0) - reckoning.logits) }, reckoning.draft, reckoning.beside)
  }
  const left = Math.max(0, reckoning.weights + reckoning.cache - totalOf(fit))
  return addUse(fit, { host: left }, reckoning.draft, reckoning.beside)
}

/**
 * What an engine takes from the start by the metadata alone.
 * @param old whether the build may be one that reserves an answer for every token of a batch
 */
export function fromMetadata(reckoning: Reckoning, devices: readonly Device[], old: boolean): MemoryUse {
  const { core, draft, beside, logits } = reckoning
  const where = devices.length === 0 ? ['host'] : [...new Set(devices.map(({ pool }) => pool))]
  const more = old ? where.map(pool => ({ [pool]: logits })) : []
  return addUse(core, draft, beside, ...more)
}

/** What an engine takes from the start by its own report; `resident` is what the system says that its process holds. */
export function fromReport(report: MemoryUse, reckoning: Reckoning, resident: number | undefined): MemoryUse {
  const use = addUse(report, reckoning.beside)
  return { ...use, host: Math.max(use.host ?? 0, resident ?? 0) }
}

/** More than what was too little, in each pool. */
export function beyond(use: MemoryUse, tooLittle: MemoryUse | undefined): MemoryUse {
  if (!tooLittle) return use
  const raised = Object.entries(tooLittle).map(([pool, bytes]) => [pool, Math.max(use[pool] ?? 0, bytes * MORE)])
  return { ...use, ...Object.fromEntries(raised) }
}
