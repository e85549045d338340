import type { Item } from './items.ts'

/** Which part of a list a client asks for. */
export interface PageQuery {
  limit?: number
  order?: 'asc' | 'desc'
  after?: string
}

/** A page of a list of items, as OpenAI's lists are read. */
export function pageOf(items: readonly Item[], { limit = 20, order = 'desc', after }: PageQuery) {
  const ordered = order === 'asc' ? [...items] : items.toReversed()
  // Clients may give several items one id; the last one is taken, so that each page begins later than the one before.
  const start = after === undefined ? 0 : ordered.findLastIndex(item => item.id === after) + 1
  const data = ordered.slice(start, start + limit)
  return {
    object: 'list',
    data,
    first_id: data.at(0)?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
    has_more: start + data.length < ordered.length
  }
}
