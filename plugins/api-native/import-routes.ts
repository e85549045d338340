import { isAbsolute } from 'node:path'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { CorralError } from '../../core/errors.ts'
import { parseModelName } from '../../core/model-name.ts'
import { nameOf } from './answer.ts'
import type { MountedDependencies } from './dependencies.ts'
import { progressReplies } from './progress-replies.ts'
import { localRecord } from './records.ts'
import { ImportRequestSchema } from './schemas.ts'

/** Models that are on this machine's disk already. */
export function importRoutes({ storage, streams }: MountedDependencies): FastifyPluginAsync {
  const withProgress = progressReplies(streams)

  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()

    app.post('/import', { schema: { body: ImportRequestSchema } }, async (request, reply) => {
      const { body } = request
      const name = parseModelName(nameOf(body))
      if (!isAbsolute(body.path)) {
        throw new CorralError('invalid_request', `"path" must be absolute: the server does not know your folder.`, {
          param: 'path'
        })
      }
      return await withProgress(request, reply, body, async (signal, onProgress) => ({
        status: 'success',
        model: localRecord(await storage.import({ path: body.path, name }, { signal, onProgress }))
      }))
    })
  }
}
