import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync, FastifyReply } from 'fastify'
import { Type } from 'typebox'
import { loose } from '../../../core/http/request-fields.ts'
import { DISK_ERRORS, json, nativeRoute } from '../../../core/http/response-schemas.ts'
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
import type { KeyStore } from './key-store.ts'

const TAG = 'Keys'
const MadeKeySchema = Type.Object(
  {
    key: Type.String({ description: 'To be sent as "Authorization: Bearer …"; it is in this reply only' }),
    record: KeyRecordSchema
  },
  { title: 'MadeKey' }
)
const params = Type.Object({ name: Type.String({ description: 'The name of a key' }) })

/** The keys in the file of the data directory, for admins. What they change holds when they answer. */
export function keyRoutes(path: string, store: KeyStore): FastifyPluginAsync {
  const made = async (reply: FastifyReply, key: MadeKey) => {
    await store.refresh()
    return reply.header('cache-control', 'no-store').send(key)
  }
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()

    const list = nativeRoute(TAG, 'listKeys', 'List the API keys', {
      role: 'admin',
      description: 'Those of `security.api_keys` and `CORRAL_API_KEYS` are not listed.',
      response: {
        200: json(
          'The keys, without what could be sent',
          Type.Object({
            required: Type.Boolean({ description: 'Whether every request needs a key' }),
            keys: Type.Array(KeyRecordSchema)
          })
        )
      }
    })
    app.get('/api/keys', list, async () => {
      await store.refresh()
      return { required: store.required, keys: ((await readKeys(path)) ?? []).map(recordOf) }
    })

    const create = nativeRoute(TAG, 'createKey', 'Make an API key', {
      role: 'admin',
      description: 'The first key shuts out all who call without one. The role is `user` where none is given.',
      // Checked when the key is made, as keys of the command line are.
      body: Type.Object({}, { ...loose, documented: NewKeySchema }),
      response: { 200: json('The key', MadeKeySchema) },
      errors: ['key_exists', 'invalid_option', ...DISK_ERRORS]
    })
    app.post('/api/keys', create, async ({ body }, reply) => {
      const wanted = Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null))
      return made(reply, await createKey(path, wanted))
    })

    const revoke = nativeRoute(TAG, 'revokeKey', 'Revoke an API key', {
      role: 'admin',
      description: 'Its answers end. Revoking the last key does not let anybody in without one.',
      params,
      response: { 200: json('Revoked', Type.Object({ status: Type.Literal('revoked'), record: KeyRecordSchema })) },
      errors: ['key_not_found', ...DISK_ERRORS]
    })
    app.delete('/api/keys/:name', revoke, async request => {
      const record = await revokeKey(path, request.params.name)
      await store.refresh()
      return { status: 'revoked', record }
    })

    const rotate = nativeRoute(TAG, 'rotateKey', 'Replace an API key by a new one of its name', {
      role: 'admin',
      description: 'The old one is revoked. Role, models, limits and what belongs to the key stay.',
      params,
      response: { 200: json('The new key', MadeKeySchema) },
      errors: ['key_not_found', ...DISK_ERRORS]
    })
    app.post('/api/keys/:name/rotate', rotate, async (request, reply) =>
      made(reply, await rotateKey(path, request.params.name))
    )
  }
}
