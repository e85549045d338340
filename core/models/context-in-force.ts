import type { CoreConfig } from '../config/core-schema.ts'
import { settingsFor } from '../config/model-settings.ts'
import type { RunningModel } from '../contracts/leases.ts'
import type { Model } from '../contracts/models.ts'

/**
 * Tokens of context that a request has which asks for none of its own: those of the engine that runs, else those that
 * the model would be loaded with. No model has more than it was trained for.
 */
export function contextInForce(
  config: CoreConfig,
  variant: Model,
  running: readonly Pick<RunningModel, 'variant' | 'mode' | 'engine'>[]
): number {
  const own = running.filter(model => model.variant.key === variant.key)
  const engine = (own.find(({ mode }) => mode === 'chat') ?? own[0])?.engine
  const { contextLength = Number.POSITIVE_INFINITY } = variant.metadata
  return engine?.contextSize ?? Math.min(settingsFor(config, variant).load.num_ctx, contextLength)
}
