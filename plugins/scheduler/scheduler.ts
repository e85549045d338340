import type { FastifyBaseLogger } from 'fastify'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import type { Conversion } from '../../core/conversion.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import { bareName, type ModelName } from '../../core/model-name.ts'
import { settingsFor } from '../../core/model-settings.ts'
import type { LoadOptions } from '../../core/options.ts'
import type { OnProgress, Progress } from '../../core/progress.ts'
import type { Runtimes } from '../../core/runtimes.ts'
import type { Engine, EngineMode, Lease, LeaseRequest, Scheduler, Storage, StoredVariant } from '../../core/services.ts'
import { engineSpec, ownFiles, requireServable } from './engine-spec.ts'
import { capContext } from './load-options.ts'
import { step } from './machine.ts'
import { createState, type Effect, type Event, type Limits } from './machine-state.ts'
import { createSlot, loadingModel, runningModel, type Slot, settleGone } from './slot.ts'

interface Request {
  id: number
  slot: Slot
  onProgress: OnProgress | undefined
  grant: (engine: Engine) => void
  refuse: (error: unknown) => void
  /** Ends a granted lease. */
  revoke: (error: CorralError) => void
}

export interface SchedulerDependencies {
  storage: Storage
  runtimes: Runtimes
  conversion: Conversion
  config: CoreConfig
  limits: Limits
  log: FastifyBaseLogger
}

/** Node's timers count to 2^31 - 1 ms; later alarms are set again when they go off early. */
const LONGEST_TIMER = 2 ** 31 - 1

function modelStopped(name: string): CorralError {
  return new CorralError('model_stopped', `Model "${name}" was stopped. Send the request again to load it anew.`)
}

/** Owns what is in memory: carries out the decisions of `machine.ts` and tells it what came of them. */
export function createScheduler(deps: SchedulerDependencies): Scheduler & { close(graceMs: number): Promise<void> } {
  const { storage, runtimes, conversion, config, log } = deps
  const state = createState(deps.limits)
  const slots = new Map<string, Slot>()
  const requests = new Map<number, Request>()
  let nextId = 1

  function dispatch(event: Event): void {
    for (const effect of step(state, event, Date.now())) perform(effect)
    for (const [key, slot] of slots) {
      if (!state.engines.has(key) && !slot.engine && !slot.loading) slots.delete(key)
    }
  }

  function perform(effect: Effect): void {
    switch (effect.type) {
      case 'load':
        void load(slots.get(effect.key)!, effect.options)
        break
      case 'abort-load':
        slots.get(effect.key)?.loading?.abort(modelStopped(slots.get(effect.key)!.variant.publicName))
        break
      case 'unload': {
        const { engine, variant } = slots.get(effect.key)!
        log.info(`unloading ${variant.publicName}`)
        engine?.stop().catch(error => log.error({ err: error }, 'the engine did not stop'))
        break
      }
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
    slot.alarm = setTimeout(() => dispatch({ type: 'idle', key: slot.key }), wait)
    slot.alarm.unref()
  }

  function tell(slot: Slot, progress: Progress): void {
    slot.progress = progress
    for (const request of requests.values()) {
      if (request.slot === slot) request.onProgress?.(progress)
    }
  }

  async function load(slot: Slot, options: LoadOptions): Promise<void> {
    const controller = new AbortController()
    slot.loading = controller
    // The effects of one event are carried out to the end before any outcome comes back.
    await Promise.resolve()
    const started = Date.now()
    let engine: Engine
    try {
      // The newest revision counts at every load; the one that runs keeps its files until it ends.
      slot.variant = storage.get({ ...slot.variant.model, variant: slot.variant.label })
      const { variant } = slot
      requireServable(slot.mode, variant)
      slot.releaseFiles = storage.hold(variant)
      const capped = cap(options, variant)
      const waiting = { signal: controller.signal, onProgress: (progress: Progress) => tell(slot, progress) }
      const files =
        variant.format === 'gguf' ? ownFiles(variant) : await conversion.convert(variant, capped.dtype, waiting)
      log.info({ options: capped }, `loading ${variant.publicName}`)
      tell(slot, { phase: 'loading', subject: '' })
      engine = await runtimes.startEngine(engineSpec(variant, slot.mode, files, capped, settingsFor(config, variant).engine, storage), waiting)
    } catch (error) {
      slot.loading = undefined
      slot.progress = undefined
      settleGone(slot)
      const failure = controller.signal.aborted ? controller.signal.reason : error
      if (!controller.signal.aborted) log.error({ model: slot.variant.publicName, err: error }, 'loading failed')
      dispatch({ type: 'load-failed', key: slot.key, error: asCorralError(failure) })
      return
    }
    slot.loading = undefined
    slot.progress = undefined
    slot.engine = engine
    slot.loadedAt = Date.now()
    log.info({ pid: engine.pid, ms: Date.now() - started }, `loaded ${slot.variant.publicName}`)
    void engine.exited.then(exit => {
      slot.engine = undefined
      settleGone(slot)
      const name = slot.variant.publicName
      if (!exit.expected) log.error({ model: name, ...exit, tail: engine.logTail().slice(-20) }, 'the engine died')
      const how = exit.signal ? `signal ${exit.signal}` : `exit code ${exit.code}`
      const error = new CorralError(
        'engine_crashed',
        `The engine of model "${name}" ended unexpectedly (${how}). Send the request again; it starts anew.`
      )
      dispatch(exit.expected ? { type: 'gone', key: slot.key } : { type: 'gone', key: slot.key, error })
    })
    if (controller.signal.aborted) {
      // Stopped in the instant that it became ready: the machine waits for the end of the load.
      await engine.stop()
      return
    }
    dispatch({ type: 'loaded', key: slot.key })
  }

  function cap<Options extends Partial<LoadOptions>>(options: Options, variant: StoredVariant): Options {
    const capped = capContext(options, variant.metadata.contextLength)
    if (capped !== options) {
      log.warn(
        { model: variant.publicName, asked: options.num_ctx, effective: capped.num_ctx },
        'num_ctx is larger than the context this model was trained for and is capped to it'
      )
    }
    return capped
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

  /** Ends engines, loads and waiting requests of these slots; settles when no process is left. */
  async function end(ending: Slot[], running: (slot: Slot) => CorralError, waiting: (slot: Slot) => CorralError) {
    const gone = ending
      .filter(slot => slot.engine || slot.loading)
      .map(slot => new Promise<void>(resolve => slot.goneListeners.push(resolve)))
    for (const slot of ending) {
      dispatch({ type: 'stop', key: slot.key, running: running(slot), waiting: waiting(slot) })
    }
    await Promise.all(gone)
  }

  storage.onRemove(async variants => {
    const deleted = (slot: Slot) =>
      new CorralError('model_deleted', `Model "${slot.variant.publicName}" was deleted while it answered.`)
    const missing = (slot: Slot) =>
      new CorralError('model_not_found', `Model "${slot.variant.publicName}" was deleted.`)
    await end(slotsOf(variants), deleted, missing)
  })

  async function lease(request: LeaseRequest): Promise<Lease> {
    request.signal.throwIfAborted()
    const variant = storage.get(request.model)
    const mode = request.mode ?? 'chat'
    requireServable(mode, variant)
    const settings = settingsFor(config, variant)
    // dtype chooses what a SafeTensors model is converted to; others ignore it.
    const { dtype, ...others } = request.options
    const type = dtype === undefined ? {} : { dtype: conversion.requireDtype(dtype) }
    if (variant.format !== 'gguf') conversion.requireDtype(settings.load.dtype)
    const asked = cap(variant.format === 'gguf' ? others : { ...others, ...type }, variant)
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
        asked,
        loadOnly: request.loadOnly ?? false,
        defaults: settings.load,
        keepAlive: request.keepAlive === undefined ? undefined : forEver(request.keepAlive),
        initialKeepAlive: settings.keepAlive === undefined ? undefined : forEver(settings.keepAlive),
        pinned: settings.pin
      })
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
        return engine.phase !== 'absent' || engine.queue.length > 0
      })
      if (!ending.length) {
        throw new CorralError('model_not_loaded', `Model "${nameOf(model)}" is not loaded.`)
      }
      const stopped = (slot: Slot) => modelStopped(slot.variant.publicName)
      await end(ending, stopped, stopped)
    },

    keepAlive(model, ms) {
      for (const slot of slotsOf([storage.get(model)])) {
        dispatch({ type: 'keep-alive', key: slot.key, keepAlive: forEver(ms) })
      }
    },

    running: () => [...slots.values()].flatMap(slot => runningModel(slot, state.engines.get(slot.key))),

    loading: () => [...slots.values()].flatMap(slot => loadingModel(slot, state.engines.get(slot.key))),

    async close(graceMs) {
      dispatch({ type: 'close' })
      const alive = () => [...slots.values()].filter(slot => slot.engine || slot.loading)
      const gone = alive().map(slot => new Promise<void>(resolve => slot.goneListeners.push(resolve)))
      let timer: NodeJS.Timeout | undefined
      const grace = new Promise<void>(resolve => {
        timer = setTimeout(resolve, graceMs)
      })
      await Promise.race([Promise.all(gone), grace])
      clearTimeout(timer)
      const error = () => new CorralError('shutting_down', 'corral is shutting down; this answer was cut short.')
      await end(alive(), error, error)
      for (const slot of slots.values()) clearTimeout(slot.alarm)
    }
  }
}

function nameOf(model: ModelName): string {
  return model.variant === undefined ? bareName(model) : `${bareName(model)}:${model.variant}`
}

function forEver(ms: number): number {
  return ms < 0 ? Number.POSITIVE_INFINITY : ms
}

function asCorralError(error: unknown): CorralError {
  if (error instanceof CorralError) return error
  return new CorralError('load_failed', `The model could not be loaded: ${messageOf(error)}`, { cause: error })
}
