import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { Type } from 'typebox'
import type { Build, Runtimes } from '../../../core/contracts/builds.ts'
import type { PoolsInUse } from '../../../core/contracts/built-in-services.ts'
import type { MemoryUse } from '../../../core/contracts/engines.ts'
import type { HardwareService } from '../../../core/contracts/hardware.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { processMemory } from '../../../core/system/processes.ts'
import type { LlamaServerEngine } from '../engine.ts'
import type { EngineLog } from '../launch.ts'
import type { LaunchSpec } from '../launch-spec.ts'
import { createLearnedFile } from '../learned-file.ts'
import { workerDevices } from '../rpc-workers.ts'
import { type DevicePools, devicePools, matchDevices, withWorkers } from './device-placement.ts'
import {
  addUse,
  beyond,
  type EngineFiles,
  type EngineNeed,
  type EnginePlace,
  engineFiles,
  estimateFromMetadata,
  fromMetadata,
  fromReport,
  getTotal,
  type MetadataEstimate,
  subtractUse,
  toNeed
} from './engine-need.ts'

export interface MemoryNeed extends EngineNeed {
  facts: EngineFacts
}

interface EngineFacts {
  /** Engines with the same key use the same memory. */
  key: string
  files: EngineFiles
  where: EnginePlace & Pick<DevicePools, 'getPool'>
  estimated: MetadataEstimate
}

export type MemoryEstimates = ReturnType<typeof createMemoryEstimates>

/** Estimates engines by an earlier engine with the same key, otherwise by metadata. */
export function createMemoryEstimates(deps: {
  runtimes: Pick<Runtimes, 'current'>
  hardware: HardwareService
  /** Folder in the data directory's cache that stores measured needs. */
  directory: string
  /** Bytes that models may use of each GPU. Undefined means all that the GPU can spare. */
  gpuMemory?: number | undefined
  /** Bytes of the machine's memory that all engines together may use now. */
  hostMemory(): Promise<number>
  log: EngineLog
}) {
  const { runtimes, hardware } = deps
  const learned = createLearnedNeeds(deps.directory, deps.log)
  const writing = new Set<Promise<void>>()

  const machine = async () => hardware.known() ?? (await hardware.detect())

  async function listPools(build: Build): Promise<DevicePools> {
    const { gpus } = await machine()
    const main = runtimes.current() ?? build
    return devicePools(build, gpus, { limit: deps.gpuMemory, main: matchDevices(main.devices, gpus) })
  }

  async function factsOf(spec: LaunchSpec, build: Build): Promise<EngineFacts> {
    const [own, memory, { cpu }] = await Promise.all([listPools(build), deps.hostMemory(), machine()])
    const pools = spec.workers?.length ? withWorkers(own, workerDevices(spec.workers), build.devices.length) : own
    const amx = process.platform === 'linux' && cpu.features.includes('amx_int8')
    const files = await engineFiles(spec, amx)
    const where = { ...pools, memory, arch: process.arch, amx }
    return { key: needKey(spec, build), files, where, estimated: estimateFromMetadata(spec, files, where) }
  }

  const inPools = (use: MemoryUse, { getPool }: Pick<DevicePools, 'getPool'>) =>
    addUse(...Object.entries(use).map(([device, bytes]) => ({ [getPool(device)]: bytes })))

  /**
   * Estimates an engine's memory. Rejects only with the signal's reason.
   * @param usual options that may have been measured: the metadata then shows only the difference to them
   */
  async function estimate(
    spec: LaunchSpec,
    build: Build,
    signal: AbortSignal,
    usual?: LoadOptions
  ): Promise<MemoryNeed> {
    signal.throwIfAborted()
    await learned.loaded
    const facts = await factsOf(spec, build)
    signal.throwIfAborted()
    const { estimated } = facts
    const before = learned.find(facts.key)
    const other = usual && before.use === undefined && { ...spec, options: usual }
    const measured = other && learned.find(needKey(other, build)).use
    if (other && measured) {
      const change = subtractUse(
        fromMetadata(estimated),
        fromMetadata(estimateFromMetadata(other, facts.files, facts.where))
      )
      return { ...toNeed(estimated, addUse(measured, change), 'learned'), facts }
    }
    const use = beyond(before.use ?? fromMetadata(estimated), before.tooLittle)
    return { ...toNeed(estimated, use, before.use ? 'learned' : 'metadata'), facts }
  }

  /** Records what an engine reports and what its process uses: at its start, and again at its end. */
  function write(engine: LlamaServerEngine, { key, estimated, where }: EngineFacts): void {
    const report = engine.memory && inPools(engine.memory, where)
    // How many layers fit depends on the other contents of memory.
    if (!report || !estimated.settled) return
    const done = processMemory(engine.pid).then(now => {
      const resident = now?.resident ?? learned.find(key).use?.host
      learned.note(key, engine.spec.alias, { use: fromReport(report, estimated, resident) })
      writing.delete(done)
    })
    writing.add(done)
  }

  return {
    estimate,
    /** Memory in use of each GPU's pool, see `EngineProvider.used`. */
    async used(): Promise<PoolsInUse> {
      const build = runtimes.current()
      if (!build) return {}
      const [{ gpus }, pools] = await Promise.all([hardware.memory(), listPools(build)])
      return pools.used(gpus)
    },
    /** Returns the bytes that engines may use of each GPU's pool, see `EngineProvider.budgets`. */
    async budgets(used: MemoryUse): Promise<MemoryUse> {
      const build = runtimes.current()
      if (!build) return {}
      const [now, pools] = await Promise.all([hardware.memory(), listPools(build)])
      return pools.budgets(now, used)
    },
    /**
     * Stores what an engine really uses. Returns the amount to reserve: reported and unreported memory, and its growth.
     */
    learn(engine: LlamaServerEngine, { facts }: MemoryNeed): MemoryUse {
      const report = engine.memory && inPools(engine.memory, facts.where)
      const start = report ? fromReport(report, facts.estimated, undefined) : fromMetadata(facts.estimated)
      write(engine, facts)
      const reported = JSON.stringify(engine.memory)
      void engine.exited.then(() => {
        if (JSON.stringify(engine.memory) !== reported) write(engine, facts)
      })
      return toNeed(facts.estimated, start, 'learned').use
    },
    /** Records that this need was too small. The next estimate for such an engine is larger. */
    learnOutOfMemory(spec: LaunchSpec, { use, facts }: MemoryNeed): void {
      const host = Math.max(0, (use.host ?? 0) - facts.estimated.growth)
      learned.note(facts.key, spec.alias, { tooLittle: { ...use, host } })
    },
    /** Explains the numbers and possible remedies (a smaller context, a q8_0 cache, fewer slots …). */
    explain(spec: LaunchSpec, need: MemoryNeed, limits: MemoryUse): string {
      const { files, where } = need.facts
      if (!files.shape) return explainNeed(spec, need, limits, undefined)
      const useOf = (options: LoadOptions) => {
        const estimated = estimateFromMetadata({ ...spec, options }, files, where)
        return addUse(fromMetadata(estimated), { host: estimated.growth })
      }
      const usual = useOf(spec.options)
      const needFor = (options: LoadOptions) => {
        const use = useOf(options)
        const pools = new Set([...Object.keys(need.use), ...Object.keys(use)])
        return Object.fromEntries(
          [...pools].map(pool => [pool, Math.max(0, (need.use[pool] ?? 0) + (use[pool] ?? 0) - (usual[pool] ?? 0))])
        )
      }
      return explainNeed(spec, need, limits, needFor)
    },
    async close(): Promise<void> {
      await Promise.all(writing)
      await learned.close()
    }
  }
}

/** Context sizes to propose, largest first. */
const CONTEXTS = [131072, 65536, 32768, 16384, 8192, 4096, 2048]
const WIDE = new Set(['f32', 'f16', 'bf16'])

function fits(use: MemoryUse, budget: MemoryUse): boolean {
  return Object.entries(use).every(([pool, bytes]) => budget[pool] === undefined || bytes <= budget[pool])
}

/** Finds the smallest change of each kind of option that makes the model fit. Empty if none does. */
function changes({ options }: LaunchSpec, needFor: (options: LoadOptions) => MemoryUse, budget: MemoryUse): string[] {
  const { num_ctx, num_parallel } = options
  const good = (changed: LoadOptions) => fits(needFor(changed), budget)
  const smaller = (base: LoadOptions) =>
    CONTEXTS.find(context => context < num_ctx && good({ ...base, num_ctx: context }))
  const quantized: LoadOptions = { ...options, cache_type_k: 'q8_0', cache_type_v: 'q8_0' }
  const wide = WIDE.has(options.cache_type_k) && WIDE.has(options.cache_type_v)
  const found: string[] = []
  const context = smaller(options)
  if (context) found.push(`num_ctx ${context} (now ${num_ctx})`)
  if (wide && good(quantized)) found.push('cache_type_k and cache_type_v q8_0')
  let slots = num_parallel - 1
  while (slots > 0 && !good({ ...options, num_parallel: slots })) slots--
  if (slots > 0) found.push(`num_parallel ${slots} (now ${num_parallel})`)
  if (found.length > 1 || (context ?? 0) >= num_ctx / 4) return found
  // No single option helps enough.
  const all = { ...(wide ? quantized : options), num_parallel: 1 }
  const last = good(all) ? num_ctx : smaller(all)
  if (last === undefined || last <= (context ?? 0)) return found
  const together = [`num_ctx ${last}`, ...(wide ? ['cache_type_k and cache_type_v q8_0'] : []), 'num_parallel 1']
  return [...found, `${joined(together, 'and')} together`]
}

// British usage has no comma before the last item.
const joined = (parts: readonly string[], word: 'and' | 'or') =>
  [parts.slice(0, -1).join(', '), ...parts.slice(-1)].filter(part => part !== '').join(` ${word} `)

function named(use: MemoryUse): string {
  const pools = Object.entries(use).map(([pool, bytes]) => {
    return `${formatBytes(bytes)} ${pool === 'host' ? 'of memory' : `on ${pool}`}`
  })
  return joined(pools, 'and')
}

/** Explains with numbers why a model does not fit, and what would help, if the need with other options is known. */
function explainNeed(
  spec: LaunchSpec,
  need: EngineNeed,
  budget: MemoryUse,
  needFor: ((options: LoadOptions) => MemoryUse) | undefined
): string {
  const { weights, cache, compute } = need.parts
  const { num_ctx, num_parallel } = spec.options
  const limits = Object.fromEntries(Object.entries(budget).filter(([pool]) => pool in need.use))
  const conversations = num_parallel === 1 ? 'a conversation' : `${num_parallel} conversations`
  const what =
    `It needs about ${named(need.use)} (weights ${formatBytes(weights)}, cache for ${conversations} of ` +
    `${num_ctx} tokens ${formatBytes(cache)}, computing ${formatBytes(compute)})`
  if (fits(need.use, budget)) {
    return `${what}; ${named(limits)} can be used by all models together. It fits when other models are stopped.`
  }
  const short = `${what}, but only ${named(limits)} can be used.`
  const options = needFor ? changes(spec, needFor, budget) : []
  if (options.length > 0) return `${short} It would fit with ${joined(options, 'or')}.`
  const left = getTotal(limits) - compute
  const smaller =
    left > 0
      ? `Use a smaller quantization or a smaller model, with weights below ${formatBytes(left)}.`
      : 'Close other programs, or raise scheduler.memory and scheduler.gpu_memory in config.yaml if they are set.'
  return `${short} No smaller context makes it fit. ${smaller}`
}

const UseSchema = Type.Record(Type.String({ maxLength: 100 }), Type.Number({ minimum: 0 }))
const NeedSchema = Type.Object({
  /** Bytes by pool that an engine used from the start. */
  use: Type.Optional(UseSchema),
  /** Bytes by pool that were too little. */
  tooLittle: Type.Optional(UseSchema),
  /** Only for human readers of the file. */
  model: Type.String()
})

const FILE = 'memory-needs.json'
/** Milliseconds after which running out of memory is assumed to have had another reason. */
const FORGET = 7 * 24 * 3_600_000

/** Returns the key of engines that use the same memory: the same files, options and flags on the same kind of build. */
export function needKey(spec: LaunchSpec, build: Build): string {
  const { dtype: _, ...options } = spec.options
  const { arguments: flags = [], environment, speculation, loras, projector } = spec.settings ?? {}
  const facts = [
    [spec.variant.key, spec.variant.revision, spec.modelPath, spec.mode, spec.projectorPath ?? null],
    Object.entries(options).sort(),
    [flags, environment ?? null, speculation ?? null, loras ?? null, projector ?? null],
    [build.kind, build.devices.map(({ id, description }) => [id, description])],
    ...(spec.workers ?? []).map(({ name, facts }) => [name, facts.devices.map(device => [device.name, device.total])])
  ]
  return createHash('sha256').update(JSON.stringify(facts)).digest('hex').slice(0, 32)
}

export function createLearnedNeeds(
  directory: string,
  log: { warn(object: object, message: string): void },
  now: () => number = Date.now
) {
  const needs = createLearnedFile(join(directory, FILE), 'needs', NeedSchema, log, now)
  return {
    loaded: needs.loaded,
    find(key: string): { use?: MemoryUse | undefined; tooLittle?: MemoryUse | undefined } {
      const entry = needs.get(key)
      const recent = entry && now() - Date.parse(entry.at) < FORGET
      return { use: entry?.use, tooLittle: recent ? entry.tooLittle : undefined }
    },
    note(key: string, model: string, learned: { use: MemoryUse } | { tooLittle: MemoryUse }): void {
      // An engine that runs shows that there was enough memory. Its measured use survives a later shortage.
      const kept = 'use' in learned ? undefined : needs.get(key)?.use
      needs.set(key, { ...(kept ? { use: kept } : {}), ...learned, model })
    },
    close: needs.close
  }
}
