import { constants } from 'node:fs'
import { open } from 'node:fs/promises'
import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import type { EventStreams } from '../../../core/contracts/native-api.ts'
import { isSystemError } from '../../../core/errors.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { Loose, parseSince, Text } from '../../../core/http/request-fields.ts'
import { jsonOrStream, nativeRouter } from '../../../core/http/response-schemas.ts'
import { parseAnyJson } from '../../../core/system/json-object.ts'
import { type AuditEntry, AuditEntrySchema } from './audit-entry.ts'
import type { AuditTrail } from './audit-trail.ts'

const CHUNK = 256 * 1024
const LINE_END = 10
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
        return await streams.reply(reply, async stream => {
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

/**
 * Returns the latest matching entries, oldest first, without reading further back than necessary.
 * @param files newest first
 * @param query `since`: milliseconds since the epoch, when the requests ended; `key`: the name of their key
 * @throws the signal's reason, or a file system error
 */
export async function readAudit(
  files: readonly string[],
  { since = 0, key, limit }: { since?: number | undefined; key?: string | undefined; limit: number },
  signal: AbortSignal
): Promise<AuditEntry[]> {
  const found: AuditEntry[] = []
  const wanted = key === undefined ? undefined : `"key":${JSON.stringify(key)}`
  const seen = new Set<number>()
  for (const file of files) {
    for await (const line of linesFromEnd(file, seen)) {
      signal.throwIfAborted()
      const entry = parseAnyJson(line) as AuditEntry | undefined
      // A crash may have truncated a line.
      if (typeof entry?.time !== 'string') continue
      if (Date.parse(entry.time) < since) return found.reverse()
      // Search the text first: most lines belong to other keys.
      if (wanted !== undefined && !(line.includes(wanted) && entry.key === key)) continue
      found.push(entry)
      if (found.length >= limit) return found.reverse()
    }
  }
  return found.reverse()
}

/** Yields the lines of a file, last line first. @param seen inodes of read files: one may be renamed meanwhile */
async function* linesFromEnd(path: string, seen: Set<number>): AsyncGenerator<string> {
  const handle = await open(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0)).catch(error => {
    // The file was deleted because of its age, or nothing has been written yet.
    if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return undefined
    throw error
  })
  if (!handle) return
  try {
    const { ino, size } = await handle.stat()
    if (seen.has(ino)) return
    seen.add(ino)
    let rest = Buffer.alloc(0)
    for (let end = size; end > 0; ) {
      const start = Math.max(0, end - CHUNK)
      const { buffer, bytesRead } = await handle.read(Buffer.alloc(end - start), 0, end - start, start)
      const piece = Buffer.concat([buffer.subarray(0, bytesRead), rest])
      end = start
      // The first line may begin in the preceding chunk.
      const at = start === 0 ? 0 : piece.indexOf(LINE_END) + 1
      rest = at === 0 && start > 0 ? piece : piece.subarray(0, at)
      if (rest === piece) continue
      for (const line of piece.subarray(at).toString('utf8').split('\n').reverse()) if (line !== '') yield line
    }
  } finally {
    await handle.close()
  }
}
