import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import type { EventStreams } from '../../../core/contracts/native-api.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { Loose, parseSince } from '../../../core/http/request-fields.ts'
import { jsonOrStream, nativeRoute } from '../../../core/http/response-schemas.ts'
import { type AuditEntry, AuditEntrySchema } from './audit-entry.ts'
import { readAudit } from './audit-reader.ts'
import type { AuditTrail } from './audit-trail.ts'

const USUAL_LIMIT = 100
/** A follower that falls further behind misses the entries beyond this many. */
const MAX_BEHIND = 10_000

export function auditRoutes(trail: AuditTrail, streams: EventStreams): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    const closing = new AbortController()
    app.addHook('preClose', async () => closing.abort())

    const audit = nativeRoute('Server', 'getAudit', 'Show the audit log', {
      role: 'admin',
      description:
        'The latest entries, oldest first: who called what, how it ended and how much it used, but no prompts or answers. With `follow` the reply is a stream that starts with the entries selected by `since` or `limit` and continues with new ones until the client disconnects.',
      querystring: Type.Object({
        since: Type.Optional(
          Type.String({
            description: 'How long ago, such as 1h or 7d, or a date or time such as 2025-12-31T12:00:00Z'
          })
        ),
        key: Type.Optional(Type.String({ description: 'Only entries for the key of this name' })),
        limit: Type.Optional(
          Type.String({ pattern: '^[1-9]\\d{0,4}$', description: `Maximum number of entries (${USUAL_LIMIT})` })
        ),
        follow: Type.Optional(
          Type.Enum(['1', 'true', '0', 'false'], { description: 'Stream new entries until the client disconnects' })
        )
      }),
      response: {
        200: jsonOrStream('The entries', Loose({ entries: Type.Array(AuditEntrySchema) }), {
          event: 'New entries',
          item: AuditEntrySchema,
          types: streams.types
        })
      },
      errors: ['invalid_request']
    })
    app.get('/api/audit', audit, async (request, reply) => {
      const { since, key, limit, follow } = request.query
      const gone = AbortSignal.any([clientSignal(reply), closing.signal])
      const query = {
        since: since === undefined ? undefined : parseSince(since, Date.now()),
        key,
        limit: Number(limit ?? USUAL_LIMIT)
      }
      const latest = async () => {
        await trail.lines.flush()
        return await readAudit(await trail.lines.files(), query, gone)
      }
      if (follow !== '1' && follow !== 'true') return { entries: await latest() }
      return await streams.reply(request, reply, async stream => {
        stream.status = 'following'
        let news: AuditEntry[] = []
        let wake = () => {}
        gone.addEventListener('abort', () => wake(), { once: true })
        const stop = trail.follow(entry => {
          if (key !== undefined && entry.key !== key) return
          if (news.length < MAX_BEHIND) news.push(entry)
          wake()
        })
        try {
          const first = since === undefined && limit === undefined ? [] : await latest()
          await stream.send(...first)
          // Entries that arrived during the read may already be in the files.
          const sent = new Set(first.map(entry => JSON.stringify(entry)))
          while (!gone.aborted) {
            if (news.length === 0) await new Promise<void>(resolve => (wake = resolve))
            const entries = news
            news = []
            await stream.send(...entries.filter(entry => !sent.has(JSON.stringify(entry))))
          }
        } finally {
          stop()
        }
        return undefined
      })
    })
  }
}
