import { settingsFor } from '../../core/config/model-settings.ts'
import type { Engine, EngineMode } from '../../core/contracts/engines.ts'
import type { OnProgress, Progress } from '../../core/contracts/progress.ts'
import type { Lease, LeaseRequest, Scheduler } from '../../core/contracts/scheduler.ts'
import type { StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import { bareName, type ModelName, parseModelName } from '../../core/models/model-name.ts'
import { decide } from './decide.ts'
import { cappedOptions, createEngineLoads, type LoadDependencies } from './engine-loads.ts'
import { createState, type Effect, type Event, type Limits } from './scheduler-state.ts'
import { createSlot, isOccupied, loadingModel, runningModel, type Slot } from './slot.ts'

interface Request {
  id: number
  slot: Slot
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

function modelStopped(name: string): CorralError {
  return new CorralError('model_stopped', `Model "${name}" was stopped. Send the request again to load it anew.`)
}

export interface OwnedScheduler extends Scheduler {
  /** Loads the models that `config.yaml` wants loaded at the start, one after the other; failures are logged. */
  preload(signal: AbortSignal): Promise<void>
  close(graceMs: number): Promise<void>
}

/** Owns what is in memory: carries out the decisions of `decide.ts` and tells it what came of them. */
export function createScheduler(deps: SchedulerDependencies): OwnedScheduler {
  const { storage, engines, config, log } = deps
  const state = createState(deps.limits)
  const slots = new Map<string, Slot>()
  const requests = new Map<number, Request>()
  let nextId = 1
  const loads = createEngineLoads(deps, state, { dispatch, tell })

  function dispatch(event: Event): void {
    for (const effect of decide(state, event, Date.now())) perform(effect)
    for (const [key, slot] of slots) {
      if (!state.engines.has(key) && !isOccupied(slot)) slots.delete(key)
    }
  }

  function perform(effect: Effect): void {
    switch (effect.type) {
      case 'prepare':
        void loads.prepare(slots.get(effect.key)!, effect.run, effect.options)
        break
      case 'abort-prepare':
        slots.get(effect.key)?.preparing?.abort(modelStopped(slots.get(effect.key)!.variant.publicName))
        break
      case 'load':
        void loads.load(slots.get(effect.key)!, effect.run, effect.options)
        break
      case 'abort-load':
        slots.get(effect.key)?.loading?.abort(modelStopped(slots.get(effect.key)!.variant.publicName))
        break
      case 'unload':
        void loads.unload(slots.get(effect.key)!, effect.save)
        break
      case 'waiting':
        tellWaiting(slots.get(effect.key), effect.holders)
        break
      case 'grant':
        requests.get(effect.id)?.grant(slots.get(effect.key)!.engine!)
        break
      case 'refuse':
        requests.get(effect.id)?.refuse(effect.error)
        break
      case 'revoke':
        requests.get(effect.id)?.revoke(effect.error)
        break
      case 'alarm':
        setAlarm(slots.get(effect.key), effect.at)
        break
    }
  }

  function setAlarm(slot: Slot | undefined, at: number | undefined): void {
    if (!slot) return
    clearTimeout(slot.alarm)
    slot.alarm = undefined
    if (at === undefined) return
    const wait = Math.min(Math.max(at - Date.now(), 0), LONGEST_TIMER)
    slot.alarm = setTimeout(() => dispatch({ type: 'alarm', key: slot.key }), wait)
    slot.alarm.unref()
  }

  function tell(slot: Slot, progress: Progress): void {
    slot.progress = progress
    for (const request of requests.values()) {
      if (request.slot === slot) request.onProgress?.(progress)
    }
  }

  function tellWaiting(slot: Slot | undefined, holders: readonly string[]): void {
    if (!slot) return
    if (holders.length) {
      const names = new Set(holders.map(key => slots.get(key)?.variant.publicName ?? key))
      tell(slot, { phase: 'waiting', subject: `for room that ${[...names].join(' and ')} holds` })
    } else if (slot.progress?.phase === 'waiting') slot.progress = undefined
  }

  function slotOf(variant: StoredVariant, mode: EngineMode): Slot {
    const key = `${variant.key}#${mode}`
    let slot = slots.get(key)
    if (!slot) {
      slot = createSlot(key, variant, mode)
      slots.set(key, slot)
    }
    return slot
  }

  function slotsOf(variants: StoredVariant[]): Slot[] {
    const keys = new Set(variants.map(variant => variant.key))
    return [...slots.values()].filter(slot => keys.has(slot.variant.key) && state.engines.has(slot.key))
  }

  /**
   * Ends engines, loads and waiting requests of these slots; settles when no process is left.
   * @param save whether engines that answer nothing may take the time to save what their slots have read
   */
  async function end(
    ending: Slot[],
    running: (slot: Slot) => CorralError,
    waiting: (slot: Slot) => CorralError,
    save: boolean
  ) {
    const gone = ending.filter(isOccupied).map(slot => new Promise<void>(resolve => slot.goneListeners.push(resolve)))
    for (const slot of ending) {
      // One that is saving already does not go on with it.
      if (!save && state.engines.get(slot.key)?.phase.name === 'stopping') void loads.unload(slot, false)
      dispatch({ type: 'stop', key: slot.key, running: running(slot), waiting: waiting(slot), save })
    }
    await Promise.all(gone)
  }

  storage.onRemove(async variants => {
    const deleted = (slot: Slot) =>
      new CorralError('model_deleted', `Model "${slot.variant.publicName}" was deleted while it answered.`)
    const missing = (slot: Slot) =>
      new CorralError('model_not_found', `Model "${slot.variant.publicName}" was deleted.`)
    await end(slotsOf(variants), deleted, missing, false)
  })

  async function lease(request: LeaseRequest): Promise<Lease> {
    request.signal.throwIfAborted()
    const variant = storage.get(request.model)
    const mode = request.mode ?? 'chat'
    const provider = engines.requireProvider(variant, mode)
    const settings = settingsFor(config, variant)
    const relevant = provider.loadOptions?.(variant, request.options, settings.load) ?? request.options
    const options = cappedOptions(relevant, variant, log)
    const slot = slotOf(variant, mode)
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
        dispatch({ type: 'leave', id, key: slot.key })
      }
      const onAbort = () => {
        controller.abort(request.signal.reason)
        reject(request.signal.reason)
        finish()
      }
      request.signal.addEventListener('abort', onAbort)
      requests.set(id, {
        id,
        slot,
        onProgress: request.onProgress,
        grant: engine => {
          requests.get(id)!.onProgress = undefined
          resolve({
            engine,
            variant: slot.variant,
            signal: controller.signal,
            loadDuration: Math.max(0, slot.loadedAt - began),
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
      if (slot.progress) request.onProgress?.(slot.progress)
      dispatch({
        type: 'request',
        id,
        key: slot.key,
        name: variant.publicName,
        options,
        loadOnly: request.loadOnly ?? false,
        slots: request.slots ?? 1,
        defaults: settings.load,
        keepAlive: request.keepAlive === undefined ? undefined : forEver(request.keepAlive),
        initialKeepAlive: settings.keepAlive === undefined ? undefined : forEver(settings.keepAlive),
        pinned: settings.pin,
        groups: settings.groups,
        maxConcurrent: settings.maxConcurrent
      })
      const phase = state.engines.get(slot.key)?.phase.name
      if (phase === 'ready' || phase === 'draining') {
        requests.get(id)?.onProgress?.({ phase: phase === 'ready' ? 'queued' : phase, subject: '' })
      }
    })
  }

  return {
    lease,

    async withLease(request, use) {
      for (let attempt = 1; ; attempt++) {
        const held = await lease(request)
        try {
          return await use(held)
        } catch (error) {
          const crashed = error instanceof CorralError && error.code === 'engine_crashed'
          if (!crashed || attempt > 1 || request.signal.aborted || !(request.mayRetry?.() ?? true)) throw error
          log.warn({ model: held.variant.publicName }, 'the engine died before it answered; trying once more')
        } finally {
          held.release()
        }
      }
    },

    async stop(model) {
      const slots = slotsOf([storage.get(model)])
      const ending = slots.filter(({ key }) => {
        const engine = state.engines.get(key)!
        return engine.phase.name !== 'absent' || engine.queue.length > 0
      })
      if (!ending.length) {
        throw new CorralError('model_not_loaded', `Model "${nameOf(model)}" is not loaded.`)
      }
      const stopped = (slot: Slot) => modelStopped(slot.variant.publicName)
      await end(ending, stopped, stopped, true)
    },

    keepAlive(model, ms) {
      for (const slot of slotsOf([storage.get(model)])) {
        dispatch({ type: 'keep-alive', key: slot.key, keepAlive: forEver(ms) })
      }
    },

    running: () => [...slots.values()].flatMap(slot => runningModel(slot, state.engines.get(slot.key))),

    loading: () => [...slots.values()].flatMap(slot => loadingModel(slot, state.engines.get(slot.key))),

    async preload(signal) {
      for (const name of Object.keys(config.models)) {
        try {
          const variant = storage.find(parseModelName(name))
          if (!variant || !settingsFor(config, variant).preload) continue
          const held = await lease({ model: variant.model, options: {}, loadOnly: true, signal })
          held.release()
        } catch (error) {
          if (signal.aborted) return
          log.error({ model: name, reason: messageOf(error) }, 'a model that was to be loaded at the start was not')
        }
      }
    },

    async close(graceMs) {
      dispatch({ type: 'close' })
      const alive = () => [...slots.values()].filter(isOccupied)
      const gone = alive().map(slot => new Promise<void>(resolve => slot.goneListeners.push(resolve)))
      let timer: NodeJS.Timeout | undefined
      const grace = new Promise<void>(resolve => {
        timer = setTimeout(resolve, graceMs)
      })
      await Promise.race([Promise.all(gone), grace])
      clearTimeout(timer)
      const error = () => new CorralError('shutting_down', 'corral is shutting down; this answer was cut short.')
      await end(alive(), error, error, false)
      for (const slot of slots.values()) clearTimeout(slot.alarm)
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
