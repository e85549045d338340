import type { ModelSettings } from '../../../core/config/core-schema.ts'
import { readSettings } from '../../../core/config/model-settings.ts'
import type { Scheduler } from '../../../core/contracts/leases.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { TrialRecord } from '../../../core/contracts/trials.ts'
import { CorralError } from '../../../core/errors.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import type { ConfigurationLoads } from './apply-configuration.ts'
import type { EngineRecord } from './engine-record.ts'
import type { SchedulerCore } from './scheduler-core.ts'

/** Settings that temporarily replace a model's configuration. */
interface Trial {
  session: string
  /** Absent if they do not work. */
  settings: ModelSettings | undefined
  /** Options that the model was loaded with before the session. */
  before: LoadOptions | undefined
}

export interface Trials extends Pick<Scheduler, 'trial' | 'tunables'> {
  /** Returns the settings that are being tried for a variant, by its key. */
  getSettings(key: string): ModelSettings | undefined
}

/** Loads models with other settings during a measurement, then restores them. */
export function createTrials(core: SchedulerCore, lease: Scheduler['lease'], loads: ConfigurationLoads): Trials {
  const { catalog, engines, config, state } = core
  /** By variant key. */
  const trials = new Map<string, Trial>()

  const getPhase = ({ key }: EngineRecord) => state.engines.get(key)?.phase

  return {
    getSettings: key => trials.get(key)?.settings,

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
        if (!state.closing) loads.replace(record, variant, own.before)
      }
      signal.addEventListener('abort', end)
      loads.markOutdated(record, variant)
      try {
        const name = { ...variant.model, variant: variant.label }
        const leased = await lease({ model: name, mode, options: {}, loadOnly: true, signal, onProgress })
        leased.release()
      } catch (error) {
        // Other clients must not get settings that do not work.
        own.settings = undefined
        throw error
      }
      const phase = getPhase(record)
      return { variant, mode, loadTime: phase && 'loadTime' in phase ? phase.loadTime : 0 }
    },

    async tunables(model, given) {
      const variant = catalog.get(model)
      const mode = trialMode(variant)
      const settings = readSettings(config, variant, given)
      const options = core.models.getDefaults(variant, settings)
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
