import { settingsFor } from '../../core/config/model-settings.ts'
import type { Engine, EngineMode } from '../../core/contracts/engines.ts'
import type { Lease, LeaseRequest, Scheduler } from '../../core/contracts/leases.ts'
import type { Model } from '../../core/contracts/models.ts'
import type { OnProgress, Progress } from '../../core/contracts/progress.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import { bareName, type ModelName, parseModelName } from '../../core/models/model-name.ts'
import { decide } from './decide.ts'
import { cappedOptions, createEngineLoads, type LoadDependencies } from './engine-loads.ts'
import { isOccupied, loadingModel, type ManagedEngine, runningModel, whenGone } from './managed-engine.ts'
import { createState, type Effect, type Event, type Limits } from './scheduler-state.ts'

interface Request {
  id: number
  managed: ManagedEngine
  onProgress: OnProgress | undefined
  grant: (engine: Engine) => void
  refuse: (error: unknown) => void
  /** Ends a granted lease. */
  revoke: (error: CorralError) => void
}

export interface SchedulerDependencies extends LoadDependencies {
  limits: Limits
}

/** Node's timers count to 2^31 - 1 ms; later alarms are set again when they go off early. */
const LONGEST_TIMER = 2 ** 31 - 1

type ErrorOf = (managed: ManagedEngine) => CorralError

const stoppedError: ErrorOf = ({ variant: { publicName } }) =>
  new CorralError('model_stopped', `Model "${publicName}" was stopped. Send the request again to load it anew.`)

export interface OwnedScheduler extends Scheduler {
  /** Loads the models that `config.yaml` wants loaded at the start, one after the other; failures are logged. */
  preload(signal: AbortSignal): Promise<void>
  close(graceMs: number): Promise<void>
}

/** Owns what is in memory: carries out what `decide.ts` decides and reports back to it. */
export function createScheduler(deps: SchedulerDependencies): OwnedScheduler {
  const { storage, catalog, engines, config, log } = deps
  const state = createState(deps.limits)
  const managedEngines = new Map<string, ManagedEngine>()
  const requests = new Map<number, Request>()
  let nextId = 1
  const loads = createEngineLoads(deps, state, { dispatch, report })

  function dispatch(event: Event): void {
    for (const effect of decide(state, event, Date.now())) {
      if ('key' in effect) performOn(managedEngines.get(effect.key), effect)
      else if (effect.type === 'refuse') requests.get(effect.id)?.refuse(effect.error)
      else requests.get(effect.id)?.revoke(effect.error)
    }
    for (const [key, managed] of managedEngines) {
      if (!state.engines.has(key) && !isOccupied(managed)) managedEngines.delete(key)
    }
  }

  function performOn(managed: ManagedEngine | undefined, effect: Extract<Effect, { key: string }>): void {
    // It may have ended while the effects before this one were carried out: who is revoked releases its lease at once.
    if (!managed) return
    switch (effect.type) {
      case 'prepare':
        void loads.prepare(managed, effect.run, effect.options)
        break
      case 'abort-prepare':
        managed.preparing?.abort(stoppedError(managed))
        break
      case 'load':
        void loads.load(managed, effect.run, effect.options)
        break
      case 'abort-load':
        managed.loading?.abort(stoppedError(managed))
        break
      case 'unload':
        void loads.unload(managed, effect.save)
        break
      case 'waiting':
        reportWaiting(managed, effect.holders)
        break
      case 'grant':
        requests.get(effect.id)?.grant(managed.engine!)
        break
      case 'alarm':
        setAlarm(managed, effect.at)
        break
    }
  }

  function setAlarm(managed: ManagedEngine, at: number | undefined): void {
    clearTimeout(managed.alarm)
    managed.alarm = undefined
    if (at === undefined) return
    const wait = Math.min(Math.max(at - Date.now(), 0), LONGEST_TIMER)
    managed.alarm = setTimeout(() => dispatch({ type: 'alarm', key: managed.key }), wait)
    managed.alarm.unref()
  }

  function report(managed: ManagedEngine, progress: Progress): void {
    managed.progress = progress
    for (const request of requests.values()) {
      if (request.managed === managed) request.onProgress?.(progress)
    }
  }

  function reportWaiting(managed: ManagedEngine, holders: readonly string[]): void {
    if (holders.length) {
      const names = new Set(holders.map(key => managedEngines.get(key)?.variant.publicName ?? key))
      report(managed, { phase: 'waiting', subject: `for room that ${[...names].join(' and ')} holds` })
    } else if (managed.progress?.phase === 'waiting') managed.progress = undefined
  }

  function managedOf(variant: Model, mode: EngineMode): ManagedEngine {
    const key = `${variant.key}#${mode}`
    let managed = managedEngines.get(key)
    if (!managed) {
      managed = { key, variant, mode, loadedAt: 0, goneListeners: [] }
      managedEngines.set(key, managed)
    }
    return managed
  }

  /** The engines of these variants, in all modes. */
  function enginesOf(variants: Model[]): ManagedEngine[] {
    const keys = new Set(variants.map(variant => variant.key))
    return [...managedEngines.values()].filter(
      managed => keys.has(managed.variant.key) && state.engines.has(managed.key)
    )
  }

  /**
   * Ends these engines, their loads and their requests; settles when no process is left.
   * @param running the error for requests that are answered
   * @param waiting the error for requests that wait
   * @param save whether engines that answer nothing may take the time to save what their slots have read
   */
  async function endAll(ending: ManagedEngine[], running: ErrorOf, waiting: ErrorOf, save: boolean): Promise<void> {
    const gone = whenGone(ending)
    for (const managed of ending) {
      // One that is saving already does not go on with it.
      if (!save && state.engines.get(managed.key)?.phase.name === 'stopping') void loads.unload(managed, false)
      dispatch({ type: 'stop', key: managed.key, running: running(managed), waiting: waiting(managed), save })
    }
    await gone
  }

  storage.onRemove(async variants => {
    const deleted: ErrorOf = ({ variant: { publicName } }) =>
      new CorralError('model_deleted', `Model "${publicName}" was deleted while it answered.`)
    const missing: ErrorOf = ({ variant: { publicName } }) =>
      new CorralError('model_not_found', `Model "${publicName}" was deleted.`)
    await endAll(enginesOf(variants), deleted, missing, false)
  })

  async function lease(request: LeaseRequest): Promise<Lease> {
    request.signal.throwIfAborted()
    const variant = catalog.get(request.model)
    const mode = request.mode ?? 'chat'
    const provider = engines.requireProvider(variant, mode)
    const settings = settingsFor(config, variant)
    const relevant = provider.loadOptions?.(variant, request.options, settings.load) ?? request.options
    const options = cappedOptions(relevant, variant, log)
    const managed = managedOf(variant, mode)
    const id = nextId++
    const began = Date.now()
    return await new Promise<Lease>((resolve, reject) => {
      const controller = new AbortController()
      let ended = false
      const finish = () => {
        if (ended) return
        ended = true
        request.signal.removeEventListener('abort', onAbort)
        requests.delete(id)
        dispatch({ type: 'leave', id, key: managed.key })
      }
      const onAbort = () => {
        controller.abort(request.signal.reason)
        reject(request.signal.reason)
        finish()
      }
      request.signal.addEventListener('abort', onAbort)
      requests.set(id, {
        id,
        managed,
        onProgress: request.onProgress,
        grant: engine => {
          requests.get(id)!.onProgress = undefined
          resolve({
            engine,
            variant: managed.variant,
            signal: controller.signal,
            loadDuration: Math.max(0, managed.loadedAt - began),
            release: finish
          })
        },
        refuse: error => {
          ended = true
          request.signal.removeEventListener('abort', onAbort)
          requests.delete(id)
          reject(error)
        },
        revoke: error => controller.abort(error)
      })
      if (managed.progress) request.onProgress?.(managed.progress)
      dispatch({
        type: 'request',
        id,
        key: managed.key,
        name: variant.publicName,
        options,
        loadOnly: request.loadOnly ?? false,
        slots: request.slots ?? 1,
        defaults: settings.load,
        keepAlive: request.keepAlive === undefined ? undefined : forEver(request.keepAlive),
        initialKeepAlive: settings.keepAlive === undefined ? undefined : forEver(settings.keepAlive),
        pinned: settings.pin,
        groups: settings.groups,
        elsewhere: provider.estimate === undefined,
        maxConcurrent: settings.maxConcurrent
      })
      const phase = state.engines.get(managed.key)?.phase.name
      if (phase === 'ready' || phase === 'draining') {
        requests.get(id)?.onProgress?.({ phase: phase === 'ready' ? 'queued' : phase, subject: '' })
      }
    })
  }

  return {
    lease,

    async withLease(request, use) {
      for (let attempt = 1; ; attempt++) {
        const leased = await lease(request)
        try {
          return await use(leased)
        } catch (error) {
          const crashed = error instanceof CorralError && error.code === 'engine_crashed'
          if (!crashed || attempt > 1 || request.signal.aborted || !(request.mayRetry?.() ?? true)) throw error
          log.warn({ model: leased.variant.publicName }, 'the engine died before it answered; trying once more')
        } finally {
          leased.release()
        }
      }
    },

    async stop(model) {
      const ending = enginesOf([catalog.get(model)]).filter(({ key }) => {
        const engine = state.engines.get(key)
        return engine && (engine.phase.name !== 'absent' || engine.queue.length > 0)
      })
      if (!ending.length) {
        throw new CorralError('model_not_loaded', `Model "${nameOf(model)}" is not loaded.`)
      }
      await endAll(ending, stoppedError, stoppedError, true)
    },

    keepAlive(model, ms) {
      for (const managed of enginesOf([catalog.get(model)])) {
        dispatch({ type: 'keep-alive', key: managed.key, keepAlive: forEver(ms) })
      }
    },

    running: () =>
      [...managedEngines.values()].flatMap(managed => runningModel(managed, state.engines.get(managed.key))),

    loading: () =>
      [...managedEngines.values()].flatMap(managed => loadingModel(managed, state.engines.get(managed.key))),

    async preload(signal) {
      for (const name of Object.keys(config.models)) {
        try {
          const variant = catalog.find(parseModelName(name))
          if (!variant || !settingsFor(config, variant).preload) continue
          const leased = await lease({ model: variant.model, options: {}, loadOnly: true, signal })
          leased.release()
        } catch (error) {
          if (signal.aborted) return
          log.error({ model: name, reason: messageOf(error) }, 'a model that was to be loaded at the start was not')
        }
      }
    },

    async close(graceMs) {
      dispatch({ type: 'close' })
      let timer: NodeJS.Timeout | undefined
      const grace = new Promise<void>(resolve => {
        timer = setTimeout(resolve, graceMs)
      })
      await Promise.race([whenGone([...managedEngines.values()]), grace])
      clearTimeout(timer)
      const error = () => new CorralError('shutting_down', 'corral is shutting down; this answer was cut short.')
      await endAll([...managedEngines.values()].filter(isOccupied), error, error, false)
      for (const managed of managedEngines.values()) clearTimeout(managed.alarm)
    }
  }
}

function nameOf(model: ModelName): string {
  return model.variant === undefined ? bareName(model) : `${bareName(model)}:${model.variant}`
}

/** No date that clients can read lies so far ahead (milliseconds). */
const CENTURY = 100 * 365 * 24 * 3_600_000

function forEver(ms: number): number {
  return ms < 0 || ms > CENTURY ? Number.POSITIVE_INFINITY : ms
}
