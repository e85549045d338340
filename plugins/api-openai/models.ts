import type { Model } from '../../core/contracts/catalog.ts'
import { CorralError } from '../../core/errors.ts'
import type { ModelListQuery } from './request-schemas.ts'

/** A model as OpenAI's clients read it (`created`, `owned_by`), and Anthropic's (`type`, `display_name`, `created_at`). */
export function modelRecord(variant: Model, context: number) {
  return {
    id: variant.publicName,
    object: 'model',
    // Seconds since the epoch.
    created: Math.floor(Date.parse(variant.modifiedAt) / 1000),
    owned_by: variant.model.owner,
    type: 'model',
    display_name: variant.publicName,
    created_at: variant.modifiedAt,
    max_input_tokens: context
  }
}

/**
 * A page of the list of models: the whole of it where no limit is given.
 * @throws CorralError `invalid_request` when there is no such place in the list
 */
export function modelPage(
  variants: readonly Model[],
  contextOf: (variant: Model) => number,
  { limit, after_id, before_id }: ModelListQuery
) {
  const all = variants.map(variant => modelRecord(variant, contextOf(variant)))
  const placeOf = (id: string, param: string) => {
    const at = all.findIndex(record => record.id.toLowerCase() === id.toLowerCase())
    if (at === -1) throw new CorralError('invalid_request', `"${param}" must be the id of a model.`, { param })
    return at
  }
  const from = after_id === undefined ? 0 : placeOf(after_id, 'after_id') + 1
  const to = before_id === undefined ? all.length : placeOf(before_id, 'before_id')
  const range = all.slice(from, Math.max(from, to))
  // Before a place, the nearest ones count.
  const backwards = before_id !== undefined && after_id === undefined
  const data = limit === undefined ? range : backwards ? range.slice(-limit) : range.slice(0, limit)
  return {
    object: 'list',
    data,
    first_id: data[0]?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
    has_more: data.length < range.length
  }
}
