import { isAbsolute } from 'node:path'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import { CorralError } from '../../core/errors.ts'
import { clientSignal } from '../../core/http/client-signal.ts'
import { parseModelName } from '../../core/model-name.ts'
import { parseKeepAlive, parseOptions } from '../../core/options.ts'
import { type OnProgress, type Progress, progressText } from '../../core/progress.ts'
import { nameOf } from './answer.ts'
import type { MountedDependencies } from './dependencies.ts'
import { loadingRecord, localRecord, runningRecord, showRecord } from './records.ts'
import { ImportRequestSchema, LoadRequestSchema, NamedRequestSchema, PullRequestSchema } from './schemas.ts'

/** A hub before the name and a revision behind it, as pulls may name them. */
const PULL_SOURCE = /^(?:hf:|csghub:|modelscope:|hf\.co\/)/
const PULL_REVISION = /@[^@]*$/

/** At most ten progress events a second reach a client. */
const EVENT_INTERVAL = 100

/** Models on disk and in memory. */
export function modelRoutes(deps: MountedDependencies): FastifyPluginAsync {
  const { storage, scheduler, streams } = deps

  /**
   * Runs long work that reports progress: streamed, each step is an event and the last one `last`; else it is the
   * reply's only object.
   */
  async function withProgress(
    request: FastifyRequest,
    reply: FastifyReply,
    body: { model?: string | null; name?: string | null; stream?: boolean | null },
    work: (signal: AbortSignal, onProgress: OnProgress) => Promise<Record<string, unknown>>
  ): Promise<unknown> {
    const signal = clientSignal(reply)
    if (!body.stream) return await work(signal, () => undefined)
    const framing = streams.framingOf(request)
    const stream = streams.open(request, reply, status => ({ status }))
    let sent = 0
    const onProgress = (progress: Progress) => {
      stream.status = progressText(progress)
      const done = progress.completed !== undefined && progress.completed === progress.total
      if (Date.now() - sent < EVENT_INTERVAL && !done) return
      sent = Date.now()
      void stream.write(streams.frame(framing, progressEvent(progress)))
    }
    await streams.run(stream, { model: nameOf(body), framing }, request, async () => {
      const last = await work(signal, onProgress)
      stream.end(streams.frame(framing, last))
    })
  }

  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()

    app.get('/tags', async () => ({ models: storage.list().map(localRecord) }))

    app.get('/ps', async () => ({
      models: scheduler.running().map(runningRecord),
      loading: scheduler.loading().map(loadingRecord)
    }))

    app.post('/show', { schema: { body: NamedRequestSchema } }, async ({ body }) =>
      showRecord(storage.get(parseModelName(nameOf(body))))
    )

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

function progressEvent(progress: Progress): Record<string, unknown> {
  const { phase, subject, completed, total, fraction } = progress
  // A load has no bytes to count; a hundred steps tell clients the same.
  const steps = fraction === undefined ? {} : { completed: Math.round(fraction * 100), total: 100 }
  return {
    status: subject ? `${phase} ${subject}` : phase,
    ...(completed === undefined || total === undefined ? steps : { completed, total })
  }
}
