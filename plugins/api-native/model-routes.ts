import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { hasFiles, requireFiles } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import { bareName, type ModelName } from '../../core/models/model-name.ts'
import { parseKeepAlive, parseOptions } from '../../core/models/options.ts'
import { conversionRecord } from './convert-routes.ts'
import type { MountedDependencies } from './native-dependencies.ts'
import { progressReplies } from './native-streams.ts'
import { modelOperations } from './operations/models.ts'
import { loadingRecord, localRecord, nameOf, runningRecord, showRecord } from './records.ts'

/** Models on disk and in memory. */
export function modelRoutes(deps: MountedDependencies): FastifyPluginAsync {
  const { storage, catalog, scheduler, conversion, downloads, naming } = deps
  const withProgress = progressReplies(deps.streams)

  /** The name of a model that has files. */
  const stored = (name: ModelName) => requireFiles(catalog.get(name)).model

  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    const operations = modelOperations(deps.streams.types)

    app.get('/tags', { schema: operations.tags }, async () => ({
      models: catalog.list().map(variant => localRecord(variant, naming))
    }))

    app.get('/ps', { schema: operations.ps }, async () => ({
      models: scheduler.running().map(model => runningRecord(model, naming)),
      loading: scheduler.loading().map(model => loadingRecord(model, naming))
    }))

    app.post('/show', { schema: operations.show }, async ({ body }) => {
      const variant = catalog.get(naming.parse(nameOf(body)))
      const record = showRecord(variant, naming, deps.modelfile(variant))
      if (!hasFiles(variant) || variant.format === 'gguf') return record
      return { ...record, conversions: (await conversion.list(variant)).map(conversionRecord) }
    })

    app.delete('/delete', { schema: operations.remove }, async ({ body }) => {
      const name = (naming.toDelete ?? naming.parse)(nameOf(body))
      const present = catalog.find(name)
      if (present) requireFiles(present)
      const cancelled = await downloads.cancelModel(name, deletedWhilePulled(name))
      // There may be nothing but the pull.
      if (cancelled === 0 || storage.find(name)) await storage.remove(name)
      return { status: 'deleted' }
    })

    app.post('/default', { schema: operations.setDefault }, async ({ body }) => ({
      status: 'success',
      model: localRecord(await storage.setDefault(stored(naming.parse(nameOf(body)))), naming)
    }))

    app.post('/stop', { schema: operations.stop }, async ({ body }) => {
      await scheduler.stop(naming.parse(nameOf(body)))
      return { status: 'stopped' }
    })

    app.post('/load', { schema: operations.load }, async (request, reply) => {
      const { body } = request
      const model = naming.parse(nameOf(body))
      const options = parseOptions(body.options).load
      const keepAlive = parseKeepAlive(body.keep_alive)
      catalog.get(model)
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
