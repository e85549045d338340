import type { FastifyPluginAsync } from 'fastify'
import { type TSchema, Type } from 'typebox'
import { callOf } from '../../core/answers/pipeline.ts'
import type { EngineMode } from '../../core/contracts/engines.ts'
import type { Model } from '../../core/contracts/models.ts'
import type { ErrorCode } from '../../core/errors.ts'
import {
  ANSWER_ERRORS,
  errorResponses,
  json,
  jsonOrStream,
  type ResponseSchema
} from '../../core/http/response-schemas.ts'
import { answer, askModel, type OpenaiDependencies } from './answer.ts'
import { schemaCompiler } from './check-body.ts'
import { embeddingInputs, embeddingList, ranking, textOf } from './embeddings.ts'
import { type Fields, readCall } from './engine-call.ts'
import { chatGeneration, completionGeneration } from './generation.ts'
import { openaiErrors } from './openai-error.ts'
import { ChatChunk, ChatCompletion, Completion, Embeddings, Ranking, Text, Tokens } from './reply-schemas.ts'
import {
  ChatRequest,
  CompletionRequest,
  DetokenizeRequest,
  EmbeddingRequest,
  RerankRequest,
  TokenizeRequest
} from './request-schemas.ts'

/** Any engine of the model can tell its tokens. */
function modeOf({ metadata: { capabilities } }: Model): EngineMode {
  if (capabilities.includes('completion')) return 'chat'
  return capabilities.includes('rerank') ? 'rerank' : 'embedding'
}

function described(
  operation: { summary: string; description: string; operationId: string; tags: string[] },
  body: TSchema,
  reply: ResponseSchema,
  codes: readonly ErrorCode[] = ANSWER_ERRORS
) {
  return { schema: { ...operation, body, response: { 200: reply, ...errorResponses(openaiErrors, codes) } } }
}

/** What models are asked for under `/v1`. */
export function functionRoutes(deps: OpenaiDependencies): FastifyPluginAsync {
  return async app => {
    app.setValidatorCompiler(schemaCompiler)
    app.post<{ Body: Fields }>(
      '/chat/completions',
      described(
        {
          tags: ['OpenAI chat'],
          summary: 'Answer a conversation',
          description: "OpenAI's Chat Completions. The model is loaded where it is not; it is never downloaded.",
          operationId: 'createChatCompletion'
        },
        ChatRequest,
        jsonOrStream('The answer', ChatCompletion, {
          event:
            'Events `data: {"object":"chat.completion.chunk",…}` with a `delta` for a choice, the counts last where stream_options.include_usage asks for them, then `data: [DONE]`. A failure is `data: {"error":{…}}` without `[DONE]` behind it.',
          item: Type.Union([ChatChunk, openaiErrors(ANSWER_ERRORS)]),
          end: '[DONE]'
        })
      ),
      (request, reply) => answer(deps, request, reply, readCall(request.body, ChatRequest), chatGeneration)
    )
    app.post<{ Body: Fields }>(
      '/completions',
      described(
        {
          tags: ['OpenAI chat'],
          summary: 'Continue a text',
          description:
            "OpenAI's older Completions: one prompt or several, without the chat template. With a suffix, what lies between is filled in.",
          operationId: 'createCompletion'
        },
        CompletionRequest,
        jsonOrStream('The texts', Completion, {
          event:
            'Events `data: {"object":"text_completion",…}` with a piece of `text` for a choice, then `data: [DONE]`. A failure is `data: {"error":{…}}` without `[DONE]` behind it.',
          item: Type.Union([Completion, openaiErrors(ANSWER_ERRORS)]),
          end: '[DONE]'
        })
      ),
      (request, reply) => answer(deps, request, reply, readCall(request.body, CompletionRequest), completionGeneration)
    )
    app.post<{ Body: EmbeddingRequest }>(
      '/embeddings',
      described(
        {
          tags: ['OpenAI embeddings'],
          summary: 'Make vectors of texts',
          description: 'Models that generate text get an engine in embedding mode beside their own.',
          operationId: 'createEmbedding'
        },
        EmbeddingRequest,
        json('The vectors, in the order of the texts', Embeddings)
      ),
      async ({ body }, reply) => {
        const call = readCall(body)
        const input = embeddingInputs(body, deps.catalog.get(call.model))
        const asked = { operation: 'embeddings', body: { input }, mode: 'embedding' } as const
        const vectors = await askModel(deps, reply, call, asked, (lease, { input }) =>
          callOf(lease, 'embed')(input, lease)
        )
        return embeddingList(vectors, body, call.asked)
      }
    )
    for (const [path, operationId] of [
      ['/rerank', 'rerank'],
      ['/reranking', 'rerankToo']
    ] as const) {
      app.post<{ Body: RerankRequest }>(
        path,
        described(
          {
            tags: ['OpenAI embeddings'],
            summary: 'Rank documents by a query',
            description: "As Jina's and Cohere's rerank. Needs a reranking model.",
            operationId
          },
          RerankRequest,
          json('The documents by their relevance', Ranking)
        ),
        async ({ body }, reply) => {
          const call = readCall(body)
          const texts = { query: body.query, documents: body.documents.map(textOf) }
          const asked = { operation: 'rerank', body: texts, mode: 'rerank' } as const
          const scores = await askModel(deps, reply, call, asked, (lease, { query, documents }) =>
            callOf(lease, 'rerank')(query, documents, lease)
          )
          return ranking(scores, body, call.asked)
        }
      )
    }
    app.post<{ Body: Fields }>(
      '/tokenize',
      described(
        {
          tags: ['OpenAI tokens'],
          summary: 'Cut a text into tokens',
          description: "As llama-server's /tokenize.",
          operationId: 'tokenize'
        },
        TokenizeRequest,
        json('The tokens', Tokens)
      ),
      ({ body }, reply) => {
        const call = readCall(body)
        const asked = { operation: 'tokens', body: call.fields, mode: modeOf(deps.catalog.get(call.model)) } as const
        return askModel(deps, reply, call, asked, (lease, fields) => callOf(lease, 'tokenize')(fields, lease))
      }
    )
    app.post<{ Body: Fields }>(
      '/detokenize',
      described(
        {
          tags: ['OpenAI tokens'],
          summary: 'Make a text of tokens',
          description: "As llama-server's /detokenize.",
          operationId: 'detokenize'
        },
        DetokenizeRequest,
        json('The text', Text)
      ),
      async ({ body }, reply) => {
        const call = readCall(body)
        const asked = { operation: 'tokens', body: call.fields, mode: modeOf(deps.catalog.get(call.model)) } as const
        const content = await askModel(deps, reply, call, asked, (lease, { tokens }) =>
          callOf(lease, 'detokenize')(tokens as number[], lease)
        )
        return { content }
      }
    )
  }
}
