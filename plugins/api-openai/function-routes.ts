import type { FastifyPluginAsync, FastifyReply } from 'fastify'
import { type TSchema, Type } from 'typebox'
import type { EngineMode } from '../../core/contracts/engines.ts'
import type { StoredVariant } from '../../core/contracts/storage.ts'
import type { ErrorCode } from '../../core/errors.ts'
import {
  ANSWER_ERRORS,
  errorResponses,
  json,
  jsonOrStream,
  type ResponseSchema
} from '../../core/http/response-schemas.ts'
import { schemaCompiler } from './check-body.ts'
import { cutEmbeddings, embeddingQuestion } from './embeddings.ts'
import { type Fields, readCall } from './engine-call.ts'
import { chatGeneration, completionGeneration } from './generation.ts'
import { openaiErrors } from './openai-error.ts'
import { answer, askOnce, type RelayDependencies } from './relay.ts'
import { ChatChunk, ChatCompletion, Completion, Embeddings, Ranking, Text, Tokens } from './reply-schemas.ts'
import {
  ChatRequest,
  CompletionRequest,
  DetokenizeRequest,
  EmbeddingRequest,
  RerankRequest,
  TokenizeRequest
} from './request-schemas.ts'
import { rerankQuestion, wordRanking } from './rerank.ts'

const JSON_TYPE = 'application/json; charset=utf-8'

/** Tokens are told by any engine of the model. */
function modeOf({ metadata: { capabilities } }: StoredVariant): EngineMode {
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
export function functionRoutes(deps: RelayDependencies): FastifyPluginAsync {
  const tokens = async (body: Fields, reply: FastifyReply, path: string) => {
    const call = readCall(body)
    const bytes = await askOnce(deps, reply, call, variant => ({ mode: modeOf(variant), path, body: call.fields }))
    return reply.type(JSON_TYPE).send(bytes)
  }

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
        const bytes = await askOnce(deps, reply, readCall(body), variant => embeddingQuestion(body, variant))
        const { dimensions, encoding_format } = body
        if (!dimensions) return reply.type(JSON_TYPE).send(bytes)
        return cutEmbeddings(JSON.parse(bytes.toString('utf8')), dimensions, encoding_format ?? 'float')
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
          const bytes = await askOnce(deps, reply, readCall(body), () => rerankQuestion(body))
          return wordRanking(JSON.parse(bytes.toString('utf8')), body)
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
      ({ body }, reply) => tokens(body, reply, '/tokenize')
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
      ({ body }, reply) => tokens(body, reply, '/detokenize')
    )
  }
}
