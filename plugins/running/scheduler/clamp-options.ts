import type { RequestBounds } from '../../../core/contracts/callers.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'

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

/** Returns the options that were clamped, or undefined. */
export function findClamped(
  requested: Partial<LoadOptions>,
  options: Partial<LoadOptions>
): Partial<LoadOptions> | undefined {
  if (requested === options) return undefined
  const names = Object.keys(options) as (keyof LoadOptions)[]
  return Object.fromEntries(names.filter(name => options[name] !== requested[name]).map(name => [name, options[name]]))
}
