import type { FastifyPluginAsync } from 'fastify'
import { type Static, Type } from 'typebox'
import { Time } from '../../../core/contracts/native-records.ts'
import { moment } from '../../../core/http/rate-limit-headers.ts'
import { Flag, Text } from '../../../core/http/request-fields.ts'
import { json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { howToGetRole, ROLES } from '../../../core/http/roles.ts'
import { KeyRecordSchema } from './key-file.ts'
import type { KeyStore } from './key-store.ts'

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

export function whoAmIRoute(keys: Pick<KeyStore, 'required'>): FastifyPluginAsync {
  return async instance => {
    const route = nativeRouter(instance, 'Keys')
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
          keys_required: keys.required,
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
