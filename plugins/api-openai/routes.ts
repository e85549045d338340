import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import { readModelRequest, type SurfaceDependencies } from '../../core/answers/model-request.ts'
import { askOnce, callOf } from '../../core/answers/pipeline.ts'
import type { EngineMode } from '../../core/contracts/engines.ts'
import type { Model } from '../../core/contracts/models.ts'
import { sendErrors } from '../../core/http/application.ts'
import { ANSWER_ERRORS, json, jsonOrStream } from '../../core/http/response-schemas.ts'
import { answer } from './answer.ts'
import { schemaCompiler } from './check-body.ts'
import { documentText, embeddingInputs, embeddingList, ranking } from './embeddings.ts'
import { chatGeneration, completionGeneration, engineFields, type Fields } from './generation.ts'
import { mediaRoutes } from './media/routes.ts'
import { modelRoutes } from './models.ts'
import { openaiErrorBody, openaiErrors, operation } from './openai-error.ts'
import { responseRoutes } from './responses/routes.ts'
import {
  ChatChunk,
  ChatCompletion,
  ChatRequest,
  Completion,
  CompletionRequest,
  DetokenizeRequest,
  EmbeddingRequest,
  Embeddings,
  Ranking,
  RerankRequest,
  Text,
  TokenizeRequest,
  TokenList
} from './schemas.ts'

/** The hosted-chat API without its prefix. */
export function openaiRoutes(deps: SurfaceDependencies & { storedResponses: number }): FastifyPluginAsync {
  return async app => {
    app.wordErrors('/v1/', openaiErrorBody)
    sendErrors(app, openaiErrorBody)
    app.setNotFoundHandler(request => {
      throw app.noRouteError(request.method, request.url)
    })
    app.setValidatorCompiler(schemaCompiler)
    await app.register(modelRoutes(deps))
    await app.register(textRoutes(deps))
    await app.register(vectorRoutes(deps))
    await app.register(responseRoutes(deps))
    await app.register(mediaRoutes(deps))
  }
}

/** Chat completions and completions. */
function textRoutes(deps: SurfaceDependencies): FastifyPluginAsync {
  const tags = ['OpenAI chat']
  const errors = openaiErrors(ANSWER_ERRORS)
  return async app => {
    app.post<{ Body: Fields }>(
      '/chat/completions',
      operation(
        {
          tags,
          summary: 'Answer a conversation',
          description: "OpenAI's Chat Completions. The model is loaded where it is not; it is never downloaded.",
          operationId: 'createChatCompletion',
          body: ChatRequest
        },
        jsonOrStream('The answer', ChatCompletion, {
          event:
            'Events `data: {"object":"chat.completion.chunk",…}` with a `delta` for a choice, the counts last if stream_options.include_usage is true, then `data: [DONE]`. A failure is `data: {"error":{…}}` without `[DONE]` behind it.',
          item: Type.Union([ChatChunk, errors]),
          end: '[DONE]'
        })
      ),
      (request, reply) => answer(deps, request, reply, chatGeneration)
    )
    app.post<{ Body: Fields }>(
      '/completions',
      operation(
        {
          tags,
          summary: 'Continue a text',
          description:
            "OpenAI's older Completions: one prompt or several, without the chat template. With a suffix, the text between is filled in.",
          operationId: 'createCompletion',
          body: CompletionRequest
        },
        jsonOrStream('The texts', Completion, {
          event:
            'Events `data: {"object":"text_completion",…}` with a piece of `text` for a choice, then `data: [DONE]`. A failure is `data: {"error":{…}}` without `[DONE]` behind it.',
          item: Type.Union([Completion, errors]),
          end: '[DONE]'
        })
      ),
      (request, reply) => answer(deps, request, reply, completionGeneration)
    )
  }
}

/** Any engine of the model knows its tokens. */
function anyMode({ metadata: { capabilities } }: Model): EngineMode {
  if (capabilities.includes('completion')) return 'chat'
  return capabilities.includes('rerank') ? 'rerank' : 'embedding'
}

/** Embeddings, rankings and tokens: what engines return in one piece. */
function vectorRoutes(deps: SurfaceDependencies): FastifyPluginAsync {
  const tokenQuestion = (body: Fields) => {
    const request = readModelRequest(deps, body)
    const lease = { ...request.lease, mode: anyMode(request.variant) }
    return { operation: 'tokens', body: engineFields(body, request), lease } as const
  }
  return async app => {
    app.post<{ Body: EmbeddingRequest }>(
      '/embeddings',
      operation(
        {
          tags: ['OpenAI embeddings'],
          summary: 'Make vectors of texts',
          description: 'Models that generate text get an engine in embedding mode beside their own.',
          operationId: 'createEmbedding',
          body: EmbeddingRequest
        },
        json('The vectors, in the order of the texts', Embeddings)
      ),
      async ({ body }, reply) => {
        const request = readModelRequest(deps, body)
        const input = embeddingInputs(body, request.variant)
        const lease = { ...request.lease, mode: 'embedding' } as const
        const question = { operation: 'embeddings', body: { input }, lease } as const
        const vectors = await askOnce(deps, reply, question, (lease, { input }) => callOf(lease, 'embed')(input, lease))
        return embeddingList(vectors, body, request.requested)
      }
    )
    for (const [path, operationId] of [
      ['/rerank', 'rerank'],
      ['/reranking', 'rerankToo']
    ] as const) {
      app.post<{ Body: RerankRequest }>(
        path,
        operation(
          {
            tags: ['OpenAI embeddings'],
            summary: 'Rank documents by a query',
            description: "As Jina's and Cohere's rerank. Needs a reranking model.",
            operationId,
            body: RerankRequest
          },
          json('The documents by their relevance', Ranking)
        ),
        async ({ body }, reply) => {
          const request = readModelRequest(deps, body)
          const texts = { query: body.query, documents: body.documents.map(documentText) }
          const lease = { ...request.lease, mode: 'rerank' } as const
          const question = { operation: 'rerank', body: texts, lease } as const
          const scores = await askOnce(deps, reply, question, (lease, { query, documents }) =>
            callOf(lease, 'rerank')(query, documents, lease)
          )
          return ranking(scores, body, request.requested)
        }
      )
    }
    app.post<{ Body: Fields }>(
      '/tokenize',
      operation(
        {
          tags: ['OpenAI tokens'],
          summary: 'Split a text into tokens',
          description: "As llama-server's /tokenize.",
          operationId: 'tokenize',
          body: TokenizeRequest
        },
        json('The tokens', TokenList)
      ),
      ({ body }, reply) =>
        askOnce(deps, reply, tokenQuestion(body), (lease, fields) => callOf(lease, 'tokenize')(fields, lease))
    )
    app.post<{ Body: Fields }>(
      '/detokenize',
      operation(
        {
          tags: ['OpenAI tokens'],
          summary: 'Turn tokens into text',
          description: "As llama-server's /detokenize.",
          operationId: 'detokenize',
          body: DetokenizeRequest
        },
        json('The text', Text)
      ),
      async ({ body }, reply) => ({
        content: await askOnce(deps, reply, tokenQuestion(body), (lease, { tokens }) =>
          callOf(lease, 'detokenize')(tokens as number[], lease)
        )
      })
    )
  }
}
