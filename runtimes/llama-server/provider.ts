import type { Build, Runtimes } from '../../core/contracts/builds.ts'
import type { Conversion } from '../../core/contracts/conversion.ts'
import type { EngineMode, EngineProvider, EngineSpec, MemoryEstimate } from '../../core/contracts/engines.ts'
import type { Capability, Catalog, Model } from '../../core/contracts/models.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import { hasFiles, requireFiles, type Storage } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import type { LoadOptions } from '../../core/models/load-options.ts'
import { withResolver } from '../../core/system/abort-signals.ts'
import { KNOWN_OPTIONS } from './answer-fields.ts'
import { createLlamaServerEngine, getTemplate, type LlamaServerEngine } from './engine.ts'
import type { EngineLogs } from './engine-logs.ts'
import { type GrammarLimits, grammarCheck } from './grammar-bounds.ts'
import { unenforced } from './grammar-schemas.ts'
import { createInputRecords, listConstraints } from './input-guard.ts'
import type { EngineLog } from './launch.ts'
import { type LaunchSpec, launchSpec, ownFiles } from './launch-spec.ts'
import type { MemoryEstimates, MemoryNeed } from './memory/memory-estimates.ts'
import type { PromptCache } from './prompt-cache/prompt-cache.ts'
import type { RpcWorkers } from './rpc-workers.ts'
import { type Chosen, type SpeculationChooser, withMethod } from './speculation.ts'

/** One of these capabilities is enough. llama-server would load other models all the same and answer nonsense. */
const ENOUGH: Record<string, readonly Capability[]> = {
  chat: ['completion'],
  embedding: ['embedding', 'completion'],
  rerank: ['rerank']
}

/** Rates how well llama-server serves a model in a mode, by its metadata: 1, or 0 if it cannot. */
export function servesMode({ metadata }: Pick<Model, 'metadata'>, mode: EngineMode): number {
  return ENOUGH[mode]?.some(capability => metadata.capabilities.includes(capability)) ? 1 : 0
}

export interface ProviderDeps {
  catalog: Pick<Catalog, 'find'>
  storage: Pick<Storage, 'hold' | 'onRemove'>
  conversion: Pick<Conversion, 'convert' | 'list' | 'requireDtype'>
  runtimes: Pick<Runtimes, 'build' | 'current' | 'environment' | 'startOn' | 'engineSettings'>
  memory: MemoryEstimates
  promptCache: PromptCache
  speculation: SpeculationChooser
  rpcWorkers: RpcWorkers
  engineLogs: EngineLogs
  /** Frees main memory for an engine, as far as states of earlier prompts use it. @param bytes that it needs */
  freeMemory(bytes: number): Promise<void>
  grammarLimits: GrammarLimits
  log: EngineLog
  /** Milliseconds that an engine may use the processor without progress. 0 is unlimited. */
  stuckAfter: number
  startEngine?: typeof createLlamaServerEngine
}

interface LlamaServerEstimate extends MemoryEstimate {
  need: MemoryNeed
  chosen: Chosen
}

/** Serves the models in storage with llama-server: GGUF directly, SafeTensors after conversion. */
export function createLlamaServerProvider(deps: ProviderDeps): EngineProvider {
  const { catalog, storage, conversion, runtimes, memory, promptCache, speculation, rpcWorkers, engineLogs, log } = deps
  const startEngine = deps.startEngine ?? createLlamaServerEngine
  const inputs = createInputRecords()
  const checkGrammars = grammarCheck(deps.grammarLimits)
  /** Running engines, with the save in progress. */
  const running = new Map<LlamaServerEngine, Promise<void> | undefined>()

  storage.onRemove(async variants => {
    const keys = new Set(variants.map(({ key }) => key))
    const ending = [...running].filter(([{ spec }]) => keys.has(spec.variant.key))
    // Files that an engine saves until its end would otherwise stay forever.
    await Promise.all(ending.map(([engine, saving]) => Promise.all([engine.exited, saving])))
    await Promise.all([...keys].map(variant => promptCache.forget({ variant })))
  })

  async function createLaunchSpec(spec: EngineSpec, waiting: Waiting): Promise<LaunchSpec> {
    const { options } = spec
    const variant = requireFiles(spec.variant)
    const files =
      variant.format === 'gguf' ? ownFiles(variant) : await conversion.convert(variant, options.dtype, waiting)
    return launchSpec({ ...spec, variant }, files, catalog)
  }

  async function getEstimate(spec: EngineSpec, waiting: Waiting, usual?: LoadOptions): Promise<LlamaServerEstimate> {
    const files = await createLaunchSpec(spec, waiting)
    // Callers that wait also see the progress of a build that is still being made.
    const build = await runtimes.build(waiting, files.settings?.runtime)
    await speculation.loaded
    const chosen = speculation.choose(files, build)
    const rpc = files.settings?.rpc
    const workers = rpc && { workers: await rpcWorkers.reach(spec.alias, rpc, build, waiting) }
    const launch = { ...withMethod(files, chosen), ...workers }
    const need = await memory.estimate(launch, build, waiting.signal ?? new AbortController().signal, usual)
    return {
      need,
      chosen,
      use: need.use,
      // Without a shape, a typical model is assumed.
      certain: need.from === 'learned' || need.facts.files.shape !== undefined,
      explain: budget => memory.explain(launch, need, budget)
    }
  }

  async function launch(spec: LaunchSpec, { chosen, need }: LlamaServerEstimate, waiting: Waiting) {
    const template = getTemplate(spec)
    if (template) inputs.check([template], spec.alias)
    const { promise: outdated, resolve: outdate } = withResolver()
    const { ngram, mtp, companion, draft } = spec.settings?.speculation ?? {}
    const refuseProbabilities =
      ngram || mtp || companion || draft
        ? () => {
            outdate()
            return speculation.refuseProbabilities(chosen)
          }
        : undefined
    const watched = { stuckAfter: deps.stuckAfter, reserved: need.use.host, inputs, rpcWorkers, refuseProbabilities }
    const rpc = spec.settings?.rpc
    const start = async (build: Build) =>
      await startEngine(
        build,
        // Requested again, because a load may have waited long and the build may have changed.
        rpc ? { ...spec, workers: await rpcWorkers.reachFree(spec.alias, rpc, build, waiting) } : spec,
        { ...runtimes.engineSettings, ...watched, log, engineLogs, environment: runtimes.environment(build) },
        waiting
      )
    let engine: LlamaServerEngine
    try {
      engine = await runtimes.startOn({ name: spec.alias, choice: spec.settings?.runtime }, start, waiting)
    } catch (error) {
      if (error instanceof CorralError && error.code === 'insufficient_memory') memory.learnOutOfMemory(spec, need)
      const cause = error instanceof CorralError ? error.details?.cause : undefined
      // A load uses no other input from clients.
      if (template && (cause === 'stuck' || cause === 'over_memory')) inputs.strike(template, cause)
      throw error
    }
    await promptCache.attach(engine)
    engine.reserved = memory.learn(engine, need)
    engine.outdated = outdated
    Object.defineProperty(engine, 'speculation', { get: () => speculation.describe(chosen) })
    speculation.follow(engine, chosen, outdate)
    engine.saveSlots = () => {
      const saving = engine.promptSlots.saveAll().then(() => promptCache.sealed())
      if (running.has(engine)) running.set(engine, saving)
      return saving
    }
    return engine
  }

  /** Starts an engine. If it fails with a method of guessing ahead, it starts without. */
  async function launchChosen(spec: LaunchSpec, estimate: LlamaServerEstimate, waiting: Waiting) {
    const { chosen } = estimate
    try {
      return await launch(withMethod(spec, chosen), estimate, waiting)
    } catch (error) {
      const isFailure = error instanceof CorralError && /^(load_failed|insufficient_memory)$/.test(error.code)
      if (!isFailure || chosen.method === 'none' || waiting.signal?.aborted) throw error
      speculation.failed(chosen, error.message)
      const plain: Chosen = { ...chosen, method: 'none', settings: { ngram: false } }
      return await launch(withMethod(spec, plain), { ...estimate, chosen: plain }, waiting)
    }
  }

  return {
    name: 'llama-server',
    knownOptions: new Set(KNOWN_OPTIONS),
    serves: (model, mode) => (hasFiles(model) ? servesMode(model, mode) : 0),
    async check(request) {
      const isRisky = await checkGrammars(request)
      // The request runs alone until it has generated something, so that it cannot end other answers.
      if (isRisky) for (const input of listConstraints(request)) if (!inputs.hasCompleted(input)) inputs.suspect(input)
    },
    unenforced,

    // `dtype` selects the conversion of a SafeTensors model. Other models ignore it.
    loadOptions({ format }, { dtype, ...others }, defaults) {
      const type = dtype === undefined ? {} : { dtype: conversion.requireDtype(dtype) }
      if (format === 'gguf') return others
      conversion.requireDtype(defaults.dtype)
      return { ...others, ...type }
    },

    async estimate(spec, waiting) {
      const release = storage.hold(requireFiles(spec.variant))
      try {
        return await getEstimate(spec, waiting)
      } finally {
        release()
      }
    },

    async preview(spec, usual, signal) {
      const variant = requireFiles(spec.variant)
      const { runtime, rpc } = spec.settings ?? {}
      if (!runtimes.current() || runtime !== undefined || rpc) return undefined
      if (variant.format !== 'gguf') {
        const dtype = conversion.requireDtype(spec.options.dtype)
        if (!(await conversion.list(variant)).some(made => made.dtype === dtype)) return undefined
      }
      const release = storage.hold(variant)
      return await getEstimate(spec, { signal }, usual).finally(release)
    },

    async start(spec, waiting, given) {
      // A newer revision may replace this one while it is in use.
      const release = storage.hold(requireFiles(spec.variant))
      try {
        const estimate = given ? (given as LlamaServerEstimate) : await getEstimate(spec, waiting)
        const { bounds, use } = estimate.need
        const plain = { ...(await createLaunchSpec(spec, waiting)), bounds }
        const slotFolder = await promptCache.folderFor(withMethod(plain, estimate.chosen))
        await deps.freeMemory(use.host ?? 0)
        const launched = slotFolder === undefined ? plain : { ...plain, slotFolder }
        const engine = await launchChosen(launched, estimate, waiting)
        running.set(engine, undefined)
        void engine.exited.then(() => {
          running.delete(engine)
          release()
        })
        return engine
      } catch (error) {
        release()
        throw error
      }
    },

    budgets: async held => {
      const [own, workers] = await Promise.all([memory.budgets(held), rpcWorkers.budgets(held)])
      return { ...workers, ...own }
    },
    used: memory.used,
    reclaimable: () => promptCache.memoryUse(),
    storedConversations: () => promptCache.summaries(),
    forgetConversations: ({ model, owner }) => promptCache.forget({ variant: model, owner }),
    // Logs of an earlier model with the same name belong to that model.
    logs: ({ key, modifiedAt }) => engineLogs.records(key).filter(({ startedAt }) => startedAt >= modifiedAt),
    async close() {
      await Promise.all([memory.close(), speculation.close(), rpcWorkers.close()])
    }
  }
}
