import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import type { FastifyInstance, FastifyReply } from 'fastify'
import { Type } from 'typebox'
import { reportIgnoredTools } from '../../../core/answers/answer-headers.ts'
import { apiDependencies } from '../../../core/answers/api-dependencies.ts'
import { requireCall } from '../../../core/answers/engine-call.ts'
import { withModelDefaults } from '../../../core/answers/engine-fields.ts'
import { eventChannel, namedEvents } from '../../../core/answers/event-channel.ts'
import { withUsableMedia } from '../../../core/answers/media-parts.ts'
import { type ConfiguredApi, readModelRequest } from '../../../core/answers/model-request.ts'
import type { Preparation, Question } from '../../../core/answers/question.ts'
import { withReadableMedia } from '../../../core/answers/readable-media.ts'
import { getRequestLimits, growthLimit, modelLimits } from '../../../core/answers/request-limits.ts'
import { Timeout } from '../../../core/config/core-schema.ts'
import type { Caller } from '../../../core/contracts/callers.ts'
import type { EngineFields } from '../../../core/contracts/engines.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { CorralError, ErrorCode } from '../../../core/errors.ts'
import { contextMessage } from '../../../core/http/context-message.ts'
import { useErrorFormat } from '../../../core/http/error-format.ts'
import { errorTypes } from '../../../core/http/openai-error.ts'
import { ANSWER_ERRORS, json, jsonOrStream, routerWith } from '../../../core/http/response-schemas.ts'
import { catalogFor, listedModels } from '../../../core/models/allowed-models.ts'
import { anthropicRecord } from '../../../core/models/anthropic-record.ts'
import { parseRequestedName } from '../../../core/models/model-name.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { ClearedSteps, clearedContext, manageContext } from './context-management.ts'
import { MessageEvents, type MessageHead } from './message-events.ts'
import { engineRequest } from './message-request.ts'
import { takeHostedTools } from './message-tools.ts'
import * as schemas from './schemas.ts'

export default definePlugin({
  name: 'api-anthropic',
  api: 1,
  description: "Anthropic's Messages API: /v1/messages, and all of it again under /anthropic/v1",
  needs: ['catalog', 'scheduler', 'engines'],
  optional: true,
  options: Type.Object({
    heartbeat: Timeout({ default: '10s', description: 'Silence after which a stream sends a ping' })
  }),
  setup(context, options) {
    let { heartbeat } = options
    const steps = new ClearedSteps(join(context.paths.cache, 'cleared-conversations.json'), context.log)
    const deps = { ...apiDependencies(context, () => heartbeat), config: context.config, steps }
    return {
      routes: app => anthropicRoutes(app, deps),
      stop: () => steps.close(),
      reload(next: typeof options) {
        heartbeat = next.heartbeat
      }
    }
  }
})

type AnthropicDependencies = ConfiguredApi & { steps: ClearedSteps }

const ERRORS: ErrorCode[] = [...ANSWER_ERRORS, 'response_not_found']
const anthropicRouter = routerWith(schemas.anthropicErrors)

/** Serves the Messages API under /v1/messages and /anthropic/v1. The OpenAI API lists models at /v1/models. */
async function anthropicRoutes(app: FastifyInstance, deps: AnthropicDependencies): Promise<void> {
  app.addHook('onRequest', async (request, reply) => void reply.header('request-id', request.id))
  const mount = (prefix: string, routes: (scope: FastifyInstance) => void) =>
    app.register(
      async scope => {
        useErrorFormat(scope, anthropicErrorBody, ({ id }) => ({ 'request-id': id }))
        routes(scope)
      },
      { prefix }
    )
  await mount('/v1/messages', scope => messageRoutes(scope, deps, '', 'anthropic'))
  await mount('/anthropic', scope => {
    messageRoutes(scope, deps, '/v1/messages', 'anthropicMounted')
    modelRoutes(scope, deps)
  })
}

function messageRoutes(app: FastifyInstance, deps: AnthropicDependencies, path: string, ids: string): void {
  const route = anthropicRouter(app, 'Anthropic')
  route(`POST ${path}`, `${ids}CreateMessage`, 'Answer a conversation', {
    body: schemas.MessagesRequest,
    response: jsonOrStream('The message; with "stream" its events', schemas.Message, {
      event:
        'Named events: message_start, ping, content_block_start, content_block_delta, content_block_stop, message_delta, message_stop; or error if it fails',
      item: Type.Union([schemas.MessageEvent, schemas.anthropicErrors(ANSWER_ERRORS)])
    }),
    errors: ERRORS,
    handler: ({ body }, reply) => answerMessage(deps, body, reply)
  })
  route(`POST ${path}/count_tokens`, `${ids}CountTokens`, "Count a prompt's tokens", {
    body: schemas.CountRequest,
    response: json('Number of tokens in the prompt', schemas.TokenCount),
    errors: ERRORS,
    handler: ({ body }, reply) => countTokens(deps, body, reply)
  })
}

function modelRoutes(app: FastifyInstance, { catalog, scheduler, config }: ConfiguredApi): void {
  const route = anthropicRouter(app, 'Anthropic')
  const recordsFor = (caller: Caller) => {
    const getLimits = modelLimits(config, scheduler.running(), caller)
    return (variant: Model, id = variant.publicName): schemas.ModelRecord => ({
      id,
      ...anthropicRecord(variant, id, getLimits(variant))
    })
  }
  route('GET /v1/models', 'anthropicListModels', 'List models', {
    response: json('All models, on one page', schemas.ModelList),
    handler: async ({ caller }) => {
      const record = recordsFor(caller)
      const data = listedModels(catalogFor(catalog, caller)).map(({ alias, model }) => record(model, alias))
      return { data, has_more: false, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null }
    }
  })
  const params = Type.Object({ '*': Type.String({ title: 'model', description: '<owner>/<name>' }) })
  // Model names contain a slash, which clients send as %2F.
  route('GET /v1/models/*', 'anthropicGetModel', 'Show a model', {
    params,
    response: json('The model', schemas.ModelRecord),
    errors: ['invalid_model_name', 'model_not_found'],
    handler: async ({ caller, params }) =>
      recordsFor(caller)(catalogFor(catalog, caller).get(parseRequestedName(params['*'])))
  })
}

/** Builds the engine's request. @throws CorralError naming the wrong field, before a model is loaded */
function toQuestion(
  deps: ConfiguredApi,
  request: schemas.CountRequest & Partial<schemas.MessagesRequest>,
  reply: FastifyReply
) {
  const { variant, settings, sampling, lease, overflow } = readModelRequest(deps, request, reply.request.caller)
  const host = deps.answers.tools()
  const hosted = host && takeHostedTools(request, host)
  const { body, places, ignored, ...named } = engineRequest(hosted?.request ?? request, sampling)
  reportIgnoredTools(reply, ignored)
  const newest = `messages.${request.messages.findLastIndex(({ role }) => role === 'user')}.`
  const usable = withUsableMedia(body.messages, variant, settings.engine, (message, part) => {
    const place = places[message]![part]!
    return place.startsWith(newest) ? place : undefined
  })
  const messages = withModelDefaults(usable, variant.defaults)
  const stopText = Boolean(request.stop_sequences?.length)
  const question = {
    operation: 'chat',
    body: { ...body, messages },
    lease,
    variant,
    overflow,
    stopText,
    tools: hosted?.tools
  } satisfies Question
  return { question, ...named }
}

async function answerMessage(deps: AnthropicDependencies, body: schemas.MessagesRequest, reply: FastifyReply) {
  const { caller } = reply.request
  const { question, ...named } = toQuestion(deps, body, reply)
  const head: MessageHead = {
    id: `msg_${randomBytes(12).toString('hex')}`,
    model: body.model,
    stopSequences: body.stop_sequences ?? [],
    omitThinking: body.thinking?.display === 'omitted',
    ...named,
    oneCall: body.tool_choice?.disable_parallel_tool_use === true
  }
  const { variant } = question
  const { max_tokens: most } = getRequestLimits(deps.config, variant, caller)
  const manage = (first: Preparation) =>
    manageContext(body, first, { model: variant.publicName, owner: caller.owner, steps: deps.steps }, most)
  if (!body.stream) {
    const events = await deps.answers.whole(reply, question, async (_, first) =>
      new MessageEvents(head).manage(await manage(first))
    )
    return events.whole()
  }
  let writer = new MessageEvents(head)
  const fail = (error: CorralError) => namedEvents([anthropicErrorBody(error, reply.request)])
  const channel = eventChannel(deps.heartbeat(), fail, () => namedEvents(writer.beat()))
  channel.contentType += '; charset=utf-8'
  await deps.answers.stream(reply, question, channel, async (_, first) => {
    const managed = await manage(first)
    // Created after the summary, because heartbeats may have begun the message by then.
    const events = new MessageEvents(head, writer).manage(managed)
    writer = events
    return {
      body: events.body,
      add: deltas => namedEvents(events.add(deltas)),
      end: () => namedEvents(events.end())
    }
  })
  return undefined
}

/** Counts a prompt after its old parts were cleared. Summaries are only written for answers. */
async function countTokens(deps: AnthropicDependencies, request: schemas.CountRequest, reply: FastifyReply) {
  const { question } = toQuestion(deps, request, reply)
  const asked = { ...question, operation: 'tokens' as const }
  return await deps.answers.once(reply, asked, async (leased, body) => {
    const call = requireCall(leased, 'countTokens')
    const count = (each: EngineFields) => withReadableMedia(leased, each, readable => call(readable, leased))
    const original = await count(body)
    if (!request.context_management) return { input_tokens: original }
    const { variant } = question
    const { caller } = reply.request
    const window = growthLimit(deps.config, variant, caller) ?? leased.engine.contextSize
    const setting = { model: variant.publicName, owner: caller.owner, steps: deps.steps, window }
    const { context } = await clearedContext(request, { body, count }, setting)
    const tokens = context.tokens ?? original
    return { input_tokens: tokens, context_management: { original_input_tokens: original } }
  })
}

const TYPES = { 413: 'request_too_large', 429: 'rate_limit_error', 504: 'timeout_error' }
const CODES = { queue_full: 'overloaded_error', too_busy: 'overloaded_error', hub_rate_limited: 'rate_limit_error' }
const errorType = errorTypes({ ...TYPES, ...CODES }, 'api_error')

export function anthropicErrorBody(error: CorralError, { id }: { id: string }) {
  const counted = (tokens: unknown, most: unknown) => `prompt is too long: ${tokens} tokens > ${most} maximum.`
  return {
    type: 'error',
    error: {
      type: errorType(error),
      message: contextMessage(error, counted, 'prompt is too long'),
      code: error.code,
      ...(error.param !== undefined && { param: error.param }),
      // The SDKs expose these as `details` and `errorCode` of their exceptions.
      details: { error_code: error.code, ...error.details }
    },
    request_id: id
  }
}
