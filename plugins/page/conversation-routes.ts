import { Readable } from 'node:stream'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { Time } from '../../core/contracts/native-records.ts'
import { CorralError } from '../../core/errors.ts'
import { clientSignal } from '../../core/http/client-gone.ts'
import { Given, loose } from '../../core/http/request-fields.ts'
import { DISK_ERRORS, json, nativeRoute } from '../../core/http/response-schemas.ts'
import { ID_PATTERN } from './conversation-file.ts'
import type { ConversationStore } from './conversation-store.ts'

const TAG = 'Conversations'

const about = {
  id: Type.String(),
  title: Type.String(),
  pinned: Type.Boolean(),
  updated_at: Time(),
  version: Type.Integer({ minimum: 1, description: 'One more at each change' }),
  size: Type.Integer({ minimum: 0, description: 'Bytes on disk' })
}
const ConversationSchema = Type.Object(about, { title: 'KeptConversation' })
const params = Type.Object({
  id: Type.String({ pattern: ID_PATTERN, description: 'Chosen by the client: lower-case letters, digits, - and _' })
})

/**
 * What the page keeps on the server where that is set: for each owner (`Caller.owner`) its own.
 * @param isOn whether they are kept here
 */
export function conversationRoutes(store: ConversationStore, isOn: () => boolean): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    app.addHook('preHandler', async (_request, reply) => {
      reply.header('cache-control', 'no-store')
      if (isOn()) return
      throw new CorralError(
        'conversations_off',
        'This server keeps no conversations: they stay in browsers. Its admin may have it keep them: web.conversations: server.'
      )
    })

    const list = nativeRoute(TAG, 'listConversations', 'List the conversations that the page keeps on the server', {
      description:
        'Pinned ones first, then the newest. Each key has its own; callers without a key share theirs. Searches of one key run one after another: further ones get 429.',
      querystring: Type.Object({
        q: Type.Optional(Type.String({ maxLength: 200, description: 'Words that the title or text must have' })),
        limit: Type.Optional(
          Type.String({ pattern: '^([1-9]\\d?|[1-4]\\d\\d|500)$', title: 'a number from 1 to 500', default: '100' })
        ),
        offset: Type.Optional(
          Type.String({
            pattern: '^\\d{1,9}$',
            title: 'a number',
            default: '0',
            description: 'How many are left out before'
          })
        )
      }),
      response: {
        200: json(
          'Some of them',
          Type.Object({
            conversations: Type.Array(ConversationSchema),
            total: Type.Integer({ minimum: 0, description: 'How many there are in all' })
          })
        )
      },
      errors: ['conversations_off', 'invalid_request']
    })
    app.get('/api/conversations', list, async (request, reply) => {
      const { q = '' } = request.query
      const [limit, offset] = [Number(request.query.limit ?? 100), Number(request.query.offset ?? 0)]
      const all = await store.list(request.caller.owner, q, clientSignal(reply))
      return { conversations: all.slice(offset, offset + limit), total: all.length }
    })

    const get = nativeRoute(TAG, 'getConversation', 'Read a conversation', {
      params,
      response: { 200: json('It', Type.Object({ ...about, document: Type.Unknown() })) },
      errors: ['conversations_off', 'conversation_not_found', 'invalid_request']
    })
    app.get('/api/conversations/:id', get, async ({ params, caller }, reply) => {
      const { about, document, length } = await store.get(caller.owner, params.id)
      const start = `${JSON.stringify(about).slice(0, -1)},"document":`
      reply.type('application/json; charset=utf-8')
      reply.header('content-length', String(Buffer.byteLength(start) + length + 1))
      // From the file as fast as the client reads it: a conversation has many megabytes.
      async function* pieces() {
        yield start
        yield* document
        yield '}'
      }
      const body = Readable.from(pieces(), { objectMode: false })
      return reply.send(body.once('close', () => document.destroy()))
    })

    const put = nativeRoute(TAG, 'putConversation', 'Keep a conversation', {
      description:
        'Send the version that it was made of as `version` or as `If-Match`. Without one it must be new. If another tab or machine was quicker, the answer is 409 with the present `version`, and with `deleted_at` if it was deleted there: sent with that version, it comes back.',
      params,
      audited: false,
      bodySize: 'large',
      body: Type.Object(
        {
          title: Type.String({ maxLength: 500 }),
          pinned: Given(Type.Boolean({ default: false })),
          updated_at: Given(Type.String({ format: 'date-time', description: 'Now, where absent' })),
          text: Given(Type.String({ description: 'What searches look at, beside the title' })),
          version: Given(Type.Integer({ minimum: 0, description: '0 for one that is new' })),
          document: Type.Unknown({ description: 'Of no meaning to the server' })
        },
        loose
      ),
      response: { 200: json('What is known of it now', ConversationSchema) },
      errors: ['conversations_off', 'conversation_not_found', 'conversation_changed', 'over_limit', ...DISK_ERRORS]
    })
    app.put('/api/conversations/:id', put, async request => {
      const { title, pinned, updated_at, text, version, document } = request.body
      const based = matchOf(request) ?? version ?? 0
      const at = updated_at == null ? new Date() : new Date(updated_at)
      return await store.put(request.caller.owner, request.params.id, based, {
        title,
        pinned: pinned ?? false,
        updated_at: at.toISOString(),
        text: text ?? '',
        document
      })
    })

    const remove = nativeRoute(TAG, 'deleteConversation', 'Delete a conversation', {
      params,
      response: { 200: json('Deleted', Type.Object({ status: Type.Literal('deleted') })) },
      errors: ['conversations_off', 'conversation_not_found', 'invalid_request']
    })
    app.delete('/api/conversations/:id', remove, async ({ params, caller }) => {
      await store.delete(caller.owner, params.id)
      return { status: 'deleted' as const }
    })

    const removeAll = nativeRoute(TAG, 'deleteConversations', 'Delete all of your conversations', {
      response: {
        200: json('Deleted', Type.Object({ status: Type.Literal('deleted'), count: Type.Integer({ minimum: 0 }) }))
      },
      errors: ['conversations_off']
    })
    app.delete('/api/conversations', removeAll, async ({ caller }) => {
      return { status: 'deleted' as const, count: await store.deleteAll(caller.owner) }
    })
  }
}

/** The version in `If-Match: "3"`; undefined where there is no such header. @throws CorralError `invalid_request` */
function matchOf({ headers }: FastifyRequest): number | undefined {
  const header = headers['if-match']
  if (header === undefined) return undefined
  const digits = /^\s*"?(\d{1,15})"?\s*$/.exec(header)?.[1]
  if (digits !== undefined) return Number(digits)
  throw new CorralError('invalid_request', 'If-Match must be a version such as "3".', { param: 'If-Match' })
}
