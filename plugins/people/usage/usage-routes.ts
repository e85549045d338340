import type { FastifyPluginAsync } from 'fastify'
import { type Static, Type } from 'typebox'
import { Integer, parseSince, Text } from '../../../core/http/request-fields.ts'
import { json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { hasRole } from '../../../core/http/roles.ts'
import { addTo, dateOf, type Taken, taken, type UsageRecords } from './usage-records.ts'

const counts = {
  requests: Integer('Requests that ran a model'),
  tokens_in: Integer('Input tokens, including cached ones'),
  tokens_cached: Integer('Input tokens that were cached'),
  tokens_out: Integer('Output tokens')
}
const date = (description: string) => Type.String({ pattern: '^\\d{4}-\\d\\d-\\d\\d$', description })

export const UsageReplySchema = Type.Object(
  {
    by: Type.Enum(['key', 'model', 'day']),
    since: date('First day (UTC) of the report'),
    until: date('Last day: today'),
    usage: Type.Array(
      Type.Object({
        name: Text('A key, "(no key)", a model or a day'),
        ...counts
      })
    ),
    total: Type.Object(counts)
  },
  { title: 'UsageReport' }
)
export type UsageReply = Static<typeof UsageReplySchema>

export function usageRoutes(records: UsageRecords): FastifyPluginAsync {
  return async instance => {
    const route = nativeRouter(instance, 'Usage')
    route('GET /api/usage', 'getUsage', 'Report the usage of models', {
      description: 'By key, model or day. Callers with the role `user` see the usage of their own key.',
      querystring: Type.Object({
        by: Type.Optional(Type.Enum(['key', 'model', 'day'], { default: 'key' })),
        since: Type.Optional(
          Type.String({
            default: '30d',
            description: 'How long ago, such as 7d or 12h, or a day such as 2025-12-31; whole days (UTC) are counted'
          })
        )
      }),
      response: { 200: json('Usage, sorted by name', UsageReplySchema) },
      errors: ['invalid_request'],
      handler: async ({ query, caller }, reply): Promise<UsageReply> => {
        const { by = 'key', since: wanted = '30d' } = query
        const now = Date.now()
        const since = dateOf(parseSince(wanted, now))
        const seesAll = hasRole(caller.role, 'operator')
        const groups = new Map<string, { name: string; sum: Taken }>()
        const total = taken()
        await records.read(since, (day, row) => {
          if (!seesAll && row.owner !== caller.owner) return
          // Two keys may have had the same name at different times.
          const id = by === 'key' ? row.owner : by === 'model' ? row.model : day
          const group = groups.get(id) ?? { name: by === 'key' ? row.name : id, sum: taken() }
          groups.set(id, group)
          addTo(group.sum, row)
          addTo(total, row)
        })
        const usage = [...groups.values()].map(({ name, sum }) => ({ name, ...sum }))
        usage.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0))
        reply.header('cache-control', 'no-store')
        return { by, since, until: dateOf(now), usage, total }
      }
    })
  }
}
