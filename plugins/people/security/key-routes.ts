import type { FastifyPluginAsync, FastifyReply } from 'fastify'
import { type Static, Type } from 'typebox'
import { Time } from '../../../core/contracts/native-records.ts'
import { moment } from '../../../core/http/rate-limit-headers.ts'
import { Flag, loose, Text } from '../../../core/http/request-fields.ts'
import { DISK_ERRORS, json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { howToGetRole, ROLES } from '../../../core/http/roles.ts'
import {
  createKey,
  KeyRecordSchema,
  type MadeKey,
  NewKeySchema,
  readKeys,
  recordOf,
  revokeKey,
  rotateKey
} from './key-file.ts'
import { type KeyStore, ownerOfKey } from './key-store.ts'
import type { KeyUses } from './key-uses.ts'

const TAG = 'Keys'
const MadeKeySchema = Type.Object(
  {
    key: Text('To be sent as "Authorization: Bearer …"; returned only once'),
    record: KeyRecordSchema
  },
  { title: 'MadeKey' }
)
const ListedKeySchema = Type.Object(
  {
    ...KeyRecordSchema.properties,
    last_used_at: Type.Optional(
      Time('When a request with the key, or with a session of it, came last; absent for never')
    ),
    last_address: Type.Optional(Text('The address it came from'))
  },
  { title: 'ListedKey' }
)
export type ListedKey = Static<typeof ListedKeySchema>
const params = Type.Object({ name: Text('The name of a key') })

const { name, models, limits } = KeyRecordSchema.properties
const DateTime = Type.String({ format: 'date-time' })

const BudgetSchema = Type.Object(
  {
    name: Text('The limit, such as tokens_per_day'),
    limit: Type.Integer(),
    remaining: Type.Integer({ minimum: 0 }),
    resets_at: Time('When the full budget is available again')
  },
  { title: 'Budget' }
)

const WhoAmISchema = Type.Object(
  {
    role: Type.Enum([...ROLES]),
    how: Type.Enum(['key', 'session', 'keyless', 'private_socket'], { description: 'Why the request was accepted' }),
    keyless: Flag('Whether it was accepted without a key or session'),
    keys_required: Flag('Whether this server requires a key'),
    key: Type.Optional(Type.Object({ name, expires_at: Type.Optional(DateTime), models, limits })),
    budgets: Type.Array(BudgetSchema, { description: 'Remaining budgets, over all models' }),
    session: Type.Optional(Type.Object({ id: Type.String(), expires_at: DateTime })),
    more: Type.Optional(Text('How to become admin, for callers who are not'))
  },
  { title: 'WhoAmI' }
)

/** Manages the key file, and shows callers who they are. Changes are in effect before the reply is sent. */
export function keyRoutes(path: string, store: KeyStore, uses: KeyUses): FastifyPluginAsync {
  const made = async (reply: FastifyReply, key: MadeKey) => {
    await store.refresh()
    return reply.header('cache-control', 'no-store').send(key)
  }
  return async instance => {
    const route = nativeRouter(instance, TAG)

    route('GET /api/keys', 'listKeys', 'List the API keys', {
      role: 'admin',
      description: 'Keys from `security.api_keys` and `CORRAL_API_KEYS` are not listed.',
      response: {
        200: json(
          'The keys, without their secrets',
          Type.Object({
            required: Flag('Whether every request needs a key'),
            keys: Type.Array(ListedKeySchema)
          })
        )
      },
      handler: async () => {
        await store.refresh()
        const entries = (await readKeys(path)) ?? []
        const keys = entries.map(entry => ({ ...recordOf(entry), ...uses.get(ownerOfKey(entry.id)) }))
        return { required: store.required, keys }
      }
    })

    route('POST /api/keys', 'createKey', 'Create an API key', {
      role: 'admin',
      description: 'The first key locks out all callers without one. The default role is `user`.',
      // Validated by createKey, as for the command line.
      body: Type.Object({}, { ...loose, documented: NewKeySchema }),
      response: { 200: json('The key', MadeKeySchema) },
      errors: ['key_exists', 'invalid_option', ...DISK_ERRORS],
      handler: async ({ body }, reply) => {
        const wanted = Object.fromEntries(Object.entries(body as object).filter(([, value]) => value !== null))
        return made(reply, await createKey(path, wanted))
      }
    })

    route('DELETE /api/keys/:name', 'revokeKey', 'Revoke an API key', {
      role: 'admin',
      description: 'Running answers to the key are ended. Revoking the last key does not allow requests without one.',
      params,
      response: { 200: json('Revoked', Type.Object({ status: Type.Literal('revoked'), record: KeyRecordSchema })) },
      errors: ['key_not_found', ...DISK_ERRORS],
      handler: async request => {
        const record = await revokeKey(path, request.params.name)
        await store.refresh()
        return { status: 'revoked', record }
      }
    })

    route('POST /api/keys/:name/rotate', 'rotateKey', 'Replace an API key by a new one with the same name', {
      role: 'admin',
      description: 'The old key is revoked. Role, models, limits and everything that belongs to the key are kept.',
      params,
      response: { 200: json('The new key', MadeKeySchema) },
      errors: ['key_not_found', ...DISK_ERRORS],
      handler: async (request, reply) => made(reply, await rotateKey(path, request.params.name))
    })

    route('GET /api/whoami', 'whoAmI', 'Show who the caller is and what it may use', {
      description: 'Without a required key: `unauthorized`, as everywhere.',
      response: { 200: json('The caller', WhoAmISchema) },
      handler: async ({ caller }, reply) => {
        const now = Date.now()
        const budgets = (await instance.usage?.budgetsOf(caller)) ?? []
        const { role, isLocal, session, name, models, expires } = caller
        const how = isLocal ? 'private_socket' : session ? 'session' : name === undefined ? 'keyless' : 'key'
        const limits = { ...caller.budgets, ...caller.bounds }
        reply.header('cache-control', 'no-store')
        return {
          role,
          how,
          keyless: how === 'keyless' || how === 'private_socket',
          keys_required: store.required,
          ...(name !== undefined && {
            key: {
              name,
              ...(expires !== undefined && { expires_at: expires }),
              ...(models && { models: [...models] }),
              ...(Object.keys(limits).length > 0 && { limits })
            }
          }),
          ...(session && { session: { id: session.id, expires_at: session.expires } }),
          budgets: budgets.map(({ name, limit, used, reset }) => {
            return { name, limit, remaining: Math.max(0, limit - used), resets_at: moment(now + reset) }
          }),
          ...(role !== 'admin' && { more: howToGetRole(caller, 'admin') })
        } satisfies Static<typeof WhoAmISchema>
      }
    })
  }
}
