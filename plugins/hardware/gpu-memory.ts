import type { Gpu, MemoryNow } from '../../core/contracts/hardware.ts'
import type { Machine } from './inspected-machine.ts'
import { nvidiaMemory } from './nvidia-smi.ts'
import { pciAddress } from './pci.ts'
import { amdMemory, readCard } from './system-cards.ts'

/** Milliseconds for which an answer of nvidia-smi is used again: it takes a good part of a second. */
const FRESH = 1000
/** Milliseconds for which it is not asked again when it gave none. */
const PAUSE = 30_000

export type GpuMemory = (machine: Machine, gpus: readonly Gpu[]) => Promise<MemoryNow['gpus']>

/**
 * Reads how much memory of GPUs is free now: of those with memory of their own, whose size is known. What cannot be read
 * is left out. Never rejects.
 */
export function createGpuMemory(): GpuMemory {
  let asked: { until: number; answer: ReturnType<typeof nvidiaMemory> } | undefined

  function nvidia(machine: Machine): ReturnType<typeof nvidiaMemory> {
    if (asked && performance.now() < asked.until) return asked.answer
    const mine = { until: performance.now() + FRESH, answer: nvidiaMemory(machine) }
    // A program that fails, or hangs, says nothing of memory; nobody shall wait for it at each load.
    mine.answer = mine.answer.catch(() => {
      mine.until = performance.now() + PAUSE
      return undefined
    })
    asked = mine
    return mine.answer
  }

  async function amd(machine: Machine, gpu: Gpu): Promise<{ total: number; free: number } | undefined> {
    if (gpu.pciBus === undefined || machine.platform !== 'linux') return undefined
    const { files } = machine
    const folders = [`/sys/bus/pci/devices/${gpu.pciBus}`]
    // A recording may have the one place or the other.
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
        // Of a partitioned card nobody knows what is free in the instance.
        if (card?.totalMemory === gpu.totalMemory && card?.freeMemory !== undefined) {
          now[gpu.id] = { total: gpu.totalMemory!, free: card.freeMemory }
        }
      }
    }
    return now
  }
}
