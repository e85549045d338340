import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import type { Static } from 'typebox'
import type { FileProgress, PullPlan, PullRecord } from '../../core/contracts/downloads.ts'
import type { PlanReply, PullEvent, PullReply } from '../../core/contracts/native-records.ts'
import { progressText } from '../../core/contracts/progress.ts'
import { CorralError } from '../../core/errors.ts'
import { clientSignal } from '../../core/http/client-signal.ts'
import { workFailureEvent } from '../../core/http/native-error.ts'
import type { ReplyStream } from '../../core/http/reply-stream.ts'
import { bareName } from '../../core/models/model-name.ts'
import type { MountedDependencies } from './native-dependencies.ts'
import { pullOperations } from './operations/pull-operations.ts'
import { nameOf } from './records.ts'
import type { PullsRequestSchema } from './schemas.ts'

/** Pulls of models from hubs. */
export function pullRoutes({ downloads, streams, naming }: MountedDependencies): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    const operations = pullOperations(streams.types)

    app.post('/pull', { schema: operations.pull }, async (request, reply) => {
      const { body } = request
      const asked = nameOf(body)
      const source = naming.atHub ? naming.atHub(asked) : asked
      const signal = clientSignal(reply)
      if (source === undefined) {
        if (body.stream === false) return { status: 'success' }
        const framing = streams.framingOf(request)
        return await reply
          .type(streams.contentType(framing))
          .send([`pulling ${asked}`, 'success'].map(status => streams.frame(framing, { status })).join(''))
      }
      const wanted = { model: source, ...(body.as ? { as: body.as } : {}) }

      if (body.dry_run) return planReply(await downloads.plan(wanted, { signal }))
      if (body.detach) {
        const pull = await downloads.pull(await downloads.plan(wanted, { signal }), { detached: true })
        if (!pull) return { status: 'success' }
        return await reply.code(202).send(pullReply(pull.record()))
      }
      if (body.stream === false) {
        const pull = await downloads.pull(await downloads.plan(wanted, { signal }), { detached: false })
        await pull?.watch(() => undefined, signal)
        return { status: 'success' }
      }

      const framing = streams.framingOf(request)
      const frame = (event: unknown) => streams.frame(framing, event)
      const stream = streams.open(request, reply, status => ({ status }))
      stream.status = progressText({ phase: 'pulling', subject: asked })
      await streams.run(stream, { framing, failureEvent: workFailureEvent }, request, async () => {
        const plan = await downloads.plan(wanted, {
          signal,
          onProgress: progress => {
            stream.status = progressText(progress)
          }
        })
        const pull = await downloads.pull(plan, { detached: false })
        void stream.write(frame({ status: `pulling ${asked}`, ...planSummary(plan) }))
        const events = newestEvents(stream, frame)
        await pull?.watch(events.add, signal)
        events.flush()
        stream.end(frame({ status: 'success' }))
      })
    })

    app.get('/pulls', { schema: operations.list }, async () => ({ pulls: downloads.list().map(pullReply) }))

    app.get('/pulls/:id', { schema: operations.get }, async ({ params: { id } }) => {
      const record = downloads.list().find(pull => pull.id === id || pull.model.toLowerCase() === id.toLowerCase())
      if (record) return pullReply(record)
      throw new CorralError('model_not_found', `There is no pull ${JSON.stringify(id)}. GET /api/pulls lists them.`, {
        param: 'id'
      })
    })

    app.post('/pulls/pause', { schema: operations.pause }, async ({ body }) =>
      pullReply(await downloads.pause(pullOf(body)))
    )
    app.post('/pulls/resume', { schema: operations.resume }, async ({ body }) =>
      pullReply(await downloads.resume(pullOf(body)))
    )
    app.post('/pulls/cancel', { schema: operations.cancel }, async ({ body }) => {
      await downloads.cancel(pullOf(body))
      return { status: 'cancelled' }
    })
  }
}

/** @throws CorralError `invalid_request` when a request names no pull */
function pullOf(body: Static<typeof PullsRequestSchema>): string {
  const named = body.id || nameOf(body)
  if (named) return named
  throw new CorralError(
    'invalid_request',
    'The request names no pull. Send its "id", or the "model" that it fetches.',
    {
      param: 'id'
    }
  )
}

/** Sends what changed to a client: to one that reads slowly only the newest of each file. */
function newestEvents(stream: ReplyStream, frame: (event: unknown) => string) {
  const waiting = new Map<string, FileProgress>()
  let full = false
  const flush = () => {
    if (waiting.size === 0) return
    const text = [...waiting.values()].map(file => frame(fileEvent(file))).join('')
    waiting.clear()
    const drained = stream.write(text)
    if (!drained) return
    full = true
    void drained.then(() => {
      full = false
      flush()
    })
  }
  return {
    add(files: FileProgress[]) {
      for (const file of files) waiting.set(file.path, file)
      if (!full) flush()
    },
    flush
  }
}

function fileEvent({ path, completed, total }: FileProgress): PullEvent {
  return { status: `downloading ${path}`, digest: path, total, completed }
}

/** What the first event of a pull says beside its status. */
function planSummary({ name, label, format, size, reason, warnings, present }: PullPlan): Omit<PullEvent, 'status'> {
  return { model: bareName(name), label, format, size, reason, warnings, present }
}

/** A plan as `dry_run` shows it. */
function planReply({ name, repository, files, ...plan }: PullPlan): PlanReply {
  const { hub, id, revision, address, gated } = repository
  return {
    model: bareName(name),
    ...plan,
    repository: { hub, id, revision, address, gated },
    files: files.map(({ storedPath: _, ...file }) => file)
  }
}

function pullReply({ createdAt, ...record }: PullRecord): PullReply {
  return { ...record, created_at: createdAt }
}
