import type { Gpu, MemoryNow } from '../../../core/contracts/hardware.ts'
import { readDrmCards } from './listed-cards.ts'
import { nvidiaMemory } from './nvidia.ts'
import type { Machine } from './probe.ts'

/** Milliseconds for which the output of nvidia-smi is reused, because a call takes much of a second. */
const REUSED_FOR = 1000
/** Milliseconds to wait after a failure before calling nvidia-smi again. */
const RETRY_AFTER = 30_000

export type GpuMemory = (machine: Machine, gpus: readonly Gpu[]) => Promise<MemoryNow['gpus']>

/**
 * Reads the free memory of GPUs with dedicated memory of a known size. Leaves out GPUs that it cannot read. Never
 * rejects.
 */
export function createGpuMemory(): GpuMemory {
  let answer: ReturnType<typeof nvidiaMemory> | undefined
  let until = 0

  function nvidia(machine: Machine): ReturnType<typeof nvidiaMemory> {
    if (answer && performance.now() < until) return answer
    until = performance.now() + REUSED_FOR
    answer = nvidiaMemory(machine).catch(() => {
      // A program that fails or hangs must not delay every load.
      until = performance.now() + RETRY_AFTER
      return undefined
    })
    return answer
  }

  return async (machine, gpus) => {
    const own = gpus.filter(gpu => gpu.usable && !gpu.unifiedMemory && gpu.totalMemory !== undefined)
    const has = (vendor: Gpu['vendor']) => own.some(gpu => gpu.vendor === vendor)
    const [smi = [], drm] = await Promise.all([
      has('nvidia') ? nvidia(machine) : [],
      has('amd') ? readDrmCards(machine.files) : []
    ])
    const now: MemoryNow['gpus'] = {}
    for (const { id, vendor, pciBus, totalMemory } of own) {
      const isSame = (place: string | undefined) => place !== undefined && place === pciBus
      const card =
        vendor === 'nvidia'
          ? smi.find(each => isSame(each.pciBus) || id === `nvidia:${each.index}`)
          : drm.find(each => each.vendor === vendor && isSame(each.pciBus))
      // A partitioned card reports its total size, so the free memory of one instance is unknown.
      if (vendor === 'nvidia' && card?.totalMemory !== totalMemory) continue
      const { totalMemory: total, freeMemory: free } = card ?? {}
      if (total !== undefined && free !== undefined) now[id] = { total, free }
    }
    return now
  }
}
