import type { CoreConfig } from '../config/core-schema.ts'
import { settingsFor } from '../config/model-settings.ts'
import type { Caller } from '../contracts/callers.ts'
import type { RunningModel } from '../contracts/leases.ts'
import type { Model } from '../contracts/models.ts'
import { getRequestLimits } from './request-limits.ts'

/** What lists of models say about a model's context, in tokens. */
export interface ModelLimits {
  /** Size of the running engine's context, or `window` if no engine is running. */
  context: number
  /** Size that the context can have for a request without `num_ctx`: what it can grow to, if memory allows it. */
  window: number
  answer: number
}

type Limited = Pick<Caller, 'bounds'>

/** Returns the size to which a model's context may grow for a caller, or undefined if it has a fixed size. */
export function growthLimit(config: CoreConfig, variant: Model, caller: Limited): number | undefined {
  const { contextLength: trained } = variant.metadata
  if (!settingsFor(config, variant).growsContext || trained === undefined) return undefined
  return clamp(trained, getRequestLimits(config, variant, caller).num_ctx)
}

/** Returns a function for the limits of models, based on the engines that are running now. */
export function modelLimits(
  config: CoreConfig,
  running: readonly Pick<RunningModel, 'variant' | 'mode' | 'engine'>[],
  caller: Limited
): (variant: Model) => ModelLimits {
  const contexts = new Map<string, number>()
  for (const { variant, mode, engine } of running) {
    if (mode === 'chat' || !contexts.has(variant.key)) contexts.set(variant.key, engine.contextSize)
  }
  return variant => {
    const { num_ctx, max_tokens } = getRequestLimits(config, variant, caller)
    const loaded = contexts.get(variant.key)
    const usual = () => clamp(settingsFor(config, variant).load.num_ctx, variant.metadata.contextLength ?? 0)
    const window = growthLimit(config, variant, caller) ?? loaded ?? clamp(usual(), num_ctx)
    return { context: loaded ?? window, window, answer: clamp(window, max_tokens) }
  }
}

/** @param most 0 means unlimited */
const clamp = (size: number, most: number) => (most > 0 ? Math.min(size, most) : size)
