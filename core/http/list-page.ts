import { type TSchema, Type } from 'typebox'
import { Loose, OrNull } from './request-fields.ts'

/** A page of a list, as clients of OpenAI and Anthropic read it. */
export const PageOf = <Item extends TSchema>(item: Item, options: { title?: string } = {}) =>
  Loose(
    {
      object: Type.Literal('list'),
      data: Type.Array(item),
      first_id: OrNull(Type.String()),
      last_id: OrNull(Type.String()),
      has_more: Type.Boolean()
    },
    options
  )

/** Returns the rows that follow the last one with an id, so that pages make progress even if ids are not unique. */
export function pageAfter<Row extends { id: string }>(rows: readonly Row[], after: string | undefined, limit: number) {
  const from = after === undefined ? 0 : rows.findLastIndex(({ id }) => id === after) + 1
  const data = rows.slice(from, from + limit)
  return listPage(data, from + data.length < rows.length)
}

/** Returns a page with these rows. @param more whether further rows follow */
export function listPage<Row extends { id: string }>(data: Row[], more = false) {
  const [first_id, last_id] = [data[0]?.id ?? null, data.at(-1)?.id ?? null]
  return { object: 'list' as const, data, first_id, last_id, has_more: more }
}
