import { getRequestLimits } from '../../../core/answers/request-limits.ts'
import type { ModelSettings } from '../../../core/config/core-schema.ts'
import { readSettings } from '../../../core/config/model-settings.ts'
import type { LoadPreview } from '../../../core/contracts/built-in-services.ts'
import type { EngineMode, EngineProvider } from '../../../core/contracts/engines.ts'
import type { Scheduler } from '../../../core/contracts/leases.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { TrialRecord } from '../../../core/contracts/trials.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { defaultMode } from '../../../core/models/model-operations.ts'
import { clampOptions, findClamped } from './model-configuration.ts'
import { type EngineRecord, engineKey, runningModel, type SchedulerCore } from './scheduler-core.ts'
import { getStats, reservedBy } from './scheduler-state.ts'

/** Settings that temporarily replace a model's configuration. */
interface Trial {
  session: string
  /** Absent if they do not work. */
  settings: ModelSettings | undefined
  /** Options that the model was loaded with before the session. */
  before: LoadOptions | undefined
}

/** Loads that no client's request causes: of models to preload, for changed settings, and for measurements. */
export function createOwnLoads(core: SchedulerCore, lease: Scheduler['lease']) {
  const { catalog, config, engines, log, models, records, state } = core
  /** Names in the configuration of models that have already been preloaded. */
  const preloaded = new Set<string>()
  /** By variant key. */
  const trials = new Map<string, Trial>()

  const toName = ({ model, label }: Model) => ({ ...model, variant: label })
  const getPhase = ({ key }: EngineRecord) => state.engines.get(key)?.phase

  async function preload(signal: AbortSignal): Promise<void> {
    for (const name of preloaded) if (!config.models[name]?.preload) preloaded.delete(name)
    for (const name of Object.keys(config.models)) {
      if (preloaded.has(name)) continue
      const variant = catalog.find(parseModelName(name))
      if (!variant || !models.getSettings(variant).preload) continue
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
    try {
      const leased = await lease({ model: toName(variant), options, loadOnly: true, signal, ...(mode && { mode }) })
      leased.release()
    } catch (error) {
      if (signal.aborted) return
      log.error({ model: variant.publicName, reason: errorMessage(error) }, 'a model could not be preloaded')
    }
  }

  function sendSettings(record: EngineRecord, variant: Model, provider: EngineProvider, outdated: boolean): void {
    const facts = models.getFacts(variant, models.getSettings(variant), provider)
    core.dispatch({ type: 'settings', key: record.key, outdated, ...facts })
  }

  /** Sends an engine the current settings of its model. Returns whether it must be reloaded. */
  function applySettings(record: EngineRecord): boolean {
    const variant = catalog.find(toName(record.variant))
    const provider = variant && engines.providerOf(variant, record.mode)
    // The model is being removed.
    if (!provider) return false
    const outdated = record.basis !== undefined && record.basis !== models.getBasis(variant)
    if (outdated) {
      log.info(`${variant.publicName} will be reloaded with its new settings when its answers have ended`)
    }
    sendSettings(record, variant, provider, outdated)
    return outdated
  }

  /** Makes the next request load the variant's engine again with its current settings. */
  function markOutdated(record: EngineRecord, variant: Model): void {
    sendSettings(record, variant, engines.requireProvider(variant, record.mode), true)
  }

  /** Loads an engine again with these options, when its answers have ended. Without options it is only unloaded. */
  function replace(record: EngineRecord, variant: Model, options: LoadOptions | undefined): void {
    markOutdated(record, variant)
    if (!options) return
    const { dtype, ...others } = options
    void loadAhead(variant, record.mode, new AbortController().signal, others)
  }

  return {
    preload,
    replace,

    /** Applies the current configuration to all engines, and starts the loads that it requires. */
    apply(signal: AbortSignal): void {
      const outdated = [...records.values()].filter(({ key }) => state.engines.has(key)).filter(applySettings)
      for (const { variant, mode } of outdated) {
        const { pin, preload } = models.getSettings(variant)
        if (pin || preload) void loadAhead(variant, mode, signal)
      }
      void preload(signal)
    },

    getTrialSettings: (key: string) => trials.get(key)?.settings,

    /** Loads a model with other settings during a measurement, then restores them. */
    async trial({ model, settings, session, signal, onProgress }: Parameters<Scheduler['trial']>[0]) {
      signal.throwIfAborted()
      const variant = catalog.get(model)
      const mode = trialMode(variant)
      engines.requireProvider(variant, mode)
      const earlier = trials.get(variant.key)
      if (earlier && earlier.session !== session) {
        throw new CorralError(
          'trial_running',
          `Another "corral bench" is trying settings of "${variant.publicName}". Wait until it has ended.`,
          { param: 'model' }
        )
      }
      const record = core.getRecord(variant, mode)
      const loaded = getPhase(record)
      const before = loaded && 'options' in loaded ? loaded.options : undefined
      const own: Trial = {
        session,
        settings: { ...settings, keep_alive: -1 },
        before: earlier ? earlier.before : before
      }
      trials.set(variant.key, own)
      const end = () => {
        if (trials.get(variant.key) !== own) return
        trials.delete(variant.key)
        if (!state.closing) replace(record, variant, own.before)
      }
      signal.addEventListener('abort', end)
      markOutdated(record, variant)
      try {
        const leased = await lease({ model: toName(variant), mode, options: {}, loadOnly: true, signal, onProgress })
        leased.release()
      } catch (error) {
        // Other clients must not get settings that do not work.
        own.settings = undefined
        throw error
      }
      // A load makes a new record if the model was not loaded before.
      const now = core.getRecord(variant, mode)
      const phase = getPhase(now)
      const [running] = runningModel(now, state.engines.get(now.key))
      // Another model took its memory in the same moment.
      if (!running) throw new CorralError('model_stopped', `Model "${variant.publicName}" was unloaded.`)
      return { ...running, mode, loadTime: phase && 'loadTime' in phase ? phase.loadTime : 0 }
    },

    async preview(...[variant, given, caller]: Parameters<Scheduler['preview']>): Promise<LoadPreview> {
      const mode = defaultMode(variant)
      const provider = engines.requireProvider(variant, mode)
      const settings = models.getSettings(variant)
      const { keepAlive } = state.limits
      if (!provider.estimate) return { keepAlive, ...(await provider.previewElsewhere?.(variant, given)) }
      const usual = models.getDefaults(variant, settings)
      const relevant = provider.loadOptions?.(variant, given, settings.load, { mode }) ?? given
      const allowed = clampOptions(relevant, variant, getRequestLimits(config, variant, caller))
      const limited = findClamped(relevant, allowed)
      const options = { ...usual, ...allowed }
      const spec = { alias: variant.publicName, mode, variant, options, settings: settings.engine }
      const { signal } = new AbortController()
      const use = (await provider.preview?.(spec, usual, signal))?.use
      if (!use) return { keepAlive, options, limited }
      const { reserved } = getStats(state, performance.now()).memory
      const budget = await engines.budget(reserved)
      const own = state.engines.get(engineKey(variant, mode))
      const held = own ? reservedBy(own) : {}
      const isWithin = (others: (pool: string) => number) =>
        Object.entries(use).every(([pool, bytes]) => bytes + others(pool) <= (budget[pool] ?? Number.POSITIVE_INFINITY))
      const fits = isWithin(pool => (reserved[pool] ?? 0) - (held[pool] ?? 0))
        ? 'now'
        : isWithin(() => 0)
          ? 'alone'
          : 'no'
      return { keepAlive, options, limited, use, fits }
    },

    async tunables(...[model, given]: Parameters<Scheduler['tunables']>) {
      const variant = catalog.get(model)
      const mode = trialMode(variant)
      const settings = readSettings(config, variant, given)
      const options = models.getDefaults(variant, settings)
      const spec = { alias: variant.publicName, mode, variant, options, settings: settings.engine }
      return (await engines.requireProvider(variant, mode).tunables?.(spec, given)) ?? []
    }
  }
}

function trialMode({ publicName, metadata: { capabilities } }: Model): TrialRecord['mode'] {
  if (capabilities.includes('completion')) return 'chat'
  if (capabilities.includes('embedding')) return 'embedding'
  throw new CorralError(
    'unsupported_capability',
    `Model "${publicName}" neither generates text nor makes embeddings, so there is nothing to try.`,
    { param: 'model' }
  )
}
