import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import type { EventStreams } from '../../../core/contracts/native-api.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { Loose, parseSince, Text } from '../../../core/http/request-fields.ts'
import { jsonOrStream, nativeRouter } from '../../../core/http/response-schemas.ts'
import { type AuditEntry, AuditEntrySchema } from './audit-entry.ts'
import { readAudit } from './audit-reader.ts'
import type { AuditTrail } from './audit-trail.ts'

const USUAL_LIMIT = 100
/** A follower that falls further behind misses the entries beyond this many. */
const MAX_BEHIND = 10_000

export function auditRoutes(trail: AuditTrail, streams: EventStreams): FastifyPluginAsync {
  return async instance => {
    const route = nativeRouter(instance, 'Server')
    const closing = new AbortController()
    instance.addHook('preClose', async () => closing.abort())

    route('GET /api/audit', 'getAudit', 'Show the audit log', {
      role: 'admin',
      description:
        'The latest entries, oldest first: who called what, how it ended and how much it used, but no prompts or answers. With `follow` the reply is a stream that starts with the entries selected by `since` or `limit` and continues with new ones until the client disconnects.',
      querystring: Type.Object({
        since: Type.Optional(Text('How long ago, such as 1h or 7d, or a date or time such as 2025-12-31T12:00:00Z')),
        key: Type.Optional(Text('Only entries for the key of this name')),
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
      errors: ['invalid_request'],
      handler: async (request, reply) => {
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
      }
    })
  }
}
