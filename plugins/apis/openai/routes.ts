import type { FastifyInstance, FastifyReply } from 'fastify'
import { Type } from 'typebox'
import { reportIgnoredTools } from '../../../core/answers/answer-headers.ts'
import { embedChunked, rerankChunked, shortened, type Vector, vectorReply } from '../../../core/answers/embedding.ts'
import { requireCall } from '../../../core/answers/engine-call.ts'
import { type ConfiguredApi, readModelRequest } from '../../../core/answers/model-request.ts'
import { RunningAnswers } from '../../../core/answers/running-answers.ts'
import type { Caller } from '../../../core/contracts/callers.ts'
import type { EmbeddingsReply, RankingReply } from '../../../core/contracts/engines.ts'
import type { Model } from '../../../core/contracts/models.ts'
import { invalidRequest } from '../../../core/errors.ts'
import { clientSignal } from '../../../core/http/client-disconnect.ts'
import { useErrorFormat } from '../../../core/http/error-format.ts'
import { openaiErrorBody, openaiErrors, openaiRouter } from '../../../core/http/openai-error.ts'
import { ANSWER_ERRORS, json, jsonOrStream } from '../../../core/http/response-schemas.ts'
import { streamRoutes } from '../../../core/http/resumable-streams.ts'
import { catalogFor } from '../../../core/models/allowed-models.ts'
import { parseRequestedName } from '../../../core/models/model-name.ts'
import { defaultMode } from '../../../core/models/model-operations.ts'
import { answer, type TextDependencies } from './answer.ts'
import { chatGeneration, completionGeneration, engineFields, type Fields } from './generation.ts'
import { mediaRoutes } from './media/routes.ts'
import { modelRoutes } from './models.ts'
import { realtimeRoute } from './realtime/realtime-route.ts'
import { schemaCompiler } from './request-validation.ts'
import { responseRoutes } from './responses/routes.ts'
import type { StoredResponses } from './responses/stored-responses.ts'
import type { EmbeddingRequest, RerankRequest } from './schemas.ts'
import * as schemas from './schemas.ts'

export async function openaiRoutes(app: FastifyInstance, deps: ConfiguredApi & { stored: StoredResponses }) {
  useOpenAiFormat(app, deps)
  modelRoutes(app, deps)
  textRoutes(app, { ...deps, running: new RunningAnswers() })
  vectorRoutes(app, deps)
  responseRoutes(app, deps)
  await app.register(async scope => mediaRoutes(scope, deps))
  realtimeRoute(app, deps)
  streamRoutes(app, openaiRouter(app, 'OpenAI chat'), 'Stream')
}

export function cohereRoutes(app: FastifyInstance, deps: ConfiguredApi): void {
  useOpenAiFormat(app, deps)
  rankingRoutes(app, deps, { '/rerank': 'rerankV2' })
}

function useOpenAiFormat(app: FastifyInstance, { config }: Pick<ConfiguredApi, 'config'>): void {
  useErrorFormat(app, openaiErrorBody)
  app.setValidatorCompiler(schemaCompiler(() => config.default_model !== ''))
}

function textRoutes(app: FastifyInstance, deps: TextDependencies): void {
  const errors = openaiErrors(ANSWER_ERRORS)
  const route = openaiRouter(app, 'OpenAI chat')
  route('POST /chat/completions', 'createChatCompletion', 'Answer a conversation', {
    body: schemas.ChatRequest,
    response: jsonOrStream('The answer', schemas.ChatCompletion, {
      event:
        'Events `data: {"object":"chat.completion.chunk",…}` with a `delta` for a choice, the counts last if stream_options.include_usage is true, then `data: [DONE]`. A failure is `data: {"error":{…}}` without `[DONE]`.',
      item: Type.Union([schemas.ChatChunk, errors]),
      end: '[DONE]'
    }),
    errors: ANSWER_ERRORS,
    handler: ({ body }, reply) => answer(deps, body, reply, chatGeneration)
  })
  route('POST /completions', 'createCompletion', 'Continue a text', {
    body: schemas.CompletionRequest,
    response: jsonOrStream('The texts', schemas.Completion, {
      event:
        'Events `data: {"object":"text_completion",…}` with a piece of `text` for a choice, then `data: [DONE]`. A failure is `data: {"error":{…}}` without `[DONE]`.',
      item: Type.Union([schemas.Completion, errors]),
      end: '[DONE]'
    }),
    errors: ANSWER_ERRORS,
    handler: ({ body }, reply) => answer(deps, body, reply, completionGeneration)
  })
  route('POST /chat/completions/control', 'controlChatCompletion', 'Control an answer while it is generated', {
    body: schemas.ControlRequest,
    response: json('Whether the action succeeded', schemas.ControlReply),
    errors: ['invalid_model_name', 'model_not_found', 'forbidden_model', 'engine_crashed'],
    handler: async ({ body: { id, model: named, name }, caller }, reply) => {
      const model = catalogFor(deps.catalog, caller).get(parseRequestedName(named ?? name))
      return await deps.running.endThought({ id, owner: caller.owner, model }, clientSignal(reply))
    }
  })
}

function vectorRoutes(app: FastifyInstance, deps: ConfiguredApi): void {
  const tokenQuestion = (body: Fields, caller: Caller) => {
    const request = readModelRequest(deps, body, caller)
    const lease = { ...request.lease, mode: defaultMode(request.variant) }
    return { operation: 'tokens', body: engineFields(body, request), lease } as const
  }
  const embeddingRoute = openaiRouter(app, 'OpenAI embeddings')
  const tokenRoute = openaiRouter(app, 'OpenAI tokens')
  embeddingRoute('POST /embeddings', 'createEmbedding', 'Create embeddings of texts', {
    body: schemas.EmbeddingRequest,
    response: json('The embeddings, in the order of the texts', schemas.Embeddings),
    errors: ANSWER_ERRORS,
    handler: async ({ body, caller }, reply) => {
      const request = readModelRequest(deps, body, caller)
      const input = embeddingInputs(body, request.variant)
      const lease = { ...request.lease, mode: 'embedding' } as const
      const question = { operation: 'embeddings', body: { input }, lease } as const
      const vectors = await deps.answers.once(reply, question, (lease, { input }, tally) =>
        embedChunked(lease, input, tally, { made: vector => toDimensions(vector, body) })
      )
      return embeddingList(reply, vectors, body, request.requested)
    }
  })
  rankingRoutes(app, deps, { '/rerank': 'rerank', '/reranking': 'rerankToo' })
  const conversation = (body: Fields, reply: FastifyReply) => {
    const request = readModelRequest(deps, body, reply.request.caller)
    const generation = chatGeneration(body, request)
    reportIgnoredTools(reply, generation.ignoredTools ?? [])
    return { operation: 'tokens', body: generation.body, lease: request.lease } as const
  }
  tokenRoute('POST /chat/completions/input_tokens', 'countChatTokens', 'Count the tokens of a conversation', {
    body: schemas.ChatRequest,
    response: json('The number of tokens', schemas.PromptTokens),
    errors: ANSWER_ERRORS,
    handler: async ({ body }, reply) => ({
      object: 'response.input_tokens',
      input_tokens: await deps.answers.prompt(reply, 'countTokens', conversation(body, reply))
    })
  })
  tokenRoute('POST /chat/completions/prompt', 'showPrompt', 'Show the prompt of a conversation', {
    body: schemas.ChatRequest,
    response: json('The prompt', schemas.Prompt),
    errors: ANSWER_ERRORS,
    handler: async ({ body }, reply) => ({
      prompt: await deps.answers.prompt(reply, 'applyTemplate', conversation(body, reply))
    })
  })
  tokenRoute('POST /tokenize', 'tokenize', 'Split a text into tokens', {
    body: schemas.TokenizeRequest,
    response: json('The tokens', schemas.TokenList),
    errors: ANSWER_ERRORS,
    handler: ({ body, caller }, reply) => deps.answers.prompt(reply, 'tokenize', tokenQuestion(body, caller))
  })
  tokenRoute('POST /detokenize', 'detokenize', 'Turn tokens into text', {
    body: schemas.DetokenizeRequest,
    response: json('The text', schemas.Text),
    errors: ANSWER_ERRORS,
    handler: async ({ body, caller }, reply) => ({
      content: await deps.answers.once(reply, tokenQuestion(body, caller), (lease, { tokens }) =>
        requireCall(lease, 'detokenize')(tokens as number[], lease)
      )
    })
  })
}

function rankingRoutes(app: FastifyInstance, deps: ConfiguredApi, paths: Record<string, string>): void {
  const embeddingRoute = openaiRouter(app, 'OpenAI embeddings')
  for (const [path, operationId] of Object.entries(paths)) {
    embeddingRoute(`POST ${path}`, operationId, 'Rank documents by relevance to a query', {
      body: schemas.RerankRequest,
      response: json('The documents, sorted by relevance', Type.Union([schemas.Ranking, schemas.TextRanking])),
      errors: ANSWER_ERRORS,
      handler: async ({ body, caller }, reply) => {
        const request = readModelRequest(deps, body, caller)
        const documents = documentTexts(body)
        const lease = { ...request.lease, mode: 'rerank' } as const
        const question = { operation: 'rerank', body: { query: body.query, documents }, lease } as const
        const scores = await deps.answers.once(reply, question, rerankChunked)
        return body.texts ? textRanking(scores, body, documents) : ranking(scores, body, documents, request.requested)
      }
    })
  }
}

/** Returns the texts or token lists to embed. @throws CorralError naming the wrong field */
export function embeddingInputs({ input, dimensions }: EmbeddingRequest, variant: Model): (string | number[])[] {
  const { embeddingLength } = variant.metadata
  const empty = [input].flat().indexOf('')
  if (empty !== -1) {
    const param = typeof input === 'string' ? 'input' : `input[${empty}]`
    throw invalidRequest(param, `"${param}" must be a non-empty text.`)
  }
  if (dimensions && embeddingLength !== undefined) requireLength(dimensions, embeddingLength)
  // A list of numbers is one text, given as tokens.
  return typeof input === 'string' || typeof input[0] === 'number' ? [input as string | number[]] : (input as string[])
}

function requireLength(dimensions: number, length: number): void {
  if (dimensions <= length) return
  throw invalidRequest('dimensions', `"dimensions" must be at most ${length}, the length of the model's embeddings.`)
}

/** Shortens an embedding to `dimensions` and normalizes it again. @throws CorralError if it is shorter than that */
export function toDimensions(vector: Vector, { dimensions }: EmbeddingRequest): Vector {
  if (!dimensions) return vector
  requireLength(dimensions, vector.length)
  return shortened(vector, dimensions)
}

export function embeddingList(
  reply: FastifyReply,
  { vectors, promptTokens }: EmbeddingsReply,
  { encoding_format }: EmbeddingRequest,
  model: string
) {
  const toRow = (vector: Vector, index: number) => ({
    object: 'embedding',
    index,
    embedding: encoding_format === 'base64' ? toBase64(vector) : Array.from(vector)
  })
  const usage = { prompt_tokens: promptTokens, total_tokens: promptTokens }
  return vectorReply(reply, vectors, toRow, data => ({ object: 'list', model, usage, data }))
}

function toBase64(vector: ArrayLike<number>): string {
  const bytes = Buffer.alloc(vector.length * 4)
  for (let index = 0; index < vector.length; index++) bytes.writeFloatLE(vector[index]!, index * 4)
  return bytes.toString('base64')
}

/** Returns the texts to rank. @throws CorralError unless exactly one of the two fields is set */
export function documentTexts({ documents, texts }: RerankRequest): string[] {
  if (Boolean(documents) === Boolean(texts)) {
    throw invalidRequest('documents', 'Send the texts to rank either as "documents" or as "texts".')
  }
  return texts ?? documents!.map(document => (typeof document === 'string' ? document : document.text))
}

export function ranking(
  reply: RankingReply,
  { top_n, return_documents }: RerankRequest,
  documents: readonly string[],
  model: string
) {
  return {
    object: 'list',
    model,
    usage: { prompt_tokens: reply.promptTokens, total_tokens: reply.promptTokens },
    results: best(reply, top_n).map(({ index, score }) => ({
      index,
      relevance_score: score,
      ...(return_documents && { document: { text: documents[index]! } })
    }))
  }
}

export function textRanking(reply: RankingReply, { top_n, return_text }: RerankRequest, texts: readonly string[]) {
  return best(reply, top_n).map(({ index, score }) => ({ index, score, ...(return_text && { text: texts[index]! }) }))
}

const best = ({ scores }: RankingReply, most: number | null | undefined) =>
  [...scores].sort((a, b) => b.score - a.score).slice(0, most ?? undefined)
