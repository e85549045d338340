import { isAbsolute } from 'node:path'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import type { Static } from 'typebox'
import type { Waiting } from '../../core/contracts/progress.ts'
import { CorralError } from '../../core/errors.ts'
import { refuseWhilePulled } from '../../core/models/refuse-while-pulled.ts'
import type { MountedDependencies } from './native-dependencies.ts'
import { progressReplies } from './native-streams.ts'
import { diskOperations } from './operations/on-disk.ts'
import { localRecord, nameOf } from './records.ts'
import type { ImportRequestSchema } from './schemas.ts'

type Take = (waiting: Waiting) => Promise<Record<string, unknown>>

/** Models that are on this machine's disk already. */
export function importRoutes({
  storage,
  adoption,
  downloads,
  streams,
  naming
}: MountedDependencies): FastifyPluginAsync {
  const withProgress = progressReplies(streams)

  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    const operations = diskOperations(streams.types)

    app.get('/import/found', { schema: operations.found }, async ({ query }) => adoption.find(query.from ?? ''))

    app.post('/import', { schema: operations.import }, async (request, reply) => {
      const { body } = request
      const take = await importOf(body)
      const shown = { ...body, model: nameOf(body) || body.found }
      return await withProgress(request, reply, shown, async (signal, onProgress) => ({
        status: 'success',
        ...(await take({ signal, onProgress }))
      }))
    })
  }

  /** What a request asks for, checked before anything is sent. */
  async function importOf(body: Static<typeof ImportRequestSchema>): Promise<Take> {
    const { path, from, found } = body
    if (from && found && !path) {
      const own = async () => (await adoption.find(from)).models.find(model => model.found === found)?.name
      const text = nameOf(body) || (await own())
      const name = text === undefined ? undefined : naming.parse(text)
      if (name) refuseWhilePulled(downloads, name)
      return async waiting => {
        const { variant, linked } = await adoption.adopt(from, found, name, waiting)
        return { model: localRecord(variant, naming), linked }
      }
    }
    if (!path || from || found) {
      throw new CorralError(
        'invalid_request',
        'Say what to import: either "path" of files on the server, or "from" and "found" as GET /api/import/found names them.',
        { param: 'path' }
      )
    }
    const name = naming.parse(nameOf(body))
    if (!isAbsolute(path)) {
      throw new CorralError('invalid_request', `"path" must be absolute: the server does not know your folder.`, {
        param: 'path'
      })
    }
    refuseWhilePulled(downloads, name)
    return async waiting => ({ model: localRecord(await storage.import({ path, name }, waiting), naming) })
  }
}
