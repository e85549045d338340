import { setTimeout as sleep } from 'node:timers/promises'
import type { EngineMode, EngineProvider } from '../../../core/contracts/engines.ts'
import type { Scheduler } from '../../../core/contracts/leases.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { Progress } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import { bareName, type ModelName } from '../../../core/models/model-name.ts'
import { defaultMode } from '../../../core/models/model-operations.ts'
import { OpenMap } from '../../../core/system/open-tables.ts'
import { decide } from './decide.ts'
import { createEngineLifecycle } from './engine-lifecycle.ts'
import { createModelConfiguration, toKeepAlive } from './model-configuration.ts'
import { createOwnLoads } from './own-loads.ts'
import { createLeases, retryOnFreshEngine } from './request-leases.ts'
import {
  type EngineRecord,
  engineKey,
  isOccupied,
  loadingModel,
  type PendingRequest,
  runningModel,
  type SchedulerCore,
  type SchedulerDependencies,
  whenGone
} from './scheduler-core.ts'
import { createState, type Effect, type Event, getStats, type Limits } from './scheduler-state.ts'

/** The longest delay of Node's timers in milliseconds. A later alarm goes off early and is set again. */
const MAX_TIMER_MS = 2 ** 31 - 1

type ToError = (record: EngineRecord) => CorralError

const stoppedError: ToError = ({ variant: { publicName } }) =>
  new CorralError('model_stopped', `Model "${publicName}" was stopped. Send the request again to load it.`)

export interface OwnedScheduler extends Scheduler {
  /** Ends the engines of a provider that is being removed, each after its answers. */
  endEnginesOf(provider: EngineProvider): void
  /** Loads the models that `config.yaml` lists for preloading, one after the other. Failures are logged. */
  preload(signal: AbortSignal): Promise<void>
  /** Applies the configuration. Models whose load settings changed are reloaded when their answers have ended. */
  reload(limits: Limits, signal: AbortSignal): void
  close(graceMs: number): Promise<void>
}

/** Carries out the effects that `decide.ts` returns, and reports back to it. */
export function createScheduler(deps: SchedulerDependencies): OwnedScheduler {
  const { storage, catalog, engines, config, hooks, log } = deps
  const state = createState(deps.limits)
  const records = new Map<string, EngineRecord>()
  const requests = new OpenMap<number, PendingRequest>()
  const models = createModelConfiguration(config, key => loads.getTrialSettings(key))
  const core: SchedulerCore = { ...deps, models, state, records, requests, getRecord, dispatch, report }
  const lifecycle = createEngineLifecycle(core, record => {
    const phase = state.engines.get(record.key)?.phase
    if (phase?.name === 'ready') loads.replace(record, record.variant, phase.options)
  })
  const { lease, count } = createLeases(core)
  const loads = createOwnLoads(core, lease)

  function dispatch(event: Event): void {
    for (const effect of decide(state, event, performance.now())) {
      if ('key' in effect) performOn(records.get(effect.key), effect)
      else if (effect.type === 'refuse') requests.get(effect.id)?.refuse(effect.error)
      else requests.get(effect.id)?.revoke(effect.error)
    }
    for (const [key, record] of records) {
      if (!state.engines.has(key) && !isOccupied(record)) records.delete(key)
    }
    hooks.stateChanged('engine')
  }

  function performOn(record: EngineRecord | undefined, effect: Extract<Effect, { key: string }>): void {
    // The engine may have ended while earlier effects were carried out: a revoked request releases its lease
    // immediately.
    if (!record) return
    switch (effect.type) {
      case 'prepare':
        void lifecycle.prepare(record, effect.run, effect.options)
        break
      case 'load':
        void lifecycle.load(record, effect.run, effect.options)
        break
      case 'abort-prepare':
      case 'abort-load':
        record.work?.abort(stoppedError(record))
        break
      case 'unload':
        record.unloadReason = effect.reason
        void lifecycle.unload(record, effect.save)
        break
      case 'waiting':
        reportWaiting(record, effect.holders)
        break
      case 'grant':
        requests.get(effect.id)?.grant(record.engine!)
        break
      case 'alarm':
        setAlarm(record, effect.at)
        break
    }
  }

  function setAlarm(record: EngineRecord, at: number | undefined): void {
    clearTimeout(record.alarmTimer)
    record.alarmTimer = undefined
    if (at === undefined) return
    const wait = Math.min(Math.max(at - performance.now(), 0), MAX_TIMER_MS)
    record.alarmTimer = setTimeout(() => dispatch({ type: 'alarm', key: record.key }), wait)
    record.alarmTimer.unref()
  }

  function report(record: EngineRecord, progress: Progress): void {
    record.progress = progress
    hooks.stateChanged('engine')
    for (const request of requests.values()) {
      if (request.record === record) request.onProgress?.(progress)
    }
  }

  function reportWaiting(record: EngineRecord, holders: readonly string[]): void {
    if (holders.length) {
      const names = new Set(holders.map(key => records.get(key)?.variant.publicName ?? key))
      report(record, { phase: 'waiting', subject: `for memory used by ${[...names].join(' and ')}` })
    } else if (record.progress?.phase === 'waiting') record.progress = undefined
  }

  function getRecord(variant: Model, mode: EngineMode): EngineRecord {
    const key = engineKey(variant, mode)
    let record = records.get(key)
    if (!record) {
      record = { key, variant, mode, loadedAt: 0, goneListeners: [] }
      records.set(key, record)
    }
    return record
  }

  /** Engines whose models other servers have in memory are listed by those. */
  const ownRecords = () =>
    [...records.values()].filter(({ variant, mode }) => engines.providerOf(variant, mode)?.held === undefined)

  function getRecords(variants: Model[]): EngineRecord[] {
    const keys = new Set(variants.map(variant => variant.key))
    return [...records.values()].filter(record => keys.has(record.variant.key) && state.engines.has(record.key))
  }

  /**
   * Ends these engines, their loads and their requests. Resolves when no process is left.
   * @param running error for active requests
   * @param waiting error for waiting requests
   * @param save whether idle engines may save their prompt caches first
   */
  async function endAll(ending: EngineRecord[], running: ToError, waiting: ToError, save: boolean): Promise<void> {
    const gone = whenGone(ending)
    for (const record of ending) {
      // Interrupt a save in progress.
      if (!save && state.engines.get(record.key)?.phase.name === 'stopping') void lifecycle.unload(record, false)
      dispatch({ type: 'stop', key: record.key, running: running(record), waiting: waiting(record), save })
    }
    await gone
  }

  storage.onRemove(async variants => {
    for (const variant of variants) lifecycle.forgetFailure(variant)
    const deleted: ToError = ({ variant: { publicName } }) =>
      new CorralError('model_deleted', `Model "${publicName}" was deleted while it answered.`)
    const missing: ToError = ({ variant: { publicName } }) =>
      new CorralError('model_not_found', `Model "${publicName}" was deleted.`)
    await endAll(getRecords(variants), deleted, missing, false)
  })

  return {
    lease,
    withLease: retryOnFreshEngine(lease, log),

    async stop(model) {
      const variant = catalog.get(model)
      const elsewhere = engines.providerOf(variant, defaultMode(variant))?.unload?.(variant)
      const ending = getRecords([variant]).filter(({ key }) => {
        const engine = state.engines.get(key)
        return engine && (engine.phase.name !== 'absent' || engine.queue.length > 0)
      })
      if (!ending.length && !(await elsewhere)) {
        throw new CorralError('model_not_loaded', `Model "${formatName(model)}" is not loaded.`)
      }
      await Promise.all([elsewhere, endAll(ending, stoppedError, stoppedError, true)])
    },

    endEnginesOf(provider) {
      for (const record of records.values()) {
        const { key, variant, mode } = record
        const isIts = state.engines.has(key) && engines.providerOf(variant, mode) === provider
        if (isIts) loads.replace(record, variant, undefined)
      }
    },

    keepAlive(model, ms) {
      const variant = catalog.get(model)
      engines.providerOf(variant, defaultMode(variant))?.keepAlive?.(variant, ms)
      for (const { key } of getRecords([variant])) dispatch({ type: 'keep-alive', key, keepAlive: toKeepAlive(ms) })
    },

    running: () => [
      ...ownRecords().flatMap(record => runningModel(record, state.engines.get(record.key))),
      ...engines.held().running
    ],
    loading: () => [
      ...ownRecords().flatMap(record => loadingModel(record, state.engines.get(record.key))),
      ...engines.held().loading
    ],
    loadFailure: lifecycle.getFailure,
    stats: () => ({ ...getStats(state, performance.now()), requests: count() }),

    trial: loads.trial,
    tunables: loads.tunables,
    preview: loads.preview,
    preload: loads.preload,

    reload(limits, signal) {
      Object.assign(state.limits, limits)
      loads.apply(signal)
      lifecycle.refreshBudget()
    },

    async close(graceMs) {
      dispatch({ type: 'close' })
      const gone = new AbortController()
      const grace = sleep(graceMs, undefined, { signal: gone.signal }).catch(() => {})
      await Promise.race([whenGone([...records.values()]), grace])
      gone.abort()
      const error = () =>
        new CorralError(
          'shutting_down',
          'corral is shutting down, so this answer was cut off. Send the request again when it is back.'
        )
      await endAll([...records.values()].filter(isOccupied), error, error, false)
      for (const record of records.values()) clearTimeout(record.alarmTimer)
    }
  }
}

function formatName(model: ModelName): string {
  return model.variant === undefined ? bareName(model) : `${bareName(model)}:${model.variant}`
}
