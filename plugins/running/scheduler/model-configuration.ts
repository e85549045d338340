import { getRequestLimits } from '../../../core/answers/request-limits.ts'
import type { CoreConfig, ModelSettings } from '../../../core/config/core-schema.ts'
import { type EffectiveSettings, readSettings, settingsFor } from '../../../core/config/model-settings.ts'
import type { EngineProvider } from '../../../core/contracts/engines.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { clampOptions } from './clamp-options.ts'
import type { ModelFacts } from './scheduler-state.ts'

/** A longer `keep_alive` means forever (milliseconds): clients cannot represent later dates. */
const MAX_KEEP_ALIVE_MS = 100 * 365 * 24 * 3_600_000

/** Converts a `keep_alive` in milliseconds: negative means forever, undefined stays undefined. */
export function toKeepAlive<Given extends number | undefined>(ms: Given): Given | number {
  return ms !== undefined && (ms < 0 || ms > MAX_KEEP_ALIVE_MS) ? Number.POSITIVE_INFINITY : ms
}

export type ModelConfiguration = ReturnType<typeof createModelConfiguration>

/**
 * Reads the settings of models from the configuration, or from a trial that overrides it.
 * @param getTrialSettings returns the settings that are being tried for a variant, by its key
 */
export function createModelConfiguration(
  config: CoreConfig,
  getTrialSettings: (key: string) => ModelSettings | undefined
) {
  function getSettings(variant: Model): EffectiveSettings {
    const settings = getTrialSettings(variant.key)
    return settings ? readSettings(config, variant, settings) : settingsFor(config, variant)
  }

  /** Returns the load options that apply if a request asks for none. */
  function getDefaults(variant: Model, { load }: EffectiveSettings): LoadOptions {
    return clampOptions(load, variant, getRequestLimits(config, variant, {}))
  }

  return {
    getSettings,
    getDefaults,
    isTrial: ({ key }: Model) => getTrialSettings(key) !== undefined,

    getFacts(variant: Model, settings: EffectiveSettings, provider: EngineProvider) {
      // No spread: `core/system/collections.ts` says why.
      const facts: ModelFacts & { configuredKeepAlive: number | undefined } = {
        name: variant.publicName,
        defaults: getDefaults(variant, settings),
        pinned: settings.pin,
        groups: settings.groups,
        elsewhere: provider.estimate === undefined,
        maxConcurrent: settings.maxConcurrent,
        configuredKeepAlive: toKeepAlive(settings.keepAlive)
      }
      return facts
    },

    /** Returns everything that a load depends on besides requests, for comparison. */
    getBasis(variant: Model): string {
      const settings = getSettings(variant)
      const options = getDefaults(variant, settings)
      // `dtype` matters only to models that are converted.
      const relevant = variant.format === 'safetensors' ? options : { ...options, dtype: undefined }
      return JSON.stringify([settings.engine, relevant])
    }
  }
}
