import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import type { Framing, ModelNaming } from '../../../core/contracts/native-api.ts'
import { requireFiles } from '../../../core/contracts/storage.ts'
import { CorralError, type ErrorCode } from '../../../core/errors.ts'
import { clientSignal } from '../../../core/http/client-signal.ts'
import { bodyObject } from '../../../core/http/json-body.ts'
import { workFailureEvent } from '../../../core/http/native-error.ts'
import { endWithFailure, openReplyStream } from '../../../core/http/reply-stream.ts'
import { errorResponses, json, jsonOrStream, nativeErrors } from '../../../core/http/response-schemas.ts'
import type { ModelName } from '../../../core/models/model-name.ts'
import { blobRoutes } from './blob-routes.ts'
import { CreateRequestSchema, readCreateRequest } from './create-request.ts'
import { createModelMaker, type MakingDependencies, type Tell } from './make-model.ts'

const loose = { additionalProperties: true }
const tags = ['Models']
const Name = (description: string) => Type.Optional(Type.Union([Type.String({ description }), Type.Null()]))
const CopyRequestSchema = Type.Object(
  {
    source: Type.String({ description: 'Model to be copied' }),
    destination: Type.String({ description: 'Its new name' })
  },
  { ...loose, title: 'CopyRequest' }
)
const PushRequestSchema = Type.Object({ model: Name('Model to be published'), name: Name('The same as model') }, loose)
const Status = Type.Object({ status: Type.String() }, loose)
const Event = Type.Object(
  {
    status: Type.Optional(Type.String({ description: 'What is being done' })),
    digest: Type.Optional(Type.String({ description: 'Of the file that is being copied' })),
    completed: Type.Optional(Type.Integer({ description: 'Bytes of all files' })),
    total: Type.Optional(Type.Integer()),
    error: Type.Optional(Type.String()),
    errorCode: Type.Optional(Type.Integer()),
    code: Type.Optional(Type.String())
  },
  loose
)
const MAKING_ERRORS: ErrorCode[] = [
  'invalid_model_name',
  'model_not_found',
  'unsupported_capability',
  'model_exists',
  'insufficient_storage'
]

const COPY = {
  summary: 'Copy a model',
  description: 'Files are linked where that is possible; each of the two may be deleted without the other.',
  tags,
  operationId: 'copyModel',
  body: CopyRequestSchema,
  response: { 200: json('It is there', Status), ...errorResponses(nativeErrors, MAKING_ERRORS) }
}
const CREATE = {
  summary: 'Make a model of another one, or of files that were sent',
  description:
    'What is laid down for it holds where a request gives nothing of its own. A model that was made before is replaced.',
  tags,
  operationId: 'createModel',
  body: CreateRequestSchema,
  response: {
    200: jsonOrStream('It is there', Status, {
      event: 'What is being done; the last event is `success`, or the error',
      item: Event,
      types: ['text/event-stream', 'application/x-ndjson']
    }),
    ...errorResponses(nativeErrors, [...MAKING_ERRORS, 'invalid_option', 'unsupported_capability'])
  }
}
const PUSH = {
  summary: 'Publish a model, which corral does not',
  tags,
  operationId: 'pushModel',
  body: PushRequestSchema,
  response: errorResponses(nativeErrors, ['not_implemented', 'invalid_model_name'])
}

/** The habits of one mount of the routes. */
export interface MakingMount {
  naming: ModelNaming
  /** Reads a name that need not be there yet. */
  newName: (asked: unknown) => ModelName
  framingOf: (request: FastifyRequest) => Framing
}

/** Copying and creating models, as Ollama's clients do it; without a prefix. */
export function modelMakingRoutes(deps: MakingDependencies, mount: MakingMount): FastifyPluginAsync {
  const { catalog, blobs } = deps
  const { naming, newName, framingOf } = mount
  const maker = createModelMaker(deps)

  return async instance => {
    await instance.register(blobRoutes(blobs))
    await instance.register(async instance => {
      const app = instance.withTypeProvider<TypeBoxTypeProvider>()
      app.addHook('preValidation', async request => void bodyObject(request.body))

      app.post('/copy', { schema: COPY }, async ({ body }, reply) => {
        const source = requireFiles(catalog.get(naming.parse(body.source)))
        await maker.copy(source, newName(body.destination), clientSignal(reply))
        return { status: 'success' }
      })

      app.post('/create', { schema: CREATE }, async (request, reply) => {
        const { body } = request
        const name = newName(body.model || body.name)
        const making = readCreateRequest(body)
        const source = 'from' in making.source ? requireFiles(catalog.get(naming.parse(making.source.from))) : undefined
        const framing = (body.stream ?? true) ? framingOf(request) : undefined
        return await replyWithStatus(request, reply, framing, (signal, tell) =>
          maker.create(name, making, source, signal, tell)
        )
      })

      app.post('/push', { schema: PUSH }, async ({ body }) => {
        const name = body.model || body.name
        throw new CorralError(
          'not_implemented',
          `corral does not publish models${name ? `: ${JSON.stringify(name.slice(0, 200))} stays on this machine` : ''}. ` +
            'Another corral can pull it from here ("corral pull corral://<host>:<port>/<owner>/<name>"); ' +
            'to publish it, upload its files with the tools of a hub.'
        )
      })
    })
  }
}

/** Milliseconds. */
const HEARTBEAT = 10_000
const DONE = { status: 'success' }

const FRAMES: Record<
  Framing,
  { contentType: string; event(value: object): string; heartbeat(status: string): string }
> = {
  ndjson: {
    contentType: 'application/x-ndjson',
    event: value => `${JSON.stringify(value)}\n`,
    heartbeat: status => `${JSON.stringify({ status })}\n`
  },
  sse: {
    contentType: 'text/event-stream',
    event: value => `data: ${JSON.stringify(value)}\n\n`,
    heartbeat: status => `: ${status}\n\n`
  }
}

/**
 * Answers work as Ollama does: an event for each thing that is done, `success` as the last one; or that one alone.
 * @param framing undefined where the reply is one object
 */
export async function replyWithStatus(
  request: FastifyRequest,
  reply: FastifyReply,
  framing: Framing | undefined,
  work: (signal: AbortSignal, tell: Tell) => Promise<void>
): Promise<unknown> {
  const signal = clientSignal(reply)
  if (!framing) {
    await work(signal, () => {})
    return DONE
  }
  const { contentType, event, heartbeat } = FRAMES[framing]
  reply.vary('Accept')
  const stream = openReplyStream(reply, { contentType, heartbeatInterval: HEARTBEAT, heartbeat })
  return await endWithFailure(
    stream,
    request.log,
    failure => event(workFailureEvent(failure)),
    async () => {
      await work(signal, (status, progress) => {
        stream.status = status
        void stream.write(event({ status, ...progress }))
      })
      stream.end(event(DONE))
    }
  )
}
