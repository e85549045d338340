import type { FastifyInstance, FastifyReply } from 'fastify'
import { type Static, Type } from 'typebox'
import { embedChunked, shortened, type Vector, vectorReply } from '../../../core/answers/embedding.ts'
import type { EmbeddingsReply } from '../../../core/contracts/engines.ts'
import { Nanoseconds } from '../../../core/contracts/native-records.ts'
import { Given, keep_alive, Loose, named, options, Titled } from '../../../core/http/request-fields.ts'
import { ANSWER_ERRORS, json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { requireRole } from '../../../core/http/roles.ts'
import { catalogFor } from '../../../core/models/allowed-models.ts'
import { parseRequestedName } from '../../../core/models/model-name.ts'
import { parseKeepAlive, parseOptions } from '../../../core/models/options.ts'
import { timeToModel } from './answer.ts'
import type { NativeDependencies } from './native-dependencies.ts'
import { requestedName } from './records.ts'

const Embedding = Type.Array(Type.Number())
const only = 'Without a text the model is only loaded, or unloaded if `keep_alive` is 0.'

const EmbeddingsRequest = Loose({ ...named, prompt: Given(Type.String()), options, keep_alive })

export function embedRoutes(app: FastifyInstance, deps: NativeDependencies): void {
  const { catalog, scheduler } = deps
  const route = nativeRouter(app, 'Answers')

  route('POST /embed', 'embed', 'Embed texts', {
    description: `Loads the model in embedding mode if necessary. ${only}`,
    body: Loose({
      ...named,
      input: Given(Type.Union([Type.String(), Type.Array(Type.String())])),
      truncate: Given(Type.Boolean()),
      dimensions: Given(Type.Integer({ minimum: 1 })),
      options,
      keep_alive
    }),
    response: json(
      'An embedding for each text',
      Titled('EmbedReply', {
        model: Type.String(),
        embeddings: Type.Array(Embedding),
        total_duration: Nanoseconds('From the request to the reply'),
        load_duration: Nanoseconds('Until the model was loaded, or was found to be loaded'),
        prompt_eval_count: Type.Integer()
      })
    ),
    errors: ANSWER_ERRORS,
    handler: async ({ body, record }, reply) => {
      const began = performance.now()
      const texts = typeof body.input === 'string' ? [body.input].filter(text => text !== '') : (body.input ?? [])
      const { vectors, promptTokens } = await embed(body, texts, reply, body)
      const counts = {
        model: requestedName(body),
        total_duration: Math.round((performance.now() - began) * 1e6),
        load_duration: timeToModel(record, began),
        prompt_eval_count: promptTokens
      }
      const toRow = (vector: Vector) => Array.from(vector)
      return vectorReply(reply, vectors, toRow, embeddings => ({ ...counts, embeddings }))
    }
  })

  route('POST /embeddings', 'embeddings', 'Embed one text', {
    description: `An older form of embed. ${only}`,
    body: EmbeddingsRequest,
    response: json('The embedding', Titled('EmbeddingsReply', { embedding: Embedding })),
    errors: ANSWER_ERRORS,
    handler: async ({ body }, reply) => {
      const { vectors } = await embed(body, body.prompt ? [body.prompt] : [], reply)
      return { embedding: Array.from(vectors[0] ?? []) }
    }
  })

  async function embed(
    body: Static<typeof EmbeddingsRequest>,
    texts: string[],
    reply: FastifyReply,
    { truncate, dimensions }: { truncate?: boolean | null; dimensions?: number | null } = {}
  ): Promise<EmbeddingsReply> {
    const { caller } = reply.request
    const model = parseRequestedName(requestedName(body))
    const keepAlive = parseKeepAlive(body.keep_alive)
    const { load } = parseOptions(body.options)
    const variant = catalogFor(catalog, caller).get(model)
    const none = { vectors: [], promptTokens: 0 }
    const loadOnly = texts.length === 0
    if (loadOnly && keepAlive === 0) {
      requireRole(reply.request.caller, 'operator')
      scheduler.keepAlive(variant.model, 0)
      return none
    }
    const lease = { model, mode: 'embedding' as const, options: load, keepAlive, loadOnly }
    const question = { operation: 'embeddings' as const, body: { input: texts }, lease }
    const options = {
      truncate: truncate ?? deps.truncates,
      ...(load.num_ctx !== undefined && { most: load.num_ctx }),
      made: (vector: Vector) => shortened(vector, dimensions ?? undefined)
    }
    return await deps.answers.once(reply, question, async (lease, { input }, tally) =>
      loadOnly ? none : await embedChunked(lease, input, tally, options)
    )
  }
}
