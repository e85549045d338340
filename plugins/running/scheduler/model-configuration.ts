import { getRequestLimits } from '../../../core/answers/request-limits.ts'
import type { CoreConfig, ModelSettings } from '../../../core/config/core-schema.ts'
import { type EffectiveSettings, readSettings, settingsFor } from '../../../core/config/model-settings.ts'
import type { RequestBounds } from '../../../core/contracts/callers.ts'
import type { EngineProvider } from '../../../core/contracts/engines.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import type { ModelFacts } from './scheduler-state.ts'

/** A longer `keep_alive` means forever (milliseconds): clients cannot represent later dates. */
const MAX_KEEP_ALIVE_MS = 100 * 365 * 24 * 3_600_000

/** Converts a `keep_alive` in milliseconds: negative means forever, undefined stays undefined. */
export function toKeepAlive<Given extends number | undefined>(ms: Given): Given | number {
  return ms !== undefined && (ms < 0 || ms > MAX_KEEP_ALIVE_MS) ? Number.POSITIVE_INFINITY : ms
}

/** Only the model's training limits the options. */
export const UNBOUNDED = { num_ctx: 0, num_parallel: Number.POSITIVE_INFINITY }

/** Clamps load options to their limits, and the context to the length that the model was trained with. */
export function clampOptions<Options extends Partial<LoadOptions>>(
  options: Options,
  { metadata: { contextLength: trained = Number.POSITIVE_INFINITY } }: Pick<Model, 'metadata'>,
  bounds: Pick<RequestBounds, 'num_ctx' | 'num_parallel'>
): Options {
  const { num_ctx: context, num_parallel: slots } = options
  const maxContext = Math.min(trained, bounds.num_ctx > 0 ? bounds.num_ctx : Number.POSITIVE_INFINITY)
  const isLarge = context !== undefined && context > maxContext
  const isWide = slots !== undefined && slots > bounds.num_parallel
  if (!isLarge && !isWide) return options
  return { ...options, ...(isLarge && { num_ctx: maxContext }), ...(isWide && { num_parallel: bounds.num_parallel }) }
}

export function findClamped(
  requested: Partial<LoadOptions>,
  options: Partial<LoadOptions>
): Partial<LoadOptions> | undefined {
  if (requested === options) return undefined
  const names = Object.keys(options) as (keyof LoadOptions)[]
  return Object.fromEntries(names.filter(name => options[name] !== requested[name]).map(name => [name, options[name]]))
}

export type ModelConfiguration = ReturnType<typeof createModelConfiguration>

/** Reads the settings of models from the configuration, or from a trial that overrides it (by variant key). */
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
