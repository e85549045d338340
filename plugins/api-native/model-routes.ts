import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { CorralError } from '../../core/errors.ts'
import { bareName, type ModelName } from '../../core/model-name.ts'
import { parseKeepAlive, parseOptions } from '../../core/options.ts'
import { nameOf } from './answer.ts'
import { conversionRecord } from './convert-routes.ts'
import type { MountedDependencies } from './dependencies.ts'
import { progressReplies } from './progress-replies.ts'
import { loadingRecord, localRecord, runningRecord, showRecord } from './records.ts'
import { LoadRequestSchema, NamedRequestSchema } from './schemas.ts'

/** Models on disk and in memory. */
export function modelRoutes(deps: MountedDependencies): FastifyPluginAsync {
  const { storage, scheduler, conversion, downloads, naming } = deps
  const withProgress = progressReplies(deps.streams)

  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()

    app.get('/tags', async () => ({ models: storage.list().map(variant => localRecord(variant, naming)) }))

    app.get('/ps', async () => ({
      models: scheduler.running().map(model => runningRecord(model, naming)),
      loading: scheduler.loading().map(model => loadingRecord(model, naming))
    }))

    app.post('/show', { schema: { body: NamedRequestSchema } }, async ({ body }) => {
      const variant = storage.get(naming.parse(nameOf(body)))
      const conversions = (await conversion.list(variant)).map(conversionRecord)
      return { ...showRecord(variant, naming), ...(variant.format === 'gguf' ? {} : { conversions }) }
    })

    app.delete('/delete', { schema: { body: NamedRequestSchema } }, async ({ body }) => {
      const name = naming.parse(nameOf(body))
      const cancelled = await downloads.cancelModel(name, deletedWhilePulled(name))
      // There may be nothing but the pull.
      if (cancelled === 0 || storage.find(name)) await storage.remove(name)
      return { status: 'deleted' }
    })

    app.post('/default', { schema: { body: NamedRequestSchema } }, async ({ body }) => ({
      status: 'success',
      model: localRecord(await storage.setDefault(naming.parse(nameOf(body))), naming)
    }))

    app.post('/stop', { schema: { body: NamedRequestSchema } }, async ({ body }) => {
      await scheduler.stop(naming.parse(nameOf(body)))
      return { status: 'stopped' }
    })

    app.post('/load', { schema: { body: LoadRequestSchema } }, async (request, reply) => {
      const { body } = request
      const model = naming.parse(nameOf(body))
      const options = parseOptions(body.options).load
      const keepAlive = parseKeepAlive(body.keep_alive)
      storage.get(model)
      return await withProgress(request, reply, body, async (signal, onProgress) => {
        const lease = await scheduler.lease({ model, options, keepAlive, signal, onProgress, loadOnly: true })
        lease.release()
        return { status: 'ready' }
      })
    })
  }
}

function deletedWhilePulled(name: ModelName): CorralError {
  return new CorralError(
    'pull_cancelled',
    `"${bareName(name)}" was deleted while it was pulled. Pull it again to have it.`,
    {
      param: 'model'
    }
  )
}
