import type { FastifyBaseLogger } from 'fastify'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { settingsFor } from '../../core/config/model-settings.ts'
import type { Engine, EngineSpec, MemoryUse } from '../../core/contracts/engines.ts'
import type { Hooks } from '../../core/contracts/hooks.ts'
import type { Catalog, Model } from '../../core/contracts/models.ts'
import type { Progress, Waiting } from '../../core/contracts/progress.ts'
import type { Storage } from '../../core/contracts/storage.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import type { LoadOptions } from '../../core/models/load-options.ts'
import type { EngineRegistry } from './engine-registry.ts'
import type { HostMemory } from './host-memory.ts'
import { type ManagedEngine, settleGone } from './managed-engine.ts'
import { type Event, isIn, reservedBy, type SchedulerState } from './scheduler-state.ts'

export interface LoadDependencies {
  storage: Pick<Storage, 'onRemove'>
  catalog: Catalog
  engines: EngineRegistry
  hostMemory: HostMemory
  config: CoreConfig
  hooks: Pick<Hooks, 'modelLoaded' | 'modelUnloaded'>
  log: FastifyBaseLogger
}

/** `num_ctx` as far as the model can use it; a larger one is logged. */
export function cappedOptions<Options extends Partial<LoadOptions>>(
  options: Options,
  variant: Model,
  log: Pick<FastifyBaseLogger, 'warn'>
): Options {
  const { contextLength: trained } = variant.metadata
  if (trained === undefined || options.num_ctx === undefined || options.num_ctx <= trained) return options
  log.warn(
    { model: variant.publicName, requested: options.num_ctx, effective: trained },
    'num_ctx is larger than the context this model was trained for and is capped to it'
  )
  return { ...options, num_ctx: trained }
}

/** Carries out what `decide.ts` decides about engines, and reports back by `dispatch`. */
export function createEngineLoads(
  deps: LoadDependencies,
  state: SchedulerState,
  {
    dispatch,
    report
  }: { dispatch: (event: Event) => void; report: (managed: ManagedEngine, progress: Progress) => void }
) {
  const { catalog, engines, hostMemory, config, hooks, log } = deps
  let measured = false

  /** The newest revision of a managed engine's model, the provider of its engines, and what one is started for. */
  function specOf(managed: ManagedEngine, options: LoadOptions) {
    const variant = catalog.get({ ...managed.variant.model, variant: managed.variant.label })
    const provider = engines.requireProvider(variant, managed.mode)
    const spec: EngineSpec = {
      alias: variant.publicName,
      mode: managed.mode,
      variant,
      options: cappedOptions(options, variant, log),
      settings: settingsFor(config, variant).engine
    }
    return { provider, spec }
  }

  function waitingOf(managed: ManagedEngine, { signal }: AbortController): Waiting {
    return { signal, onProgress: progress => report(managed, progress) }
  }

  /**
   * Measures how much memory there is. While something loads nobody knows how much of its share it has taken
   * already, so that what was measured last stays in force.
   */
  async function measureBudget(): Promise<void> {
    const present = [...state.engines.values()]
    if (measured && present.some(engine => isIn(engine, 'loading'))) return
    const held: MemoryUse = {}
    for (const engine of present) {
      if (isIn(engine, 'loading')) continue
      for (const [pool, bytes] of Object.entries(reservedBy(engine))) held[pool] = (held[pool] ?? 0) + bytes
    }
    const budget = await engines.budget(held)
    measured = true
    dispatch({ type: 'budget', budget })
  }

  /** Finds out what a load takes; converts the model's files first where that is needed. */
  async function prepare(managed: ManagedEngine, run: number, options: LoadOptions): Promise<void> {
    const controller = new AbortController()
    const { signal } = controller
    managed.preparing = controller
    // The effects of one event are carried out to the end before any outcome comes back.
    await Promise.resolve()
    let outcome: Event
    try {
      const { provider, spec } = specOf(managed, options)
      const estimate = await provider.estimate?.(spec, waitingOf(managed, controller))
      await measureBudget()
      signal.throwIfAborted()
      managed.estimate = estimate
      const { use: need, certain } = estimate ?? { use: {}, certain: true }
      const advice = estimate?.explain(state.budget) ?? ''
      outcome = { type: 'prepared', key: managed.key, run, need, certain, advice }
    } catch (error) {
      outcome = { type: 'prepare-failed', key: managed.key, run, error: failureOf(managed, signal, error) }
    }
    managed.preparing = undefined
    managed.progress = undefined
    settleGone(managed)
    dispatch(outcome)
  }

  async function load(managed: ManagedEngine, run: number, options: LoadOptions): Promise<void> {
    const controller = new AbortController()
    managed.loading = controller
    await Promise.resolve()
    const started = Date.now()
    const { estimate } = managed
    let engine: Engine
    try {
      const { provider, spec } = specOf(managed, options)
      // The newest revision counts at every load.
      managed.variant = spec.variant
      log.info({ options: spec.options, need: estimate?.use }, `loading ${managed.variant.publicName}`)
      report(managed, { phase: 'loading', subject: '' })
      engine = await provider.start(spec, waitingOf(managed, controller), estimate)
    } catch (error) {
      const failure = failureOf(managed, controller.signal, error)
      managed.loading = undefined
      managed.progress = undefined
      settleGone(managed)
      dispatch({ type: 'load-failed', key: managed.key, run, error: failure })
      return
    }
    managed.loading = undefined
    managed.progress = undefined
    managed.engine = engine
    managed.loadedAt = Date.now()
    const cost = managed.loadedAt - started
    const serves = !controller.signal.aborted
    void engine.exited.then(exit => {
      managed.engine = undefined
      settleGone(managed)
      const name = managed.variant.publicName
      if (serves) hooks.modelUnloaded({ model: name, mode: managed.mode })
      const { failure, ...how } = exit
      if (exit.expected) log.info(`unloaded ${name}`)
      else log.error({ model: name, ...how, tail: engine.logTail().slice(-20) }, 'the engine died')
      const error =
        failure ??
        new CorralError(
          'engine_crashed',
          `The engine of model "${name}" ended unexpectedly (${exit.signal ?? `exit code ${exit.code}`}). Send the request again; it starts anew.`
        )
      dispatch({ type: 'gone', key: managed.key, run, ...(exit.expected ? {} : { error }) })
    })
    if (!serves) {
      // Stopped in the instant that it became ready: the machine waits for its end.
      await engine.stop()
      return
    }
    const use = engine.reserved ?? engine.memory ?? estimate?.use ?? {}
    hostMemory.add(engine, use.host ?? 0)
    log.info({ pid: engine.pid, ms: cost, use }, `loaded ${managed.variant.publicName}`)
    hooks.modelLoaded({ model: managed.variant.publicName, mode: managed.mode, milliseconds: cost })
    dispatch({ type: 'loaded', key: managed.key, run, use, slots: engine.slots, loadTime: cost })
    measureBudget().catch(error => log.error({ err: error }, 'the memory of this machine cannot be measured'))
  }

  function failureOf(managed: ManagedEngine, signal: AbortSignal, error: unknown): CorralError {
    if (!signal.aborted) log.error({ model: managed.variant.publicName, err: error }, 'loading failed')
    return asCorralError(signal.aborted ? signal.reason : error)
  }

  async function unload({ engine, variant }: ManagedEngine, save: boolean): Promise<void> {
    if (!engine) return
    log.info(`unloading ${variant.publicName}`)
    try {
      if (save) await engine.saveSlots?.()
      await engine.stop()
    } catch (error) {
      log.error({ err: error }, 'the engine did not stop')
    }
  }

  return { prepare, load, unload }
}

function asCorralError(error: unknown): CorralError {
  if (error instanceof CorralError) return error
  return new CorralError('load_failed', `The model could not be loaded: ${messageOf(error)}`, { cause: error })
}
