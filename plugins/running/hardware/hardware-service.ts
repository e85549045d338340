import type { GpuReading, Hardware, HardwareService, MemoryNow } from '../../../core/contracts/hardware.ts'
import type { GpuMemory } from './gpu-figures.ts'
import type { HardwareOptions } from './inspected-machine.ts'
import type { Machine } from './probe.ts'

/** Detects the hardware of this machine, or of a recorded one, on the first call. */
export function createHardware(options: HardwareOptions): HardwareService {
  let machine: Promise<Machine> | undefined
  let gpuMemory: Promise<GpuMemory> | undefined
  let current: Promise<Hardware> | undefined
  let found: Hardware | undefined
  let running = false
  let looking: Promise<MemoryNow> | undefined

  function open(): Promise<Machine> {
    machine ??= import('./inspected-machine.ts').then(({ openMachine }) => openMachine(options))
    return machine
  }

  async function find(): Promise<Hardware> {
    running = true
    try {
      const began = performance.now()
      const { findHardware } = await import('./find-hardware.ts')
      found = await findHardware(await open(), options.probeTimeout)
      const gpus = found.gpus.map(({ id, name }) => `${id} ${name}`)
      options.log?.debug({ gpus, duration: Math.round(performance.now() - began) }, 'hardware detected')
      return found
    } finally {
      running = false
    }
  }

  function detect({ refresh = false } = {}): Promise<Hardware> {
    if (current === undefined || (refresh && !running)) current = find()
    return current
  }

  async function memory(): Promise<MemoryNow> {
    gpuMemory ??= import('./gpu-figures.ts').then(({ createGpuMemory }) => createGpuMemory())
    const { readMemory } = await import('./main-memory.ts')
    const [at, hardware, gpusOf] = await Promise.all([open(), found ?? detect(), gpuMemory])
    const [host, gpus] = await Promise.all([readMemory(at), gpusOf(at, hardware.gpus)])
    const { total = 0, available = 0, limit: most = total } = host ?? {}
    return { host: { total: Math.min(total, most), available }, gpus }
  }

  return {
    detect,
    known: () => found,
    // Several callers ask at the same time before a load.
    memory: () => (looking ??= memory().finally(() => (looking = undefined))),
    async readings(): Promise<GpuReading[]> {
      const { readGpus } = await import('./gpu-figures.ts')
      return await readGpus(await open(), (found ?? (await detect())).gpus)
    }
  }
}
