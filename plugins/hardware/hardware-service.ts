import type { Hardware, HardwareService, MemoryNow } from '../../core/hardware.ts'
import { type Answer, assembleHardware } from './assemble.ts'
import { createGpuMemory } from './gpu-memory.ts'
import { type Machine, openMachine } from './machine.ts'
import { readMemory } from './memory/machine-memory.ts'
import { askProbe } from './probe.ts'
import { PROBES } from './probes.ts'
import { ownProcessor } from './processor/processor.ts'

export interface HardwareOptions {
  /** Folder before all system files, for recordings of other machines; empty is this one. */
  sysroot: string
  /** Milliseconds that each probe has. */
  probeTimeout: number
  env: NodeJS.ProcessEnv
  /** Ends programs that run. */
  signal?: AbortSignal
  log?: { debug(object: object, message: string): void }
}

async function findHardware(machine: Machine, limit: number): Promise<Hardware> {
  const asked = PROBES.filter(({ platforms }) => platforms?.includes(machine.platform) ?? true)
  const answers: Answer[] = await Promise.all(asked.map(probe => askProbe(probe, machine, limit)))
  // Where no probe tells of the processor, Node knows the least.
  const own: Answer = {
    report: { probe: 'node', outcome: 'ok', duration: 0 },
    findings: ownProcessor(machine)
  }
  const hardware = assembleHardware(machine, [...answers, own])
  return { ...hardware, probes: answers.map(({ report }) => report) }
}

/** Finds out what this machine has, or what a recording of another one says. */
export function createHardware(options: HardwareOptions): HardwareService {
  const { sysroot: root, probeTimeout: limit, env, signal, log } = options
  const gpuMemory = createGpuMemory()
  let machine: Promise<Machine> | undefined
  let current: Promise<Hardware> | undefined
  let found: Hardware | undefined
  let running = false

  const open = () => (machine ??= openMachine({ root, env, limit, ...(signal ? { signal } : {}) }))

  async function find(): Promise<Hardware> {
    running = true
    try {
      const began = performance.now()
      found = await findHardware(await open(), limit)
      const gpus = found.gpus.map(({ id, name }) => `${id} ${name}`)
      log?.debug({ gpus, duration: Math.round(performance.now() - began) }, 'hardware found')
      return found
    } finally {
      running = false
    }
  }

  function detect({ refresh = false } = {}): Promise<Hardware> {
    if (current === undefined || (refresh && !running)) current = find()
    return current
  }

  return {
    detect,
    known: () => found,
    async memory(): Promise<MemoryNow> {
      const [at, hardware] = await Promise.all([open(), found ?? detect()])
      const [host, gpus] = await Promise.all([readMemory(at), gpuMemory(at, hardware.gpus)])
      const { total = 0, available = 0, limit: most = total } = host ?? {}
      return { host: { total: Math.min(total, most), available }, gpus }
    }
  }
}
