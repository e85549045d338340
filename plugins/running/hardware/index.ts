import { Type } from 'typebox'
import { Path, Timeout } from '../../../core/config/core-schema.ts'
import type { GpuReading, Hardware, HardwareService, MemoryNow } from '../../../core/contracts/hardware.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import type { GpuMemory } from './find-hardware.ts'
import type { HardwareOptions } from './inspected-machine.ts'
import type { Machine } from './probe.ts'

export default definePlugin({
  name: 'hardware',
  api: 1,
  description: 'The hardware of this machine: processor, memory, GPUs and their drivers',
  offers: ['hardware'],
  options: Type.Object(
    {
      sysroot: Path({
        default: '',
        needsTrust: true,
        description:
          'Root folder of a recorded machine (/proc, /sys, /etc) to describe instead of this one; empty for this machine'
      }),
      probe_timeout: Timeout({
        default: '5s',
        description: 'Time limit for each tool that detects hardware, such as nvidia-smi'
      })
    },
    { additionalProperties: false, restart: true }
  ),
  setup(context, options) {
    const hardware = createHardware({
      sysroot: options.sysroot,
      probeTimeout: parseDuration(options.probe_timeout)!,
      env: process.env,
      signal: context.signal,
      log: context.log
    })
    return { services: { hardware } }
  }
})

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
    gpuMemory ??= import('./find-hardware.ts').then(({ createGpuMemory }) => createGpuMemory())
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
      const { readGpus } = await import('./find-hardware.ts')
      return await readGpus(await open(), (found ?? (await detect())).gpus)
    }
  }
}
