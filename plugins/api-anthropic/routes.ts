import type { FastifyInstance, FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import type { Model } from '../../core/contracts/models.ts'
import { logFailure } from '../../core/http/application.ts'
import { isGone } from '../../core/http/client-signal.ts'
import { bodyObject } from '../../core/http/json-body.ts'
import { errorHeaders, toCorralError } from '../../core/http/native-error.ts'
import { ANSWER_ERRORS, errorResponses, json, jsonOrStream } from '../../core/http/response-schemas.ts'
import { contextInForce } from '../../core/models/context-in-force.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { type AnthropicDependencies, answerMessage, countTokens } from './answer.ts'
import { anthropicErrorBody } from './anthropic-error.ts'
import {
  anthropicErrors,
  type CountRequest,
  CountRequestSchema,
  MessageEventSchema,
  MessageSchema,
  type MessagesRequest,
  MessagesRequestSchema,
  ModelListSchema,
  ModelSchema,
  TokenCountSchema
} from './schemas.ts'

const tags = ['Anthropic']
const ERRORS = errorResponses(anthropicErrors, [...ANSWER_ERRORS, 'response_not_found'])
const EVENTS =
  'Named events: message_start, ping, content_block_start, content_block_delta, content_block_stop, message_delta, message_stop; error in the place of the last ones'

/** A route's constraint: the request is made by a client of Anthropic's. */
const CLIENT = { anthropicClient: 'yes' }

/** Anthropic's Messages API under /v1/messages, and all of it once more under /anthropic/v1. */
export function anthropicRoutes(deps: AnthropicDependencies): FastifyPluginAsync {
  return async app => {
    app.wordErrors('/v1/messages', anthropicErrorBody)
    app.wordErrors('/anthropic/', anthropicErrorBody)
    app.addHook('onRequest', async (request, reply) => {
      reply.header('request-id', request.id)
    })
    app.setErrorHandler((error, request, reply) => {
      if (isGone(error, request)) return reply.hijack()
      const failure = toCorralError(error)
      logFailure(failure, request.log)
      return reply
        .code(failure.status)
        .headers({ ...errorHeaders(failure), 'request-id': request.id })
        .send(anthropicErrorBody(failure, request))
    })
    await app.register(surface(messageRoutes(deps, 'anthropic')), { prefix: '/v1/messages' })
    await app.register(
      surface(async mount => {
        await mount.register(messageRoutes(deps, 'anthropicMounted'), { prefix: '/v1/messages' })
        modelRoutes(mount, deps, '/v1/models')
      }),
      { prefix: '/anthropic' }
    )
    // The list of models has the same address in the hosted-chat API: what clients of Anthropic's always send tells
    // who asks.
    app.addConstraintStrategy({
      name: 'anthropicClient',
      mustMatchWhenDerived: false,
      storage: () => {
        const handlers = new Map<string, never>()
        return {
          get: key => handlers.get(key as string) ?? null,
          set: (key, handler) => void handlers.set(key as string, handler as never)
        }
      },
      deriveConstraint: request => (request.headers['anthropic-version'] === undefined ? undefined : 'yes')
    })
    modelRoutes(app, deps, '/v1/models', CLIENT)
  }
}

/** Paths that are not there are told in Anthropic's words too. */
function surface(routes: FastifyPluginAsync): FastifyPluginAsync {
  return async app => {
    app.setNotFoundHandler(request => {
      throw app.noRouteError(request.method, request.url)
    })
    await app.register(routes)
  }
}

function messageRoutes(deps: AnthropicDependencies, operation: string): FastifyPluginAsync {
  return async app => {
    app.addHook('preValidation', async request => void bodyObject(request.body))
    app.post<{ Body: MessagesRequest }>(
      '',
      {
        schema: {
          summary: 'Answer a conversation',
          description: "Anthropic's Messages API. Headers anthropic-version and anthropic-beta are accepted.",
          tags,
          operationId: `${operation}CreateMessage`,
          body: MessagesRequestSchema,
          response: {
            200: jsonOrStream('The message; with "stream" its events', MessageSchema, {
              event: EVENTS,
              item: Type.Union([MessageEventSchema, anthropicErrors(ANSWER_ERRORS)])
            }),
            ...ERRORS
          }
        }
      },
      (request, reply) => answerMessage(deps, request, reply)
    )
    app.post<{ Body: CountRequest }>(
      '/count_tokens',
      {
        schema: {
          summary: "Count a prompt's tokens",
          description: 'As many as an answer to the same request reads; the model is loaded for it.',
          tags,
          operationId: `${operation}CountTokens`,
          body: CountRequestSchema,
          response: {
            200: json('How many tokens the prompt has', TokenCountSchema),
            ...ERRORS
          }
        }
      },
      (request, reply) => countTokens(deps, request.body, reply)
    )
  }
}

function modelRoutes(
  app: FastifyInstance,
  { catalog, scheduler, config }: AnthropicDependencies,
  path: string,
  constraints?: Record<string, string>
): void {
  const contextOf = (variant: Model) => contextInForce(config, variant, scheduler.running())
  const hide = constraints !== undefined
  const options = constraints ? { constraints } : {}
  app.get(
    path,
    {
      ...options,
      schema: {
        hide,
        summary: 'List models',
        tags,
        operationId: 'anthropicListModels',
        response: {
          200: json('All models, on one page', ModelListSchema),
          ...errorResponses(anthropicErrors, [], { body: false })
        }
      }
    },
    async () => modelList(catalog.list(), contextOf)
  )
  // Names hold a slash, which clients send as %2F.
  app.get<{ Params: { '*': string } }>(
    `${path}/*`,
    {
      ...options,
      schema: {
        hide,
        summary: 'One model',
        tags,
        operationId: 'anthropicGetModel',
        params: Type.Object({ '*': Type.String({ title: 'model', description: '<owner>/<name>' }) }),
        response: {
          200: json('The model', ModelSchema),
          ...errorResponses(anthropicErrors, ['invalid_model_name', 'model_not_found'], { body: false })
        }
      }
    },
    async request => {
      const variant = catalog.get(parseModelName(request.params['*']))
      return modelRecord(variant, contextOf(variant))
    }
  )
}

/** A model as Anthropic's clients list it. */
function modelRecord(variant: Model, context: number) {
  return {
    type: 'model' as const,
    id: variant.publicName,
    display_name: variant.publicName,
    created_at: variant.modifiedAt,
    max_input_tokens: context
  }
}

/** All of them on one page. */
function modelList(variants: readonly Model[], contextOf: (variant: Model) => number) {
  const data = variants.map(variant => modelRecord(variant, contextOf(variant)))
  return { data, has_more: false, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null }
}
