import { setTimeout as sleep } from 'node:timers/promises'
import type { Engine, EngineExit, EngineSpec, MemoryUse } from '../../../core/contracts/engines.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { hasFiles } from '../../../core/contracts/storage.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { clampOptions, UNBOUNDED } from './model-configuration.ts'
import { type EngineRecord, engineFault, type SchedulerCore, settleGone } from './scheduler-core.ts'
import { type Event, isIn, reservedBy } from './scheduler-state.ts'

/** Milliseconds that an engine has to report its end after `stop` has resolved. */
const EXIT_GRACE_MS = 2000

/**
 * Prepares, loads and unloads engines, and reports each outcome as an event.
 * @param onOutdated called once an engine's provider would start it differently
 */
export function createEngineLifecycle(core: SchedulerCore, onOutdated: (record: EngineRecord) => void) {
  const { catalog, engines, hostMemory, hooks, log, models, records, state } = core
  /** By variant key: the error of the last failed load, for users. The back-off of loads uses `EngineState.failure`. */
  const failures = new Map<string, CorralError>()
  let measured = false

  /** Returns the newest revision of an engine's model, its provider and its spec. */
  function getSpec(record: EngineRecord, options: LoadOptions) {
    const variant = catalog.get({ ...record.variant.model, variant: record.variant.label })
    const provider = engines.requireProvider(variant, record.mode)
    const spec: EngineSpec = {
      alias: variant.publicName,
      mode: record.mode,
      variant,
      // A newer revision may have been trained with a smaller context.
      options: clampOptions(options, variant, UNBOUNDED),
      settings: models.getSettings(variant).engine
    }
    return { provider, spec }
  }

  function toWaiting(record: EngineRecord, { signal }: AbortController): Waiting {
    return { signal, onProgress: progress => core.report(record, progress) }
  }

  /**
   * Measures how much memory engines may use. While a model loads, it is unknown how much of its share it already uses,
   * so the last figure stays.
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
    core.dispatch({ type: 'budget', budget })
  }

  function refreshBudget(): void {
    measureBudget().catch(error => log.error({ err: error }, 'the memory of this machine cannot be measured'))
  }

  /** Estimates a load. If necessary it converts the model's files first. */
  async function prepare(record: EngineRecord, run: number, options: LoadOptions): Promise<void> {
    const controller = new AbortController()
    const { signal } = controller
    record.work = controller
    // All effects of an event are carried out before any outcome returns.
    await Promise.resolve()
    let outcome: Event
    try {
      const { provider, spec } = getSpec(record, options)
      record.basis = models.getBasis(spec.variant)
      const waiting = toWaiting(record, controller)
      if (hasFiles(spec.variant)) await core.storage.requireTrusted(spec.variant, waiting)
      const estimate = await provider.estimate?.(spec, waiting)
      await measureBudget()
      signal.throwIfAborted()
      record.estimate = estimate
      const { use: need, certain } = estimate ?? { use: {}, certain: true }
      const advice = estimate?.explain(state.budget) ?? ''
      outcome = { type: 'prepared', key: record.key, run, need, certain, advice }
    } catch (error) {
      outcome = { type: 'prepare-failed', key: record.key, run, error: toFailure(record, signal, error) }
    }
    record.work = undefined
    record.progress = undefined
    settleGone(record)
    core.dispatch(outcome)
  }

  async function load(record: EngineRecord, run: number, options: LoadOptions): Promise<void> {
    const controller = new AbortController()
    record.work = controller
    await Promise.resolve()
    const started = performance.now()
    const { estimate } = record
    let engine: Engine
    try {
      const { provider, spec } = getSpec(record, options)
      // Each load uses the newest revision.
      record.variant = spec.variant
      record.basis = models.getBasis(spec.variant)
      record.isTrial = models.isTrial(spec.variant)
      log.info({ options: spec.options, need: estimate?.use }, `loading ${record.variant.publicName}`)
      core.report(record, { phase: 'loading', subject: '' })
      engine = await provider.start(spec, toWaiting(record, controller), estimate)
      const others = [...records.values()].flatMap(({ engine: other }) => (other ? [other.id] : []))
      const fault = engineFault(engine, others)
      if (fault) {
        void (async () => engine?.stop?.())().catch(error => log.error({ err: error }, 'the engine did not stop'))
        throw new CorralError('load_failed', `The engine provider "${provider.name}" started an engine ${fault}.`)
      }
    } catch (error) {
      const failure = toFailure(record, controller.signal, error)
      record.work = undefined
      record.progress = undefined
      settleGone(record)
      core.dispatch({ type: 'load-failed', key: record.key, run, error: failure })
      return
    }
    record.work = undefined
    record.progress = undefined
    record.engine = engine
    record.loadedAt = performance.now()
    const cost = Math.round(record.loadedAt - started)
    const serves = !controller.signal.aborted
    const exited = new Promise<EngineExit>(resolve => {
      record.markEnded = resolve
      const failed = (error: unknown) =>
        resolve({ code: null, signal: null, expected: false, failure: asCorralError(error) })
      engine.exited.then(resolve, failed)
    })
    record.exited = exited
    void exited.then(exit => {
      record.engine = undefined
      settleGone(record)
      const name = record.variant.publicName
      const { failure, ...how } = exit
      const reason = exit.expected ? (record.unloadReason ?? 'stopped') : 'failed'
      record.unloadReason = undefined
      if (serves) hooks.modelUnloaded({ model: name, mode: record.mode, reason, ...getCause(failure) })
      if (exit.expected) log.info(`unloaded ${name}`)
      else log.error({ model: name, ...how, tail: engine.logTail().slice(-20) }, 'the engine died')
      const error =
        failure ??
        new CorralError(
          'engine_crashed',
          `The engine of model "${name}" ended unexpectedly (${exit.signal ?? `exit code ${exit.code}`}). Send the request again to restart it.`
        )
      core.dispatch({ type: 'gone', key: record.key, run, ...(exit.expected ? {} : { error }) })
    })
    if (!serves) {
      // The engine was stopped just as it became ready. Wait for its end.
      await stopEngine(record, engine)
      return
    }
    const use = engine.reserved ?? engine.memory ?? estimate?.use ?? {}
    hostMemory.add({ pid: engine.pid, exited }, use.host ?? 0)
    log.info({ pid: engine.pid, ms: cost, use }, `loaded ${record.variant.publicName}`)
    if (failures.delete(record.variant.key)) hooks.stateChanged('model')
    hooks.modelLoaded({ model: record.variant.publicName, mode: record.mode, milliseconds: cost })
    core.dispatch({ type: 'loaded', key: record.key, run, use, slots: engine.slots, loadTime: cost })
    refreshBudget()
    void engine.outdated?.then(() => {
      if (record.engine === engine) onOutdated(record)
    })
  }

  function toFailure(record: EngineRecord, signal: AbortSignal, error: unknown): CorralError {
    if (signal.aborted) return asCorralError(signal.reason)
    const { publicName } = record.variant
    log.error({ model: publicName, err: error }, 'loading failed')
    const failure = asCorralError(error)
    failures.set(record.variant.key, failure)
    hooks.stateChanged('model')
    hooks.loadFailed({ model: publicName, mode: record.mode, code: failure.code, ...getCause(failure) })
    return failure
  }

  /** Stops an engine. After a grace period it counts as ended even if its plugin never reports the end. */
  async function stopEngine(record: EngineRecord, engine: Engine): Promise<void> {
    try {
      await engine.stop()
    } catch (error) {
      log.error({ err: error }, 'the engine did not stop')
      return
    }
    const ended = new AbortController()
    void record.exited?.then(() => ended.abort())
    await sleep(EXIT_GRACE_MS, undefined, { signal: ended.signal }).catch(() => {})
    if (ended.signal.aborted) return
    const { publicName } = record.variant
    log.error(
      `The engine "${engine.provider}" of ${publicName} was stopped, but its promise "exited" is still pending.`
    )
    record.markEnded?.({ code: null, signal: null, expected: true })
  }

  async function unload(record: EngineRecord, save: boolean): Promise<void> {
    const { engine, variant } = record
    if (!engine) return
    log.info(`unloading ${variant.publicName}`)
    try {
      // Prompts of a trial must not replace the prompts of real conversations.
      if (save && !record.isTrial) await engine.saveSlots?.()
    } catch (error) {
      log.error({ err: error }, 'the prompt cache was not saved')
    }
    await stopEngine(record, engine)
  }

  return {
    prepare,
    load,
    unload,
    refreshBudget,
    getFailure: ({ key }: Model) => failures.get(key),
    forgetFailure: ({ key }: Pick<Model, 'key'>) => void failures.delete(key)
  }
}

function getCause(failure: CorralError | undefined): { cause?: string } {
  const cause = failure?.details?.cause
  return typeof cause === 'string' ? { cause } : {}
}

function asCorralError(error: unknown): CorralError {
  if (error instanceof CorralError) return error
  return new CorralError('load_failed', `The model could not be loaded: ${errorMessage(error)}`, { cause: error })
}
