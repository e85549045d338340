import type { FastifyPluginAsync, FastifyReply } from 'fastify'
import { Type } from 'typebox'
import { Flag, loose, Text } from '../../../core/http/request-fields.ts'
import { DISK_ERRORS, json, nativeRouter } from '../../../core/http/response-schemas.ts'
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
    key: Text('To be sent as "Authorization: Bearer …"; returned only once'),
    record: KeyRecordSchema
  },
  { title: 'MadeKey' }
)
const params = Type.Object({ name: Text('The name of a key') })

/** Manages the key file, for admins. Changes are in effect before the reply is sent. */
export function keyRoutes(path: string, store: KeyStore): FastifyPluginAsync {
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
            keys: Type.Array(KeyRecordSchema)
          })
        )
      },
      handler: async () => {
        await store.refresh()
        return { required: store.required, keys: ((await readKeys(path)) ?? []).map(recordOf) }
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
  }
}
