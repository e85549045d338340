import type { EngineMode, EngineProvider } from '../../../core/contracts/engines.ts'
import type { Scheduler } from '../../../core/contracts/leases.ts'
import type { Model } from '../../../core/contracts/models.ts'
import { errorMessage } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import type { EngineRecord } from './engine-record.ts'
import type { SchedulerCore } from './scheduler-core.ts'

/** Loads models ahead of requests, and applies changed settings to engines. */
export function createConfigurationLoads(core: SchedulerCore, lease: Scheduler['lease']) {
  const { catalog, config, engines, log, models, records, state } = core
  /** Names in the configuration of models that have already been preloaded. */
  const preloaded = new Set<string>()

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
    const model = { ...variant.model, variant: variant.label }
    try {
      const leased = await lease({ model, options, loadOnly: true, signal, ...(mode && { mode }) })
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
    const { model, label } = record.variant
    const variant = catalog.find({ ...model, variant: label })
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

  function markOutdated(record: EngineRecord, variant: Model): void {
    sendSettings(record, variant, engines.requireProvider(variant, record.mode), true)
  }

  return {
    preload,
    loadAhead,

    /** Makes the next request load the variant's engine again with its current settings. */
    markOutdated,

    /** Loads an engine again with these options, when its answers have ended. Without options it is only unloaded. */
    replace(record: EngineRecord, variant: Model, options: LoadOptions | undefined): void {
      markOutdated(record, variant)
      if (!options) return
      const { dtype, ...others } = options
      void loadAhead(variant, record.mode, new AbortController().signal, others)
    },

    /** Applies the current configuration to all engines, and starts the loads that it requires. */
    apply(signal: AbortSignal): void {
      const outdated = [...records.values()].filter(({ key }) => state.engines.has(key)).filter(applySettings)
      for (const { variant, mode } of outdated) {
        const { pin, preload } = models.getSettings(variant)
        if (pin || preload) void loadAhead(variant, mode, signal)
      }
      void preload(signal)
    }
  }
}

export type ConfigurationLoads = ReturnType<typeof createConfigurationLoads>
