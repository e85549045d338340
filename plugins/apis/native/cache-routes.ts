import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import { Named, PromptCacheProperties } from '../../../core/contracts/native-records.ts'
import { Loose } from '../../../core/http/request-fields.ts'
import { json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { parseRequestedName } from '../../../core/models/model-name.ts'
import type { NativeDependencies } from './native-dependencies.ts'
import { promptCacheRecord } from './records.ts'

const CacheReportSchema = Loose({ models: Type.Array(Loose({ model: Type.String(), ...PromptCacheProperties })) })
export type CacheReport = Static<typeof CacheReportSchema>
const ClearedSchema = Loose({ deleted: Type.Integer({ minimum: 0 }) })
export type ClearedCache = Static<typeof ClearedSchema>

export function cacheRoutes(app: FastifyInstance, { engines, catalog, naming }: NativeDependencies): void {
  const route = nativeRouter(app, 'Prompt cache')

  route('GET /cache', 'listPromptCache', 'List stored conversation states, by model', {
    role: 'operator',
    response: json('Sizes and use by model', Named('CacheReport', CacheReportSchema)),
    handler: async (): Promise<CacheReport> => {
      const names = new Map(catalog.list().map(model => [model.key, naming.shown(model)]))
      const stored = await engines.storedConversations()
      return {
        // A model that was just deleted has counts but no name.
        models: stored.flatMap(({ model, ...counts }) => {
          const name = names.get(model)
          return name === undefined ? [] : [{ model: name, ...promptCacheRecord(counts) }]
        })
      }
    }
  })
  route('DELETE /cache', 'clearPromptCache', 'Delete stored conversation states', {
    role: 'operator',
    querystring: Loose({ model: Type.Optional(Type.String({ description: 'Only those with this model' })) }),
    response: json('How many were deleted', ClearedSchema),
    errors: ['invalid_model_name', 'model_not_found'],
    handler: async ({ query: { model } }): Promise<ClearedCache> => {
      const key = model === undefined ? {} : { model: catalog.get(parseRequestedName(model)).key }
      return { deleted: await engines.forgetConversations(key) }
    }
  })
}
