import type { Gpu, GpuReading } from '../../../core/contracts/hardware.ts'
import { readCardSensors } from './listed-cards.ts'
import { nvidiaSensors } from './nvidia.ts'
import type { Machine } from './probe.ts'

/** Reads the sensors of GPUs. Leaves out GPUs without readings. Never rejects. */
export async function readGpus(machine: Machine, gpus: readonly Gpu[]): Promise<GpuReading[]> {
  const has = (isNvidia: boolean) => gpus.some(({ vendor }) => (vendor === 'nvidia') === isNvidia)
  const [smi, cards] = await Promise.all([
    has(true) ? nvidiaSensors(machine).catch(() => undefined) : [],
    has(false) && machine.platform === 'linux' ? readCardSensors(machine.files).catch(() => []) : []
  ])
  return gpus.flatMap(({ id, name, vendor, pciBus }) => {
    const isSame = (place: string | undefined) => place !== undefined && place === pciBus
    const { temperature, utilization } =
      (vendor === 'nvidia'
        ? smi?.find(each => isSame(each.pciBus) || id === `nvidia:${each.index}`)
        : cards.find(each => isSame(each.pciBus))) ?? {}
    if (temperature === undefined && utilization === undefined) return []
    return [
      { id, name, ...(temperature !== undefined && { temperature }), ...(utilization !== undefined && { utilization }) }
    ]
  })
}
