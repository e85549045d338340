import type { Gpu, MemoryNow } from '../../core/contracts/hardware.ts'
import type { Machine } from './inspected-machine.ts'
import { nvidiaMemory } from './nvidia-smi.ts'
import { pciAddress } from './pci.ts'
import { amdMemory, readCard } from './system-cards.ts'

/** Milliseconds for which the output of nvidia-smi is reused: a call takes a good part of a second. */
const REUSED_FOR = 1000
/** Milliseconds until it is called again after a failure. */
const RETRY_AFTER = 30_000

export type GpuMemory = (machine: Machine, gpus: readonly Gpu[]) => Promise<MemoryNow['gpus']>

/**
 * Reads the free memory of GPUs that have dedicated memory of a known size. GPUs that cannot be read are left out. Never
 * rejects.
 */
export function createGpuMemory(): GpuMemory {
  let last: { until: number; answer: ReturnType<typeof nvidiaMemory> } | undefined

  function nvidia(machine: Machine): ReturnType<typeof nvidiaMemory> {
    if (last && performance.now() < last.until) return last.answer
    const query = { until: performance.now() + REUSED_FOR, answer: nvidiaMemory(machine) }
    // Loads must not wait again and again for a program that fails or hangs.
    query.answer = query.answer.catch(() => {
      query.until = performance.now() + RETRY_AFTER
      return undefined
    })
    last = query
    return query.answer
  }

  async function amd(machine: Machine, gpu: Gpu): Promise<{ total: number; free: number } | undefined> {
    if (gpu.pciBus === undefined || machine.platform !== 'linux') return undefined
    const { files } = machine
    const folders = [`/sys/bus/pci/devices/${gpu.pciBus}`]
    // A recording may have either of the two folders.
    for (const name of await files.names('/sys/class/drm')) {
      const folder = `/sys/class/drm/${name}/device`
      if (!/^card\d+$/.test(name)) continue
      const real = (await files.real(folder))?.split(/[\\/]/).at(-1)
      const slot = /^PCI_SLOT_NAME=(\S+)/m.exec((await files.text(`${folder}/uevent`)) ?? '')?.[1]
      if ([real, slot].some(place => pciAddress(place) === gpu.pciBus)) folders.push(folder)
    }
    for (const folder of folders) {
      const { totalMemory: total, freeMemory: free } = amdMemory(await readCard(files, folder), gpu.pciId)
      if (total !== undefined && free !== undefined) return { total, free }
    }
    return undefined
  }

  return async (machine, gpus) => {
    const own = gpus.filter(gpu => gpu.usable && !gpu.unifiedMemory && gpu.totalMemory !== undefined)
    const now: MemoryNow['gpus'] = {}
    const cards = own.some(gpu => gpu.vendor === 'nvidia') ? await nvidia(machine) : undefined
    for (const gpu of own) {
      if (gpu.vendor === 'amd') {
        const memory = await amd(machine, gpu)
        if (memory) now[gpu.id] = memory
      } else if (gpu.vendor === 'nvidia' && cards) {
        const card = cards.find(
          each => (each.pciBus !== undefined && each.pciBus === gpu.pciBus) || gpu.id === `nvidia:${each.index}`
        )
        // What is free in one instance of a partitioned card is unknown.
        if (card?.totalMemory === gpu.totalMemory && card?.freeMemory !== undefined) {
          now[gpu.id] = { total: gpu.totalMemory!, free: card.freeMemory }
        }
      }
    }
    return now
  }
}
