import { freemem, totalmem } from 'node:os'
import type { Build, MemoryUse, Runtimes } from '../../../core/contracts/builds.ts'
import type { Engine, EngineSpec } from '../../../core/contracts/engines.ts'
import type { HardwareService, MemoryNow } from '../../../core/contracts/hardware.ts'
import { messageOf } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/options.ts'
import { processMemory } from '../../../core/system/process-memory.ts'
import { hostBudget } from '../../../plugins/scheduler/host-budget.ts'
import { explainNeed } from './advice.ts'
import { type DevicePools, devicePools, matchDevices } from './device-pools.ts'
import { engineFiles } from './engine-files.ts'
import { addUse, type EngineFiles, type EnginePlace, needOf, type Reckoning, reckon } from './engine-need.ts'
import { createLearnedNeeds, needKey } from './learned-needs.ts'
import type { MemoryBook, MemoryNeed } from './memory-book.ts'
import { beyond, fromFit, fromMetadata, fromReport } from './memory-sources.ts'

export interface MemoryBookDeps {
  runtimes: Pick<Runtimes, 'build' | 'estimateMemory' | 'current'>
  hardware: HardwareService
  /** Folder of the data directory's cache that is this book's own. */
  directory: string
  /** Bytes that models may take of the machine's memory and of each GPU; what is undefined is found out. */
  options: { memory?: number | undefined; gpuMemory?: number | undefined }
  log: { debug(object: object, message: string): void; warn(object: object, message: string): void }
}

/** What is known of an engine that was asked for. */
interface Known {
  key: string
  build: Build
  files: EngineFiles
  where: EnginePlace
  pools: DevicePools
  reckoning: Reckoning
}

const KEPT = 100

/**
 * Knows what models need and what there is. A need is what an engine like it took before, else what llama-fit-params
 * reckons, else what the files' metadata say; each with what the engine takes beside its own report, and with what its
 * caches may grow to (`Reckoning.growth`). What engines take is kept in `directory`.
 */
export function createMemoryBook(deps: MemoryBookDeps): MemoryBook & { close(): Promise<void> } {
  const { runtimes, hardware, options, log } = deps
  const learned = createLearnedNeeds(deps.directory, log)
  const known = new Map<string, Known>()
  const fits = new Map<string, MemoryUse | undefined>()
  /** Engines that are there, with what they are counted with. */
  const live = new Map<Engine, MemoryUse>()
  const writing = new Set<Promise<void>>()

  function keep<Value>(map: Map<string, Value>, key: string, value: Value): void {
    map.delete(key)
    map.set(key, value)
    for (const oldest of map.keys()) {
      if (map.size <= KEPT) return
      map.delete(oldest)
    }
  }

  const gpusOf = async (build: Build) =>
    build.devices.length === 0 ? [] : (hardware.known() ?? (await hardware.detect())).gpus

  async function poolsOf(build: Build): Promise<DevicePools> {
    const gpus = await gpusOf(build)
    const main = runtimes.current() ?? build
    return devicePools(build, gpus, { limit: options.gpuMemory, main: matchDevices(main.devices, gpus) })
  }

  /** Engines start on this build; none where none can be had, which the start itself will tell. */
  async function buildOf(spec: EngineSpec, signal: AbortSignal): Promise<Build | undefined> {
    try {
      return await runtimes.build({ signal }, spec.settings?.runtime)
    } catch (error) {
      signal.throwIfAborted()
      log.debug({ model: spec.alias, reason: messageOf(error) }, 'There is no build to reckon memory for.')
      return undefined
    }
  }

  async function find(spec: EngineSpec, build: Build): Promise<Known> {
    const key = needKey(spec, build)
    const [files, pools, now] = await Promise.all([engineFiles(spec), poolsOf(build), hardware.memory()])
    const where: EnginePlace = {
      devices: pools.devices,
      memory: await hostRoom(now, {}),
      arch: process.arch,
      ...(pools.margins ? { deviceMargins: pools.margins } : {})
    }
    const found = { key, build, files, where, pools, reckoning: reckon(spec, files, where) }
    keep(known, key, found)
    keep(keys, specKey(spec), key)
    return found
  }

  /** The last key of specs that look the same, for those who ask without a build. */
  const keys = new Map<string, string>()
  const specKey = (spec: EngineSpec) =>
    JSON.stringify([spec.variant.key, spec.variant.revision, spec.modelPath, spec.mode, spec.options, spec.settings])
  const knownOf = (spec: EngineSpec) => known.get(keys.get(specKey(spec)) ?? '')

  const inPools = (use: MemoryUse, { poolOf }: DevicePools) =>
    addUse(...Object.entries(use).map(([device, bytes]) => ({ [poolOf(device)]: bytes })))

  async function fitOf(spec: EngineSpec, { key, pools }: Known, signal: AbortSignal): Promise<MemoryUse | undefined> {
    if (!fits.has(key)) {
      const fit = await runtimes.estimateMemory(spec, { signal }).catch(error => {
        signal.throwIfAborted()
        log.debug({ model: spec.alias, reason: messageOf(error) }, 'llama-fit-params could not tell what it takes.')
        return undefined
      })
      keep(fits, key, fit && inPools(fit, pools))
    }
    return fits.get(key)
  }

  /** Builds without llama-fit-params are older than what bounds the answers of a batch. */
  const byMetadata = ({ reckoning, where, build }: Known): MemoryUse =>
    fromMetadata(reckoning, where.devices, build.executables.fitParams === undefined)

  async function estimate(spec: EngineSpec, signal: AbortSignal): Promise<MemoryNeed> {
    signal.throwIfAborted()
    const build = await buildOf(spec, signal)
    await learned.loaded
    const found = await find(spec, build ?? NO_BUILD)
    signal.throwIfAborted()
    const { reckoning } = found
    const before = learned.find(found.key)
    if (before.use) return needOf(reckoning, beyond(before.use, before.tooLittle), 'learned')
    const fit = build && (await fitOf(spec, found, signal))
    const start = fit && fromFit(fit, reckoning, found.where.devices)
    return needOf(reckoning, beyond(start ?? byMetadata(found), before.tooLittle), start ? 'fit' : 'metadata')
  }

  /** Writes down what an engine reports and its process holds: at its start, and what it really had at its end. */
  function write(engine: Engine, found: Known): void {
    const { key, reckoning, pools } = found
    const report = engine.memory && inPools(engine.memory, pools)
    // How many layers found room by themselves depends on what else there was.
    if (!report || !reckoning.settled) return
    const done = processMemory(engine.pid).then(now => {
      const resident = now?.resident ?? learned.find(key).use?.host
      learned.note(key, engine.spec.alias, { use: fromReport(report, reckoning, resident) })
      writing.delete(done)
    })
    writing.add(done)
  }

  function learn(engine: Engine): MemoryUse {
    const found = knownOf(engine.spec)
    if (!found) return engine.memory ?? {}
    const report = engine.memory && inPools(engine.memory, found.pools)
    const start = report ? fromReport(report, found.reckoning, undefined) : byMetadata(found)
    const { use } = needOf(found.reckoning, start, 'learned')
    live.set(engine, use)
    write(engine, found)
    const reported = JSON.stringify(engine.memory)
    void engine.exited.then(() => {
      live.delete(engine)
      if (JSON.stringify(engine.memory) !== reported) write(engine, found)
    })
    return use
  }

  /** Bytes of the machine's memory for all engines together. */
  async function hostRoom({ host }: MemoryNow, held: MemoryUse): Promise<number> {
    const engines = [...live]
    const processes = await Promise.all(engines.map(([engine]) => processMemory(engine.pid)))
    const counted = engines.reduce((sum, [, use]) => sum + (use.host ?? 0), 0)
    const real = engines.reduce((sum, [, use], at) => sum + (processes[at]?.own ?? use.host ?? 0), 0)
    // What is held by others than those is being loaded.
    const loading = Math.max(0, (held.host ?? 0) - counted)
    // Of a system that tells nothing, what Node knows has to do.
    const machine = host.total > 0 ? host : { total: totalmem(), available: freemem() }
    return hostBudget({ ...machine, engines: real + loading }, options.memory)
  }

  async function budget(held: MemoryUse): Promise<MemoryUse> {
    const build = runtimes.current()
    const [now, pools] = await Promise.all([hardware.memory(), build && poolsOf(build)])
    return { host: await hostRoom(now, held), ...(pools?.budgets(now, held) ?? {}) }
  }

  function explain(spec: EngineSpec, need: MemoryNeed, limits: MemoryUse): string {
    const found = knownOf(spec)
    if (!found?.files.shape) return explainNeed(spec, need, limits, undefined)
    const useOf = (options: LoadOptions) => {
      const { core, draft, beside, growth } = reckon({ ...spec, options }, found.files, found.where)
      return addUse(core, draft, beside, { host: growth })
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
  }

  return {
    estimate,
    budget,
    learn,
    learnOutOfMemory(spec, need) {
      const found = knownOf(spec)
      if (!found) return
      const host = Math.max(0, (need.use.host ?? 0) - found.reckoning.growth)
      learned.note(found.key, spec.alias, { tooLittle: { ...need.use, host } })
    },
    explain,
    async close() {
      await Promise.all(writing)
      await learned.close()
    }
  }
}

/** Stands for the processor alone where there is no build yet. */
const NO_BUILD: Build = {
  id: 'none',
  kind: 'cpu',
  source: 'none',
  version: '',
  directory: '',
  executables: { server: '' },
  digest: '',
  origin: '',
  devices: []
}
