import type { FastifyInstance, FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import type { ApiDependencies } from '../../../core/answers/model-request.ts'
import { contextInForce } from '../../../core/config/model-settings.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { ErrorCode } from '../../../core/errors.ts'
import { sendErrors } from '../../../core/http/application.ts'
import { bodyObject } from '../../../core/http/json-body.ts'
import { ANSWER_ERRORS, json, jsonOrStream, routesWith } from '../../../core/http/response-schemas.ts'
import { catalogFor } from '../../../core/models/allowed-models.ts'
import { anthropicRecord } from '../../../core/models/anthropic-record.ts'
import { parseRequestedName } from '../../../core/models/model-name.ts'
import { answerMessage, countTokens } from './answer.ts'
import { anthropicErrorBody } from './anthropic-error.ts'
import {
  anthropicErrors,
  CountRequest,
  Message,
  MessageEvent,
  MessagesRequest,
  ModelList,
  ModelRecord,
  TokenCount
} from './schemas.ts'

const TAG = 'Anthropic'
const ERRORS: ErrorCode[] = [...ANSWER_ERRORS, 'response_not_found']
const anthropicRoute = routesWith(anthropicErrors)

/**
 * Anthropic's Messages API under /v1/messages, and again under /anthropic/v1. The list of models at /v1/models belongs
 * to the OpenAI API. Its records also have the fields that Anthropic's clients read.
 */
export function anthropicRoutes(deps: ApiDependencies): FastifyPluginAsync {
  return async app => {
    app.wordErrors('/v1/messages', anthropicErrorBody)
    app.wordErrors('/anthropic/', anthropicErrorBody)
    app.addHook('onRequest', async (request, reply) => {
      reply.header('request-id', request.id)
    })
    sendErrors(app, anthropicErrorBody, ({ id }) => ({ 'request-id': id }))
    await app.register(withNotFound(messageRoutes(deps, 'anthropic')), { prefix: '/v1/messages' })
    await app.register(
      withNotFound(async mount => {
        await mount.register(messageRoutes(deps, 'anthropicMounted'), { prefix: '/v1/messages' })
        modelRoutes(mount, deps)
      }),
      { prefix: '/anthropic' }
    )
  }
}

/** Renders errors of unknown paths in Anthropic's format too. */
function withNotFound(routes: FastifyPluginAsync): FastifyPluginAsync {
  return async app => {
    app.setNotFoundHandler(request => {
      throw app.noRouteError(request.method, request.url)
    })
    await app.register(routes)
  }
}

function messageRoutes(deps: ApiDependencies, prefix: string): FastifyPluginAsync {
  return async app => {
    app.addHook('preValidation', async request => void bodyObject(request.body))
    app.post<{ Body: MessagesRequest }>(
      '',
      anthropicRoute(TAG, `${prefix}CreateMessage`, 'Answer a conversation', {
        description: "Anthropic's Messages API. Headers anthropic-version and anthropic-beta are accepted.",
        body: MessagesRequest,
        response: {
          200: jsonOrStream('The message; with "stream" its events', Message, {
            event:
              'Named events: message_start, ping, content_block_start, content_block_delta, content_block_stop, message_delta, message_stop; or error if it fails',
            item: Type.Union([MessageEvent, anthropicErrors(ANSWER_ERRORS)])
          })
        },
        errors: ERRORS
      }),
      (request, reply) => answerMessage(deps, request, reply)
    )
    app.post<{ Body: CountRequest }>(
      '/count_tokens',
      anthropicRoute(TAG, `${prefix}CountTokens`, "Count a prompt's tokens", {
        description: 'Counts the same tokens as an answer to the request would have. The model is loaded if necessary.',
        body: CountRequest,
        response: { 200: json('Number of tokens in the prompt', TokenCount) },
        errors: ERRORS
      }),
      (request, reply) => countTokens(deps, request.body, reply)
    )
  }
}

function modelRoutes(app: FastifyInstance, { catalog, scheduler, config }: ApiDependencies): void {
  const record = (variant: Model, id = variant.publicName): ModelRecord => ({
    id,
    ...anthropicRecord(variant, id, contextInForce(config, variant, scheduler.running()))
  })
  app.get(
    '/v1/models',
    anthropicRoute(TAG, 'anthropicListModels', 'List models', {
      response: { 200: json('All models, on one page', ModelList) }
    }),
    async ({ caller }) => {
      const models = catalogFor(catalog, caller)
      const aliases = models.aliases().map(({ alias, model }) => record(model, alias))
      const data = [...models.list().map(model => record(model)), ...aliases]
      return { data, has_more: false, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null }
    }
  )
  const params = Type.Object({ '*': Type.String({ title: 'model', description: '<owner>/<name>' }) })
  // Model names contain a slash, which clients send as %2F.
  app.get<{ Params: { '*': string } }>(
    '/v1/models/*',
    anthropicRoute(TAG, 'anthropicGetModel', 'Show a model', {
      params,
      response: { 200: json('The model', ModelRecord) },
      errors: ['invalid_model_name', 'model_not_found']
    }),
    async request => record(catalogFor(catalog, request.caller).get(parseRequestedName(request.params['*'])))
  )
}
