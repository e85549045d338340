import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { boundsFor } from '../../../core/answers/bounds.ts'
import type { CoreConfig } from '../../../core/config/core-schema.ts'
import { type EffectiveSettings, readSettings, settingsFor } from '../../../core/config/model-settings.ts'
import type { RequestBounds } from '../../../core/contracts/callers.ts'
import type {
  Engine,
  EngineExit,
  EngineMode,
  EngineProvider,
  EngineSpec,
  MemoryUse
} from '../../../core/contracts/engines.ts'
import type { Hooks } from '../../../core/contracts/hooks.ts'
import type { Lease, LeaseRequest, Scheduler } from '../../../core/contracts/leases.ts'
import type { Catalog, Model } from '../../../core/contracts/models.ts'
import type { OnProgress, Progress, Waiting } from '../../../core/contracts/progress.ts'
import type { Storage } from '../../../core/contracts/storage.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { bareName, type ModelName, parseModelName } from '../../../core/models/model-name.ts'
import { merged } from '../../../core/system/merged.ts'
import { OpenMap } from '../../../core/system/open-tables.ts'
import { decide } from './decide.ts'
import {
  type EngineRecord,
  engineFault,
  isOccupied,
  loadingModel,
  runningModel,
  settleGone,
  whenGone
} from './engine-record.ts'
import type { EngineRegistry } from './engine-registry.ts'
import type { HostMemory } from './host-memory.ts'
import { createTrials } from './model-trials.ts'
import {
  createState,
  type Effect,
  type Event,
  isIn,
  type Limits,
  type ModelFacts,
  reservedBy,
  statsOf
} from './scheduler-state.ts'

interface Request {
  id: number
  managed: EngineRecord
  onProgress: OnProgress | undefined
  grant: (engine: Engine) => void
  refuse: (error: unknown) => void
  revoke: (error: CorralError) => void
}

export interface SchedulerDependencies {
  storage: Pick<Storage, 'onRemove'>
  catalog: Catalog
  engines: EngineRegistry
  hostMemory: HostMemory
  config: CoreConfig
  hooks: Pick<Hooks, 'modelLoaded' | 'modelUnloaded' | 'loadFailed' | 'stateChanged'>
  log: FastifyBaseLogger
  limits: Limits
}

/** The longest delay of Node's timers in milliseconds. A later alarm goes off early and is set again. */
const MAX_TIMER = 2 ** 31 - 1
/** Milliseconds that an engine has to report its end after `stop` has resolved. */
const EXIT_GRACE = 2000

/** How many engines a request may get, including those that ended before it was sent. */
const MAX_ATTEMPTS = 4

type ErrorOf = (managed: EngineRecord) => CorralError

const stoppedError: ErrorOf = ({ variant: { publicName } }) =>
  new CorralError('model_stopped', `Model "${publicName}" was stopped. Send the request again to load it.`)

export interface OwnedScheduler extends Scheduler {
  /** Loads the models that `config.yaml` lists for preloading, one after the other. Failures are logged. */
  preload(signal: AbortSignal): Promise<void>
  /**
   * Applies the current configuration. Models whose load settings changed are reloaded when their answers have ended.
   */
  reload(limits: Limits, signal: AbortSignal): void
  close(graceMs: number): Promise<void>
}

/** Carries out the effects that `decide.ts` returns, and reports back to it. */
export function createScheduler(deps: SchedulerDependencies): OwnedScheduler {
  const { storage, catalog, engines, hostMemory, config, hooks, log } = deps
  const state = createState(deps.limits)
  const managedEngines = new Map<string, EngineRecord>()
  const requests = new OpenMap<number, Request>()
  const trials = createTrials({ catalog, engines, config, state, lease, managedOf, defaultsOf, outdate, loadAhead })
  /** By variant key: why the last load failed. */
  const failures = new Map<string, CorralError>()
  let nextId = 1
  let measured = false

  /** Settings of a variant: the configuration, overridden by a trial. */
  function settingsOf(variant: Model): EffectiveSettings {
    const settings = trials.settingsOf(variant.key)
    return settings ? readSettings(config, variant, settings) : settingsFor(config, variant)
  }

  function dispatch(event: Event): void {
    for (const effect of decide(state, event, performance.now())) {
      if ('key' in effect) performOn(managedEngines.get(effect.key), effect)
      else if (effect.type === 'refuse') requests.get(effect.id)?.refuse(effect.error)
      else requests.get(effect.id)?.revoke(effect.error)
    }
    for (const [key, managed] of managedEngines) {
      if (!state.engines.has(key) && !isOccupied(managed)) managedEngines.delete(key)
    }
    hooks.stateChanged('engine')
  }

  function performOn(managed: EngineRecord | undefined, effect: Extract<Effect, { key: string }>): void {
    // It may have ended while earlier effects were carried out: a revoked request releases its lease at once.
    if (!managed) return
    switch (effect.type) {
      case 'prepare':
        void prepare(managed, effect.run, effect.options)
        break
      case 'abort-prepare':
        managed.preparing?.abort(stoppedError(managed))
        break
      case 'load':
        void load(managed, effect.run, effect.options)
        break
      case 'abort-load':
        managed.loading?.abort(stoppedError(managed))
        break
      case 'unload':
        managed.leaving = effect.reason
        void unload(managed, effect.save)
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

  function setAlarm(managed: EngineRecord, at: number | undefined): void {
    clearTimeout(managed.alarm)
    managed.alarm = undefined
    if (at === undefined) return
    const wait = Math.min(Math.max(at - performance.now(), 0), MAX_TIMER)
    managed.alarm = setTimeout(() => dispatch({ type: 'alarm', key: managed.key }), wait)
    managed.alarm.unref()
  }

  function report(managed: EngineRecord, progress: Progress): void {
    managed.progress = progress
    hooks.stateChanged('engine')
    for (const request of requests.values()) {
      if (request.managed === managed) request.onProgress?.(progress)
    }
  }

  function reportWaiting(managed: EngineRecord, holders: readonly string[]): void {
    if (holders.length) {
      const names = new Set(holders.map(key => managedEngines.get(key)?.variant.publicName ?? key))
      report(managed, { phase: 'waiting', subject: `for memory used by ${[...names].join(' and ')}` })
    } else if (managed.progress?.phase === 'waiting') managed.progress = undefined
  }

  /** Returns the newest revision of an engine's model, its provider and what to start. */
  function specOf(managed: EngineRecord, options: LoadOptions) {
    const variant = catalog.get({ ...managed.variant.model, variant: managed.variant.label })
    const provider = engines.requireProvider(variant, managed.mode)
    const spec: EngineSpec = {
      alias: variant.publicName,
      mode: managed.mode,
      variant,
      // A newer revision may have been trained with a smaller context.
      options: cappedOptions(options, variant, UNBOUNDED),
      settings: settingsOf(variant).engine
    }
    return { provider, spec }
  }

  /** Returns everything that a load depends on besides requests, for comparison. */
  function basisOf(variant: Model): string {
    const settings = settingsOf(variant)
    const options = defaultsOf(variant, settings)
    // `dtype` matters only to models that are converted.
    return JSON.stringify([
      settings.engine,
      variant.format === 'safetensors' ? options : { ...options, dtype: undefined }
    ])
  }

  function waitingOf(managed: EngineRecord, { signal }: AbortController): Waiting {
    return { signal, onProgress: progress => report(managed, progress) }
  }

  /**
   * Measures how much memory engines may use. While a model loads, nobody knows how much of its share it already uses,
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
    dispatch({ type: 'budget', budget })
  }

  /** Estimates a load. If necessary it converts the model's files first. */
  async function prepare(managed: EngineRecord, run: number, options: LoadOptions): Promise<void> {
    const controller = new AbortController()
    const { signal } = controller
    managed.preparing = controller
    // All effects of an event are carried out before any outcome returns.
    await Promise.resolve()
    let outcome: Event
    try {
      const { provider, spec } = specOf(managed, options)
      managed.basis = basisOf(spec.variant)
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

  async function load(managed: EngineRecord, run: number, options: LoadOptions): Promise<void> {
    const controller = new AbortController()
    managed.loading = controller
    await Promise.resolve()
    const started = performance.now()
    const { estimate } = managed
    let engine: Engine
    try {
      const { provider, spec } = specOf(managed, options)
      // Each load uses the newest revision.
      managed.variant = spec.variant
      managed.basis = basisOf(spec.variant)
      managed.isTrial = trials.settingsOf(spec.variant.key) !== undefined
      log.info({ options: spec.options, need: estimate?.use }, `loading ${managed.variant.publicName}`)
      report(managed, { phase: 'loading', subject: '' })
      engine = await provider.start(spec, waitingOf(managed, controller), estimate)
      const others = [...managedEngines.values()].flatMap(({ engine: other }) => (other ? [other.id] : []))
      const fault = engineFault(engine, others)
      if (fault) {
        void engine.stop().catch(error => log.error({ err: error }, 'the engine did not stop'))
        throw new CorralError('load_failed', `The engine provider "${provider.name}" started an engine ${fault}.`)
      }
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
    managed.loadedAt = performance.now()
    const cost = Math.round(managed.loadedAt - started)
    const serves = !controller.signal.aborted
    const exited = new Promise<EngineExit>(resolve => {
      managed.end = resolve
      const failed = (error: unknown) =>
        resolve({ code: null, signal: null, expected: false, failure: asCorralError(error) })
      engine.exited.then(resolve, failed)
    })
    managed.exited = exited
    void exited.then(exit => {
      managed.engine = undefined
      settleGone(managed)
      const name = managed.variant.publicName
      const { failure, ...how } = exit
      const reason = exit.expected ? (managed.leaving ?? 'stopped') : 'failed'
      managed.leaving = undefined
      if (serves) hooks.modelUnloaded({ model: name, mode: managed.mode, reason, ...causeOf(failure) })
      if (exit.expected) log.info(`unloaded ${name}`)
      else log.error({ model: name, ...how, tail: engine.logTail().slice(-20) }, 'the engine died')
      const error =
        failure ??
        new CorralError(
          'engine_crashed',
          `The engine of model "${name}" ended unexpectedly (${exit.signal ?? `exit code ${exit.code}`}). Send the request again to restart it.`
        )
      dispatch({ type: 'gone', key: managed.key, run, ...(exit.expected ? {} : { error }) })
    })
    if (!serves) {
      // It was stopped just as it became ready: wait for its end.
      await stopEngine(managed, engine)
      return
    }
    const use = engine.reserved ?? engine.memory ?? estimate?.use ?? {}
    hostMemory.add({ pid: engine.pid, exited }, use.host ?? 0)
    log.info({ pid: engine.pid, ms: cost, use }, `loaded ${managed.variant.publicName}`)
    if (failures.delete(managed.variant.key)) hooks.stateChanged('model')
    hooks.modelLoaded({ model: managed.variant.publicName, mode: managed.mode, milliseconds: cost })
    dispatch({ type: 'loaded', key: managed.key, run, use, slots: engine.slots, loadTime: cost })
    measureBudget().catch(error => log.error({ err: error }, 'the memory of this machine cannot be measured'))
  }

  function failureOf(managed: EngineRecord, signal: AbortSignal, error: unknown): CorralError {
    if (signal.aborted) return asCorralError(signal.reason)
    const { publicName } = managed.variant
    log.error({ model: publicName, err: error }, 'loading failed')
    const failure = asCorralError(error)
    failures.set(managed.variant.key, failure)
    hooks.stateChanged('model')
    hooks.loadFailed({ model: publicName, mode: managed.mode, code: failure.code, ...causeOf(failure) })
    return failure
  }

  /** Stops an engine. After a grace period it counts as ended even if its plugin never reports the end. */
  async function stopEngine(managed: EngineRecord, engine: Engine): Promise<void> {
    try {
      await engine.stop()
    } catch (error) {
      log.error({ err: error }, 'the engine did not stop')
      return
    }
    const ended = new AbortController()
    void managed.exited?.then(() => ended.abort())
    await sleep(EXIT_GRACE, undefined, { signal: ended.signal }).catch(() => {})
    if (ended.signal.aborted) return
    const { publicName } = managed.variant
    log.error(
      `The engine "${engine.provider}" of ${publicName} was stopped, but its promise "exited" is still pending.`
    )
    managed.end?.({ code: null, signal: null, expected: true })
  }

  async function unload(managed: EngineRecord, save: boolean): Promise<void> {
    const { engine, variant } = managed
    if (!engine) return
    log.info(`unloading ${variant.publicName}`)
    try {
      // Prompts of a trial must not replace those of real conversations.
      if (save && !managed.isTrial) await engine.saveSlots?.()
    } catch (error) {
      log.error({ err: error }, 'the prompt cache was not saved')
    }
    await stopEngine(managed, engine)
  }

  function managedOf(variant: Model, mode: EngineMode): EngineRecord {
    const key = `${variant.key}#${mode}`
    let managed = managedEngines.get(key)
    if (!managed) {
      managed = { key, variant, mode, loadedAt: 0, goneListeners: [] }
      managedEngines.set(key, managed)
    }
    return managed
  }

  /** Returns the engines of these variants in all modes. */
  function enginesOf(variants: Model[]): EngineRecord[] {
    const keys = new Set(variants.map(variant => variant.key))
    return [...managedEngines.values()].filter(
      managed => keys.has(managed.variant.key) && state.engines.has(managed.key)
    )
  }

  /**
   * Ends these engines, their loads and their requests. Settles when no process is left.
   * @param running error for requests being answered
   * @param waiting error for waiting requests
   * @param save whether idle engines may save their prompt caches first
   */
  async function endAll(ending: EngineRecord[], running: ErrorOf, waiting: ErrorOf, save: boolean): Promise<void> {
    const gone = whenGone(ending)
    for (const managed of ending) {
      // Interrupt a save in progress.
      if (!save && state.engines.get(managed.key)?.phase.name === 'stopping') void unload(managed, false)
      dispatch({ type: 'stop', key: managed.key, running: running(managed), waiting: waiting(managed), save })
    }
    await gone
  }

  storage.onRemove(async variants => {
    for (const { key } of variants) failures.delete(key)
    const deleted: ErrorOf = ({ variant: { publicName } }) =>
      new CorralError('model_deleted', `Model "${publicName}" was deleted while it answered.`)
    const missing: ErrorOf = ({ variant: { publicName } }) =>
      new CorralError('model_not_found', `Model "${publicName}" was deleted.`)
    await endAll(enginesOf(variants), deleted, missing, false)
  })

  /** Clamped options that have already been logged, since programs send the same options with each request. */
  const loggedBounds = new Set<string>()

  function logClamped(model: string, client: string, given: Partial<LoadOptions>, clamped: Partial<LoadOptions>): void {
    for (const [option, effective] of Object.entries(clamped)) {
      const known = `${model} ${option} ${client}`
      const level = loggedBounds.has(known) ? 'debug' : 'warn'
      if (loggedBounds.size >= MAX_LOGGED) loggedBounds.clear()
      loggedBounds.add(known)
      const requested = given[option as keyof LoadOptions]
      log[level]({ model, option, requested, effective }, `${option} was reduced to its limit`)
    }
  }

  /** Leases an engine, in the form that this request needs. */
  async function lease(request: LeaseRequest): Promise<Lease> {
    const leased = await leaseEngine(request)
    if (!leased.engine.forRequest) return leased
    try {
      const engine = await leased.engine.forRequest(request, leased.signal)
      return merged(leased, { engine })
    } catch (error) {
      leased.release()
      throw error
    }
  }

  async function leaseEngine(request: LeaseRequest): Promise<Lease> {
    request.signal.throwIfAborted()
    const variant = catalog.get(request.model)
    const mode = request.mode ?? 'chat'
    const provider = engines.requireProvider(variant, mode)
    const settings = settingsOf(variant)
    const asker = { mode, owner: request.owner }
    const relevant = provider.loadOptions?.(variant, request.options, settings.load, asker) ?? request.options
    const bounds = boundsFor(config, variant, {})
    const own = request.bounds ? boundsFor(config, variant, request) : bounds
    const options = cappedOptions(relevant, variant, own)
    const clamped = changedIn(relevant, options)
    if (clamped) {
      request.onClamped?.(clamped)
      logClamped(variant.publicName, request.turn ?? '', relevant, clamped)
    }
    const managed = managedOf(variant, mode)
    managed.keepAlive = settings.keepAlive
    const id = nextId++
    const began = performance.now()
    return await new Promise<Lease>((resolve, reject) => {
      const controller = new AbortController()
      const { signal } = controller
      let ended = false
      // Assigned instead of a getter: for objects with getters V8 creates a hidden class each, which keeps the whole
      // request alive until the old generation is collected.
      let leased: { -readonly [Field in keyof Lease]: Lease[Field] }
      const finish = () => {
        if (ended) return
        ended = true
        request.signal.removeEventListener('abort', onAbort)
        requests.delete(id)
        dispatch({ type: 'leave', id, key: managed.key })
      }
      const letOthers = async () => {
        signal.throwIfAborted()
        const record = requests.get(id)
        if (!record || !state.engines.get(managed.key)?.queue.length) return
        const ofLease = { ...record }
        await new Promise<void>((granted, refused) => {
          const left = () => refused(signal.reason)
          signal.addEventListener('abort', left)
          Object.assign(record, {
            grant: (next: Engine) => {
              leased.engine = next
              signal.removeEventListener('abort', left)
              granted()
            },
            refuse: (error: unknown) => {
              ofLease.refuse(error)
              signal.removeEventListener('abort', left)
              refused(error)
            }
          })
          dispatch({ type: 'yield', id, key: managed.key })
        })
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
          const { variant, loadedAt } = managed
          const loadDuration = Math.max(0, loadedAt - began)
          leased = { engine, variant, signal, loadDuration, letOthers, release: finish }
          resolve(leased)
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
        turn: request.turn ?? '',
        ...factsOf(variant, settings, provider),
        options,
        loadOnly: request.loadOnly ?? false,
        slots: request.slots ?? 1,
        idle: request.idle ?? false,
        keepAlive: request.keepAlive === undefined ? undefined : forEver(request.keepAlive),
        initialKeepAlive: settings.keepAlive === undefined ? undefined : forEver(settings.keepAlive)
      })
      const phase = state.engines.get(managed.key)?.phase.name
      if (phase === 'ready' || phase === 'draining') {
        requests.get(id)?.onProgress?.({ phase: phase === 'ready' ? 'queued' : phase, subject: '' })
      }
    })
  }

  /** Names in the configuration of models that have already been preloaded. */
  const preloaded = new Set<string>()

  async function preload(signal: AbortSignal): Promise<void> {
    for (const name of preloaded) if (!config.models[name]?.preload) preloaded.delete(name)
    for (const name of Object.keys(config.models)) {
      if (preloaded.has(name)) continue
      const variant = catalog.find(parseModelName(name))
      if (!variant || !settingsOf(variant).preload) continue
      preloaded.add(name)
      await loadAhead(variant, undefined, signal)
      if (signal.aborted) return
    }
  }

  /** Loads a model without a request. A failure is logged. */
  async function loadAhead(
    variant: Model,
    mode: EngineMode | undefined,
    signal: AbortSignal,
    options: Partial<LoadOptions> = {}
  ): Promise<void> {
    const model = { ...variant.model, variant: variant.label }
    try {
      const leased = await lease({ model, options, loadOnly: true, signal, ...(mode && { mode }) })
      leased.release()
    } catch (error) {
      if (signal.aborted) return
      log.error({ model: variant.publicName, reason: errorMessage(error) }, 'a model could not be preloaded')
    }
  }

  /**
   * Sends an engine the current configuration of its model.
   * @param usual the previous default of `keep_alive`
   * @returns whether it must be reloaded
   */
  function newSettings(usual: number) {
    return (managed: EngineRecord): boolean => {
      const { model, label } = managed.variant
      const variant = catalog.find({ ...model, variant: label })
      const provider = variant && engines.providerOf(variant, managed.mode)
      // It is being removed.
      if (!provider) return false
      const settings = settingsOf(variant)
      const [before, keepAlive] = [
        managed.keepAlive === undefined ? usual : forEver(managed.keepAlive),
        settings.keepAlive === undefined ? state.limits.keepAlive : forEver(settings.keepAlive)
      ]
      managed.keepAlive = settings.keepAlive
      const outdated = managed.basis !== undefined && managed.basis !== basisOf(variant)
      if (outdated) log.info(`${variant.publicName} will be reloaded with its new settings when its answers have ended`)
      dispatch({
        type: 'settings',
        key: managed.key,
        keepAlive: keepAlive === before ? undefined : keepAlive,
        outdated,
        ...factsOf(variant, settings, provider)
      })
      return outdated
    }
  }

  /** Makes the next request load the variant's engine again with its current settings. */
  function outdate(managed: EngineRecord, variant: Model): void {
    const settings = settingsOf(variant)
    const provider = engines.requireProvider(variant, managed.mode)
    managed.keepAlive = settings.keepAlive
    const keepAlive = settings.keepAlive === undefined ? state.limits.keepAlive : forEver(settings.keepAlive)
    dispatch({ type: 'settings', key: managed.key, keepAlive, outdated: true, ...factsOf(variant, settings, provider) })
  }

  /** Returns the load options that apply if a request asks for none. */
  function defaultsOf(variant: Model, { load }: EffectiveSettings): LoadOptions {
    return cappedOptions(load, variant, boundsFor(config, variant, {}))
  }

  function factsOf(variant: Model, settings: EffectiveSettings, provider: EngineProvider): ModelFacts {
    return {
      name: variant.publicName,
      defaults: defaultsOf(variant, settings),
      pinned: settings.pin,
      groups: settings.groups,
      elsewhere: provider.estimate === undefined,
      maxConcurrent: settings.maxConcurrent
    }
  }

  return {
    lease,

    async withLease(request, use) {
      let tried = 0
      for (let attempt = 1; ; attempt++) {
        const leased = await lease(request)
        try {
          return await use(leased)
        } catch (error) {
          if (isDisplaced(leased) && !request.signal.aborted && (request.mayRetry?.() ?? true)) {
            attempt = 0
            continue
          }
          const crashed = error instanceof CorralError && error.code === 'engine_crashed' && error.retryable
          // A request that still waited inside the engine has not been tried.
          if (!crashed || error.details?.sent !== false) tried++
          if (
            !crashed ||
            tried > 1 ||
            attempt >= MAX_ATTEMPTS ||
            request.signal.aborted ||
            !(request.mayRetry?.() ?? true)
          )
            throw error
          log.warn({ model: leased.variant.publicName }, 'the engine died before it answered; trying once more')
        } finally {
          leased.release()
        }
      }
    },

    async stop(model) {
      const variant = catalog.get(model)
      const elsewhere = engines.providerOf(variant, modeOf(variant))?.unload?.(variant)
      const ending = enginesOf([variant]).filter(({ key }) => {
        const engine = state.engines.get(key)
        return engine && (engine.phase.name !== 'absent' || engine.queue.length > 0)
      })
      if (!ending.length && !(await elsewhere)) {
        throw new CorralError('model_not_loaded', `Model "${nameOf(model)}" is not loaded.`)
      }
      await Promise.all([elsewhere, endAll(ending, stoppedError, stoppedError, true)])
    },

    keepAlive(model, ms) {
      const variant = catalog.get(model)
      engines.providerOf(variant, modeOf(variant))?.keepAlive?.(variant, ms)
      for (const managed of enginesOf([variant])) {
        dispatch({ type: 'keep-alive', key: managed.key, keepAlive: forEver(ms) })
      }
    },

    running: () =>
      [...managedEngines.values()].flatMap(managed => runningModel(managed, state.engines.get(managed.key))),

    loading: () =>
      [...managedEngines.values()].flatMap(managed => loadingModel(managed, state.engines.get(managed.key))),

    loadFailure: ({ key }) => failures.get(key),
    stats: () => ({ ...statsOf(state, performance.now()), requests: nextId - 1 }),

    trial: trials.trial,
    tunables: trials.tunables,

    preload,

    reload(limits, signal) {
      const usual = state.limits.keepAlive
      Object.assign(state.limits, limits)
      const again = [...managedEngines.values()].filter(({ key }) => state.engines.has(key)).filter(newSettings(usual))
      const wanted = again.filter(({ variant }) => {
        const { pin, preload } = settingsOf(variant)
        return pin || preload
      })
      for (const { variant, mode } of wanted) void loadAhead(variant, mode, signal)
      void preload(signal)
      measureBudget().catch(error => log.error({ err: error }, 'the memory of this machine cannot be measured'))
    },

    async close(graceMs) {
      dispatch({ type: 'close' })
      let timer: NodeJS.Timeout | undefined
      const grace = new Promise<void>(resolve => {
        timer = setTimeout(resolve, graceMs)
      })
      await Promise.race([whenGone([...managedEngines.values()]), grace])
      clearTimeout(timer)
      const error = () =>
        new CorralError(
          'shutting_down',
          'corral is shutting down, so this answer was cut off. Send the request again when it is back.'
        )
      await endAll([...managedEngines.values()].filter(isOccupied), error, error, false)
      for (const managed of managedEngines.values()) clearTimeout(managed.alarm)
    }
  }
}

/** Whether a background request lost its lease to a client. */
function isDisplaced({ signal: { aborted, reason } }: Lease): boolean {
  return aborted && reason instanceof CorralError && reason.details?.displaced === true
}

/** Returns a mode that the model supports. */
function modeOf({ metadata: { capabilities } }: Model): EngineMode {
  if (capabilities.includes('completion')) return 'chat'
  return capabilities.includes('rerank') ? 'rerank' : 'embedding'
}

function nameOf(model: ModelName): string {
  return model.variant === undefined ? bareName(model) : `${bareName(model)}:${model.variant}`
}

/** Milliseconds. Clients cannot represent later dates. */
const CENTURY = 100 * 365 * 24 * 3_600_000

function forEver(ms: number): number {
  return ms < 0 || ms > CENTURY ? Number.POSITIVE_INFINITY : ms
}

/** Clamped options remembered as logged. */
const MAX_LOGGED = 1000

/** Only the model's training limits the options. */
const UNBOUNDED = { num_ctx: 0, num_parallel: Number.POSITIVE_INFINITY }

/** Clamps load options to their limits, and the context to what the model was trained for. */
export function cappedOptions<Options extends Partial<LoadOptions>>(
  options: Options,
  { metadata: { contextLength: trained = Number.POSITIVE_INFINITY } }: Pick<Model, 'metadata'>,
  bounds: Pick<RequestBounds, 'num_ctx' | 'num_parallel'>
): Options {
  const { num_ctx: context, num_parallel: slots } = options
  const mostContext = Math.min(trained, bounds.num_ctx > 0 ? bounds.num_ctx : Number.POSITIVE_INFINITY)
  const isLarge = context !== undefined && context > mostContext
  const isWide = slots !== undefined && slots > bounds.num_parallel
  if (!isLarge && !isWide) return options
  return { ...options, ...(isLarge && { num_ctx: mostContext }), ...(isWide && { num_parallel: bounds.num_parallel }) }
}

/** Returns the options that were clamped, or undefined. */
function changedIn(requested: Partial<LoadOptions>, options: Partial<LoadOptions>): Partial<LoadOptions> | undefined {
  if (requested === options) return undefined
  const names = Object.keys(options) as (keyof LoadOptions)[]
  return Object.fromEntries(names.filter(name => options[name] !== requested[name]).map(name => [name, options[name]]))
}

/** Returns the cause of a failure, if its provider found one. */
function causeOf(failure: CorralError | undefined): { cause?: string } {
  const cause = failure?.details?.cause
  return typeof cause === 'string' ? { cause } : {}
}

function asCorralError(error: unknown): CorralError {
  if (error instanceof CorralError) return error
  return new CorralError('load_failed', `The model could not be loaded: ${errorMessage(error)}`, { cause: error })
}
