import type { Gpu, GpuReading, MemoryNow } from '../../../core/contracts/hardware.ts'
import { readCardSensors, readDrmCards } from './listed-cards.ts'
import { nvidiaMemory, nvidiaSensors, type SmiGpu } from './nvidia.ts'
import { defined, type Machine } from './probe.ts'

/* The figures of GPUs that change: free memory and sensors. */

/** Milliseconds for which the output of nvidia-smi is reused, because a call takes much of a second. */
const REUSED_FOR = 1000
/** Milliseconds to wait after a failure before calling nvidia-smi again. */
const RETRY_AFTER = 30_000

function findCard<Card extends { pciBus?: string | undefined }>(
  { id, vendor, pciBus }: Gpu,
  smi: readonly SmiGpu[] | undefined,
  listed: readonly Card[]
): SmiGpu | Card | undefined {
  const isSame = (card: { pciBus?: string | undefined }) => card.pciBus !== undefined && card.pciBus === pciBus
  return vendor === 'nvidia'
    ? smi?.find(card => isSame(card) || id === `nvidia:${card.index}`)
    : listed.find(card => isSame(card))
}

export type GpuMemory = (machine: Machine, gpus: readonly Gpu[]) => Promise<MemoryNow['gpus']>

/** Reads the free memory of GPUs with dedicated memory of a known size, if it can be read. Never rejects. */
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
    const [smi, drm] = await Promise.all([
      has('nvidia') ? nvidia(machine) : [],
      has('amd') ? readDrmCards(machine.files) : []
    ])
    const now: MemoryNow['gpus'] = {}
    for (const gpu of own) {
      const { totalMemory: total, freeMemory: free } = findCard(gpu, smi, drm) ?? {}
      // A partitioned card reports its total size, so the free memory of one instance is unknown.
      if (gpu.vendor === 'nvidia' && total !== gpu.totalMemory) continue
      if (total !== undefined && free !== undefined) now[gpu.id] = { total, free }
    }
    return now
  }
}

/** Reads the sensors of GPUs. Leaves out GPUs without readings. Never rejects. */
export async function readGpus(machine: Machine, gpus: readonly Gpu[]): Promise<GpuReading[]> {
  const has = (isNvidia: boolean) => gpus.some(({ vendor }) => (vendor === 'nvidia') === isNvidia)
  const [smi, cards] = await Promise.all([
    has(true) ? nvidiaSensors(machine).catch(() => undefined) : [],
    has(false) && machine.platform === 'linux' ? readCardSensors(machine.files).catch(() => []) : []
  ])
  return gpus.flatMap(gpu => {
    const { temperature, utilization } = findCard(gpu, smi, cards) ?? {}
    if (temperature === undefined && utilization === undefined) return []
    return [{ id: gpu.id, name: gpu.name, ...defined({ temperature, utilization }) }]
  })
}
