import type { FastifyPluginAsync } from 'fastify'
import { parseModelName } from '../../core/model-name.ts'
import type { Storage, StoredVariant } from '../../core/services.ts'

function modelRecord(variant: StoredVariant) {
  return {
    id: variant.publicName,
    object: 'model',
    // Seconds since the epoch.
    created: Math.floor(Date.parse(variant.modifiedAt) / 1000),
    owned_by: variant.model.owner
  }
}

/** The models there are, and one by its name. */
export function modelRoutes(storage: Storage): FastifyPluginAsync {
  return async app => {
    app.get('/models', async () => ({ object: 'list', data: storage.list().map(modelRecord) }))
    // Names hold a slash, which clients send as it is or as %2F.
    app.get<{ Params: { '*': string } }>('/models/*', async request => {
      return modelRecord(storage.get(parseModelName(request.params['*'])))
    })
  }
}
