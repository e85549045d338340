import type { Model } from '../../core/contracts/catalog.ts'

/** A model as Anthropic's clients list it. */
export function modelRecord(variant: Model, context: number) {
  return {
    type: 'model' as const,
    id: variant.publicName,
    display_name: variant.publicName,
    created_at: variant.modifiedAt,
    max_input_tokens: context
  }
}

/** All of them on one page. */
export function modelList(variants: readonly Model[], contextOf: (variant: Model) => number) {
  const data = variants.map(variant => modelRecord(variant, contextOf(variant)))
  return { data, has_more: false, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null }
}
