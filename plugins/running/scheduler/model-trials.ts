import type { CoreConfig, ModelSettings } from '../../../core/config/core-schema.ts'
import { type EffectiveSettings, readSettings } from '../../../core/config/model-settings.ts'
import type { EngineMode } from '../../../core/contracts/engines.ts'
import type { Scheduler } from '../../../core/contracts/leases.ts'
import type { Catalog, Model } from '../../../core/contracts/models.ts'
import type { TrialRecord } from '../../../core/contracts/trials.ts'
import { CorralError } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import type { EngineRecord } from './engine-record.ts'
import type { EngineRegistry } from './engine-registry.ts'
import type { SchedulerState } from './scheduler-state.ts'

/** Settings that temporarily replace a model's configuration. */
interface Trial {
  session: string
  /** Absent if they do not work. */
  settings: ModelSettings | undefined
  /** Options that the model was loaded with before the session. */
  before: LoadOptions | undefined
}

/** The parts of the scheduler that trials use. */
export interface TrialHost {
  catalog: Catalog
  engines: EngineRegistry
  config: CoreConfig
  state: SchedulerState
  lease: Scheduler['lease']
  managedOf(variant: Model, mode: EngineMode): EngineRecord
  defaultsOf(variant: Model, settings: EffectiveSettings): LoadOptions
  outdate(managed: EngineRecord, variant: Model): void
  loadAhead(variant: Model, mode: EngineMode, signal: AbortSignal, options: Partial<LoadOptions>): Promise<void>
}

export interface Trials extends Pick<Scheduler, 'trial' | 'tunables'> {
  /** Returns the settings that are being tried for a variant, by its key. */
  settingsOf(key: string): ModelSettings | undefined
}

/** Loads models with other settings while somebody measures them, then restores them. */
export function createTrials(host: TrialHost): Trials {
  const { catalog, engines, config, state } = host
  /** By variant key. */
  const trials = new Map<string, Trial>()

  const phaseOf = ({ key }: EngineRecord) => state.engines.get(key)?.phase

  /** Restores a model after a trial. */
  function restore(managed: EngineRecord, variant: Model, before: LoadOptions | undefined): void {
    host.outdate(managed, variant)
    if (!before) return
    const { num_ctx, num_parallel, n_gpu_layers, cache_type_k, cache_type_v } = before
    const options = { num_ctx, num_parallel, n_gpu_layers, cache_type_k, cache_type_v }
    void host.loadAhead(variant, managed.mode, new AbortController().signal, options)
  }

  return {
    settingsOf: key => trials.get(key)?.settings,

    async trial({ model, settings, session, signal, onProgress }) {
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
      const managed = host.managedOf(variant, mode)
      const loaded = phaseOf(managed)
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
        if (!state.closing) restore(managed, variant, own.before)
      }
      signal.addEventListener('abort', end)
      host.outdate(managed, variant)
      try {
        const name = { ...variant.model, variant: variant.label }
        const leased = await host.lease({ model: name, mode, options: {}, loadOnly: true, signal, onProgress })
        leased.release()
      } catch (error) {
        // Other clients must not get settings that do not work.
        own.settings = undefined
        throw error
      }
      const phase = phaseOf(managed)
      return { variant, mode, loadTime: phase && 'loadTime' in phase ? phase.loadTime : 0 }
    },

    async tunables(model, given) {
      const variant = catalog.get(model)
      const mode = trialMode(variant)
      const settings = readSettings(config, variant, given)
      const options = host.defaultsOf(variant, settings)
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
