import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { CorralError } from '../../core/errors.ts'
import { parseModelName } from '../../core/model-name.ts'
import { parseKeepAlive, parseOptions } from '../../core/options.ts'
import { nameOf } from './answer.ts'
import { conversionRecord } from './convert-routes.ts'
import type { MountedDependencies } from './dependencies.ts'
import { progressReplies } from './progress-replies.ts'
import { loadingRecord, localRecord, runningRecord, showRecord } from './records.ts'
import { LoadRequestSchema, NamedRequestSchema, PullRequestSchema } from './schemas.ts'

/** A hub before the name and a revision behind it, as pulls may name them. */
const PULL_SOURCE = /^(?:hf:|csghub:|modelscope:|hf\.co\/)/
const PULL_REVISION = /@[^@]*$/

/** Models on disk and in memory. */
export function modelRoutes(deps: MountedDependencies): FastifyPluginAsync {
  const { storage, scheduler, conversion } = deps
  const withProgress = progressReplies(deps.streams)

  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()

    app.get('/tags', async () => ({ models: storage.list().map(localRecord) }))

    app.get('/ps', async () => ({
      models: scheduler.running().map(runningRecord),
      loading: scheduler.loading().map(loadingRecord)
    }))

    app.post('/show', { schema: { body: NamedRequestSchema } }, async ({ body }) => {
      const variant = storage.get(parseModelName(nameOf(body)))
      const conversions = (await conversion.list(variant)).map(conversionRecord)
      return { ...showRecord(variant), ...(variant.format === 'gguf' ? {} : { conversions }) }
    })

    app.delete('/delete', { schema: { body: NamedRequestSchema } }, async ({ body }) => {
      await storage.remove(parseModelName(nameOf(body)))
      return { status: 'deleted' }
    })

    app.post('/default', { schema: { body: NamedRequestSchema } }, async ({ body }) => ({
      status: 'success',
      model: localRecord(await storage.setDefault(parseModelName(nameOf(body))))
    }))

    app.post('/stop', { schema: { body: NamedRequestSchema } }, async ({ body }) => {
      await scheduler.stop(parseModelName(nameOf(body)))
      return { status: 'stopped' }
    })

    app.post('/load', { schema: { body: LoadRequestSchema } }, async (request, reply) => {
      const { body } = request
      const model = parseModelName(nameOf(body))
      const options = parseOptions(body.options).load
      const keepAlive = parseKeepAlive(body.keep_alive)
      storage.get(model)
      return await withProgress(request, reply, body, async (signal, onProgress) => {
        const lease = await scheduler.lease({ model, options, keepAlive, signal, onProgress, loadOnly: true })
        lease.release()
        return { status: 'ready' }
      })
    })

    app.post('/pull', { schema: { body: PullRequestSchema } }, async (request, reply) => {
      const { body } = request
      const asked = nameOf(body)
      const name = parseModelName(asked.replace(PULL_SOURCE, '').replace(PULL_REVISION, ''))
      if (!storage.find(name)) {
        throw new CorralError(
          'not_implemented',
          `Model "${asked}" is not on this machine, and this version of corral cannot download models. Register files that you have with: corral import <path> <owner>/<name>.`
        )
      }
      return await withProgress(
        request,
        reply,
        { ...body, stream: body.stream ?? true },
        async (_signal, onProgress) => {
          onProgress({ phase: 'pulling', subject: asked })
          return { status: 'success' }
        }
      )
    })
  }
}
