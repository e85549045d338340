import { randomUUID } from 'node:crypto'
import { statSync } from 'node:fs'
import type { FastifyBaseLogger } from 'fastify'
import type { Engine, EngineLogRecord, EngineProvider, EngineSpec, MemoryUse } from '../../../core/contracts/engines.ts'
import type { Gpu, HardwareService } from '../../../core/contracts/hardware.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { getOrAdd } from '../../../core/system/collections.ts'
import { createProgramEngine } from './program-engine.ts'
import { command, type ProgramProcess, startProgram } from './program-process.ts'
import type { ProgramModel } from './program-settings.ts'

/** Milliseconds between measurements of a running program's memory. */
const MEASURE_MS = 10_000
/** Main memory that a program is expected to need besides its files until it has been measured. */
const USUAL_MEMORY = 512 * 2 ** 20
/** Starts of each model whose output is kept. */
const KEPT_LOGS = 3

interface State {
  process?: ProgramProcess | undefined
  /** Set while the program sleeps. */
  wakeBy?: NodeJS.Timeout | undefined
  /** The bytes of main memory that were measured last. */
  measured?: number
  logs: EngineLogRecord[]
}

/** How GPUs of a manufacturer are named in memory pools. */
const POOLS: Partial<Record<Gpu['vendor'], string>> = { nvidia: 'CUDA', amd: 'ROCm', intel: 'SYCL' }

/** The memory pool of a name in the configuration: `gpu1` is the second GPU, and others are pools already. */
function poolOf(name: string, gpus: readonly Gpu[]): string {
  const [, index] = /^gpu(\d+)$/.exec(name) ?? []
  const gpu = index === undefined ? undefined : gpus[Number(index)]
  if (!gpu) return name
  if (gpu.unifiedMemory) return 'host'
  return `${POOLS[gpu.vendor] ?? 'Vulkan'}${gpus.filter(({ vendor }) => vendor === gpu.vendor).indexOf(gpu)}`
}

/** @param find returns the program of a model */
export function createProgramProvider(
  find: (model: Model) => ProgramModel | undefined,
  { name = 'programs', log, hardware }: { name?: string; log: FastifyBaseLogger; hardware: HardwareService }
): EngineProvider {
  const states = new Map<string, State>()
  const stateOf = ({ key }: Model) => getOrAdd(states, key, () => ({ logs: [] }))
  function useOf({ program, model }: ProgramModel, { measured }: State): MemoryUse {
    // Its model may be a name.
    const size = statSync(model, { throwIfNoEntry: false })?.size ?? 0
    if (!program.memory) return { host: measured ?? size + USUAL_MEMORY }
    const gpus = hardware.known()?.gpus ?? []
    const use: MemoryUse = {}
    for (const [name, bytes] of Object.entries(program.memory)) {
      const pool = poolOf(name, gpus)
      use[pool] = (use[pool] ?? 0) + bytes
    }
    return use
  }

  async function wake(process: ProgramProcess, { program }: ProgramModel, waiting: Waiting): Promise<boolean> {
    try {
      await command(process, program.sleep!.wake, program.name)
      await process.untilReady(waiting)
      return true
    } catch (error) {
      // Half awake, it would use its memory although nobody counts it.
      await process.stop()
      waiting.signal?.throwIfAborted()
      log.warn({ program: program.name, reason: errorMessage(error) }, 'a program did not wake up and is started again')
      return false
    }
  }

  /** Returns the process of a model: the one that sleeps, or a new one. */
  async function acquire(found: ProgramModel, state: State, waiting: Waiting): Promise<ProgramProcess> {
    clearTimeout(state.wakeBy)
    const { process } = state
    if (process && !process.hasEnded() && (await wake(process, found, waiting))) return process
    state.process = undefined
    const command = (await found.own?.command(waiting)) ?? found.program.command
    const started = await startProgram({ ...found.program, command }, found.model)
    const entry = record(started, found.program.name, state)
    try {
      await started.untilReady(waiting)
    } catch (error) {
      await started.stop()
      if (error instanceof CorralError) entry.failure = describeFailure(error)
      throw error
    }
    state.process = started
    return started
  }

  async function release(process: ProgramProcess, { program }: ProgramModel, state: State): Promise<void> {
    if (program.sleep) {
      try {
        await command(process, program.sleep.path, program.name)
        state.wakeBy = setTimeout(() => void process.stop(), program.sleep.for).unref()
        return
      } catch (error) {
        log.warn({ program: program.name, reason: errorMessage(error) }, 'a program did not fall asleep and is ended')
      }
    }
    await process.stop()
    state.process = undefined
  }

  function record(process: ProgramProcess, build: string, state: State): EngineLogRecord {
    const entry: EngineLogRecord = {
      engine: randomUUID(),
      build,
      startedAt: process.startedAt,
      get dropped() {
        return process.log.dropped
      },
      get lines() {
        return process.log.all()
      }
    }
    state.logs = [entry, ...state.logs].slice(0, KEPT_LOGS)
    void process.exited.then(({ code, signal, failure }) => {
      entry.endedAt = new Date().toISOString()
      entry.exit = { code, signal }
      if (failure) entry.failure = describeFailure(failure)
    })
    return entry
  }

  async function start(spec: EngineSpec, waiting: Waiting): Promise<Engine> {
    const found = find(spec.variant)!
    const state = stateOf(spec.variant)
    const process = await acquire(found, state, waiting)
    const measure = async () => {
      state.measured = (await process.memory()) ?? state.measured
    }
    await measure()
    const timer = setInterval(() => void measure(), MEASURE_MS).unref()
    const engine = createProgramEngine(spec, process, found, {
      provider: name,
      log,
      memory: () => useOf(found, state),
      stop: () => release(process, found, state)
    })
    void engine.exited.then(() => clearInterval(timer))
    return engine
  }

  return {
    name,
    serves(variant, mode) {
      const found = find(variant)
      if (!found) return 0
      // Above the score of plugins that serve any model without files.
      return mode === found.program.kind ? 2 : 0
    },
    // The command decides.
    loadOptions: () => ({}),
    async estimate({ variant }) {
      await hardware.detect()
      const found = find(variant)!
      const { name, memory } = found.program
      const state = stateOf(variant)
      const use = useOf(found, state)
      return {
        use,
        certain: memory !== undefined || state.measured !== undefined,
        explain: () => {
          const list = Object.entries(use).map(([pool, bytes]) => `${formatBytes(bytes)} (${pool})`)
          const source = memory ? `according to engines.${name}.memory` : 'as estimated from its files or measured'
          return `The program "${name}" needs ${list.join(', ')} ${source}.`
        }
      }
    },
    start,
    logs: variant => states.get(variant.key)?.logs ?? [],
    async close() {
      await Promise.all(
        [...states.values()].map(async ({ process, wakeBy }) => {
          clearTimeout(wakeBy)
          await process?.stop()
        })
      )
    }
  }
}

function describeFailure({ code, details, message }: CorralError): EngineLogRecord['failure'] {
  return { code, cause: String(details?.cause ?? code), message }
}
