import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import type { EventStreams } from '../../../core/contracts/native-api.ts'
import { clientSignal } from '../../../core/http/client-gone.ts'
import { Loose } from '../../../core/http/request-fields.ts'
import { jsonOrStream, nativeRoute } from '../../../core/http/response-schemas.ts'
import { sinceOf } from '../../../core/http/since.ts'
import { type AuditEntry, AuditEntrySchema } from './audit-entry.ts'
import { readAudit } from './audit-reader.ts'
import type { AuditTrail } from './audit-trail.ts'

const USUAL_LIMIT = 100
/** Entries that a follower may be behind; it does not get what comes while it is further. */
const MAX_BEHIND = 10_000

/** What was done, for admins. */
export function auditRoutes(trail: AuditTrail, streams: EventStreams): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    const closing = new AbortController()
    app.addHook('preClose', async () => closing.abort())

    const audit = nativeRoute('Server', 'getAudit', 'Show who did what', {
      role: 'admin',
      description:
        'The latest entries, oldest first: who asked what, how it ended and what it took, never what was said. With `follow` it is a stream of new ones, after those that `since` or `limit` ask for, until the client leaves.',
      querystring: Type.Object({
        since: Type.Optional(
          Type.String({
            description: 'How long ago, such as 1h or 7d, or a date or moment such as 2025-12-31T12:00:00Z'
          })
        ),
        key: Type.Optional(Type.String({ description: 'Only what the key of this name did' })),
        limit: Type.Optional(Type.String({ pattern: '^[1-9]\\d{0,4}$', description: `Most entries (${USUAL_LIMIT})` })),
        follow: Type.Optional(
          Type.Enum(['1', 'true', '0', 'false'], { description: 'Stream new entries until the client leaves' })
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
        ...(since !== undefined && { since: sinceOf(since, Date.now()) }),
        ...(key !== undefined && { key }),
        limit: Number(limit ?? USUAL_LIMIT)
      }
      const latest = async () => {
        await trail.flush()
        return await readAudit(await trail.files(), query, gone)
      }
      if (follow !== '1' && follow !== 'true') return { entries: await latest() }
      return await streams.reply(request, reply, async stream => {
        stream.status = 'following'
        const news = new Backlog()
        const stop = trail.follow(entry => {
          if (key === undefined || entry.key === key) news.push(entry)
        })
        try {
          const first = since === undefined && limit === undefined ? [] : await latest()
          await stream.send(...first)
          // What ended meanwhile may be in the files already.
          const sent = new Set(first.map(entry => JSON.stringify(entry)))
          while (!gone.aborted) {
            const entries = await news.next(gone)
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

/** What a follower has still to get. */
class Backlog {
  #entries: AuditEntry[] = []
  #wake = () => {}

  push(entry: AuditEntry): void {
    if (this.#entries.length < MAX_BEHIND) this.#entries.push(entry)
    this.#wake()
  }

  /** All that there are, once there are some; none when the signal is aborted. */
  async next(gone: AbortSignal): Promise<AuditEntry[]> {
    if (this.#entries.length === 0) {
      await new Promise<void>(resolve => {
        this.#wake = resolve
        gone.addEventListener('abort', () => resolve(), { once: true })
        if (gone.aborted) resolve()
      })
    }
    return this.#entries.splice(0)
  }
}
