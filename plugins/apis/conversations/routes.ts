import { Readable } from 'node:stream'
import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { ConversationSchema } from '../../../core/contracts/native-records.ts'
import { CorralError } from '../../../core/errors.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { Given, loose } from '../../../core/http/request-fields.ts'
import { DISK_ERRORS, json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { ID_PATTERN } from './conversation-file.ts'
import type { ConversationStore } from './conversation-store.ts'

const WithDocument = Type.Object({ ...ConversationSchema.properties, document: Type.Unknown() })
const params = Type.Object({
  id: Type.String({ pattern: ID_PATTERN, description: 'Chosen by the client: lower-case letters, digits, - and _' })
})

/**
 * Stores the page's conversations for each owner (`Caller.owner`).
 * @param isOn whether the server stores them
 * @param hasOwner whether the key of an owner exists
 */
export function conversationRoutes(
  store: ConversationStore,
  isOn: () => boolean,
  hasOwner: (owner: string) => boolean
): FastifyPluginAsync {
  return async app => {
    const route = nativeRouter(app, 'Conversations')
    app.addHook('preHandler', async (_request, reply) => {
      reply.header('cache-control', 'no-store')
      if (isOn()) return
      throw new CorralError(
        'conversations_off',
        'This server does not store conversations; they stay in browsers. Its admin can change that with web.conversations: server.'
      )
    })

    route('GET /api/conversations', 'listConversations', 'List stored conversations of the page', {
      description:
        'Those of the page include its projects. Pinned conversations first, then the newest. Each key has its own; callers without a key share theirs. Searches of one key run one after another: further ones get 429.',
      querystring: Type.Object({
        q: Type.Optional(Type.String({ maxLength: 200, description: 'Words that the title or text must contain' })),
        limit: Type.Optional(
          Type.String({ pattern: '^([1-9]\\d?|[1-4]\\d\\d|500)$', title: 'a number from 1 to 500', default: '100' })
        ),
        offset: Type.Optional(
          Type.String({
            pattern: '^\\d{1,9}$',
            title: 'a number',
            default: '0',
            description: 'Number of conversations to skip'
          })
        ),
        shared: Type.Optional(
          Type.Enum(['true', 'false'], { default: 'false', description: 'Whether to list the copies that you share' })
        )
      }),
      response: {
        200: json(
          'A page of the list',
          Type.Object({
            conversations: Type.Array(ConversationSchema),
            total: Type.Integer({ minimum: 0, description: 'Total number of conversations' })
          })
        )
      },
      errors: ['conversations_off', 'invalid_request'],
      handler: async (request, reply) => {
        const { q = '', shared } = request.query
        const [limit, offset] = [Number(request.query.limit ?? 100), Number(request.query.offset ?? 0)]
        const all = await store.list(request.caller.owner, q, clientSignal(reply), shared === 'true')
        return { conversations: all.slice(offset, offset + limit), total: all.length }
      }
    })

    route('GET /api/conversations/:id', 'getConversation', 'Read a conversation', {
      params,
      response: { 200: json('It', WithDocument) },
      errors: ['conversations_off', 'conversation_not_found', 'invalid_request'],
      handler: async ({ params, caller }, reply) => {
        return send(reply, await store.get(caller.owner, params.id))
      }
    })

    route('GET /api/shared/:id', 'getSharedConversation', 'Read a conversation that somebody shares', {
      params: Type.Object({ id: Type.String({ pattern: ID_PATTERN, description: 'Of the shared copy' }) }),
      response: { 200: json('It', WithDocument) },
      errors: ['conversations_off', 'conversation_not_found', 'invalid_request'],
      handler: async ({ params }, reply) => send(reply, await store.getShared(params.id, hasOwner))
    })

    route('POST /api/conversations/:id/share', 'shareConversation', 'Share a copy of a conversation', {
      description:
        'Every user of this server who knows the `id` of the copy can read it with `GET /api/shared/:id`. Later changes of the conversation are not in it. It counts towards your limits, and ends if you delete it like a conversation, if the conversation itself is deleted, and with your key.',
      params,
      bodySize: 'large',
      body: Type.Object({ title: Type.String({ maxLength: 500 }), document: Type.Unknown() }, loose),
      response: { 200: json('The copy', ConversationSchema) },
      errors: ['conversations_off', 'conversation_not_found', 'over_limit', ...DISK_ERRORS],
      handler: async ({ params, body: { title, document }, caller }) => {
        const copy = { title, document, pinned: false, updated_at: new Date().toISOString(), text: '' }
        return await store.share(caller.owner, params.id, copy)
      }
    })

    route('PUT /api/conversations/:id', 'putConversation', 'Keep a conversation', {
      description:
        'Send the version it is based on as `version` or as `If-Match`. Without one the conversation must be new. If another tab or machine was faster, the reply is 409 with the current `version`, and with `deleted_at` if the conversation was deleted: sending it with that version restores it.',
      params,
      audited: false,
      bodySize: 'large',
      body: Type.Object(
        {
          title: Type.String({ maxLength: 500 }),
          pinned: Given(Type.Boolean({ default: false })),
          updated_at: Given(Type.String({ format: 'date-time', description: 'Default is now' })),
          text: Given(Type.String({ description: 'Searched in addition to the title' })),
          version: Given(Type.Integer({ minimum: 0, description: '0 for a new conversation' })),
          document: Type.Unknown({ description: 'Opaque to the server' })
        },
        loose
      ),
      response: { 200: json('The stored conversation', ConversationSchema) },
      errors: ['conversations_off', 'conversation_not_found', 'conversation_changed', 'over_limit', ...DISK_ERRORS],
      handler: async request => {
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
      }
    })

    route('DELETE /api/conversations/:id', 'deleteConversation', 'Delete a conversation or a shared copy', {
      params,
      response: { 200: json('Deleted', Type.Object({ status: Type.Literal('deleted') })) },
      errors: ['conversations_off', 'conversation_not_found', 'invalid_request'],
      handler: async ({ params, caller }) => {
        await store.delete(caller.owner, params.id)
        return { status: 'deleted' as const }
      }
    })

    route('DELETE /api/conversations', 'deleteConversations', 'Delete all of your conversations', {
      response: {
        200: json('Deleted', Type.Object({ status: Type.Literal('deleted'), count: Type.Integer({ minimum: 0 }) }))
      },
      errors: ['conversations_off'],
      handler: async ({ caller }) => {
        return { status: 'deleted' as const, count: await store.deleteAll(caller.owner) }
      }
    })
  }
}

/** Sends a conversation at the speed of the client, since it may have many megabytes. */
function send(reply: FastifyReply, { about, document, length }: Awaited<ReturnType<ConversationStore['get']>>) {
  const start = `${JSON.stringify(about).slice(0, -1)},"document":`
  reply.type('application/json; charset=utf-8')
  reply.header('content-length', String(Buffer.byteLength(start) + length + 1))
  async function* pieces() {
    yield start
    yield* document
    yield '}'
  }
  const body = Readable.from(pieces(), { objectMode: false })
  return reply.send(body.once('close', () => document.destroy()))
}

/** Returns the version in `If-Match: "3"`, or undefined without the header. @throws CorralError `invalid_request` */
function matchOf({ headers }: FastifyRequest): number | undefined {
  const header = headers['if-match']
  if (header === undefined) return undefined
  const digits = /^\s*"?(\d{1,15})"?\s*$/.exec(header)?.[1]
  if (digits !== undefined) return Number(digits)
  throw new CorralError('invalid_request', 'If-Match must be a version such as "3".', { param: 'If-Match' })
}
