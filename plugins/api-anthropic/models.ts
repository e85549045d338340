import type { CoreConfig } from '../../core/config/core-schema.ts'
import { settingsFor } from '../../core/model-settings.ts'
import type { StoredVariant } from '../../core/services.ts'

/** A model as Anthropic's clients list it. */
export function modelRecord(config: CoreConfig, variant: StoredVariant) {
  const { contextLength = Number.POSITIVE_INFINITY } = variant.metadata
  return {
    type: 'model' as const,
    id: variant.publicName,
    display_name: variant.publicName,
    created_at: variant.modifiedAt,
    max_input_tokens: Math.min(settingsFor(config, variant).load.num_ctx, contextLength)
  }
}

/** All of them on one page. */
export function modelList(config: CoreConfig, variants: readonly StoredVariant[]) {
  const data = variants.map(variant => modelRecord(config, variant))
  return { data, has_more: false, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null }
}
