import type { IncomingMessage } from 'node:http'
import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import {
  ANSWER_ERRORS,
  CorralError,
  catalogFor,
  clientError,
  clientSignal,
  defaultMode,
  type Engine,
  type EngineFields,
  isAllowed,
  isObject,
  json,
  MODEL_ERRORS,
  type Model,
  parseRequestedName,
  type RunningModel,
  reroute,
  sendErrors,
  version,
  WITH_BODY
} from '../../../core/plugins/public-api.ts'
import { completionRoutes } from './completion-routes.ts'
import { llamaErrorBody, llamaRoute, llamaRouter } from './llama-error.ts'
import { type LlamaDependencies, modelControlRoutes } from './model-control-routes.ts'
import * as schemas from './schemas.ts'

const SAME: [method: 'GET' | 'POST', path: string, as: string, operationId: string, summary: string][] = [
  ['GET', '/models', '/v1/models', 'llamaModels', 'List models with their states'],
  ['POST', '/chat/completions', '/v1/chat/completions', 'llamaChat', 'Answer a conversation'],
  [
    'POST',
    '/chat/completions/input_tokens',
    '/v1/chat/completions/input_tokens',
    'llamaChatTokens',
    'Count the tokens of a conversation'
  ],
  ['POST', '/responses', '/v1/responses', 'llamaResponse', 'Answer an input'],
  ['POST', '/apply-template', '/v1/chat/completions/prompt', 'llamaPrompt', 'Show the prompt of a conversation'],
  ['POST', '/rerank', '/v1/rerank', 'llamaRerank', 'Rank documents by relevance to a query'],
  ['POST', '/reranking', '/v1/reranking', 'llamaReranking', 'Rank documents by relevance to a query'],
  ['POST', '/tokenize', '/v1/tokenize', 'llamaTokenize', 'Split a text into tokens'],
  ['POST', '/detokenize', '/v1/detokenize', 'llamaDetokenize', 'Turn tokens into text']
]

export function llamaRoutes(app: FastifyInstance, deps: LlamaDependencies, mark: (request: IncomingMessage) => void) {
  sendErrors(app, llamaErrorBody)
  app.addHook('preClose', async () => deps.feed.close())
  rerouted(app, mark)
  propsRoutes(app, deps)
  modelControlRoutes(app, deps)
  completionRoutes(app, deps)
  resumeRoutes(app)
}

/** Routes requests to their /v1 equivalents. The second routing logs them. */
function rerouted(app: FastifyInstance, mark: (request: IncomingMessage) => void): void {
  for (const [method, path, as, operationId, summary] of SAME) {
    const { schema, config } = llamaRoute('llama-server', operationId, summary, {
      description: `The same as ${method} ${as}, with errors in llama-server's shape.`,
      response: json(`As ${as}`, Type.Unknown()),
      errors: method === 'GET' ? ['invalid_request'] : [...ANSWER_ERRORS, ...WITH_BODY]
    })
    reroute(app, { method, url: path, as, config, schema }, mark)
  }
}

/** Renders errors of rerouted requests in llama-server's shape. `hooks` must be registered on the application. */
export function reroutedErrors() {
  const marked = new WeakSet<IncomingMessage>()
  return {
    mark: (request: IncomingMessage) => void marked.add(request),
    hooks: async (app: FastifyInstance) => {
      app.addHook('preSerialization', async (request, _reply, payload) => {
        const { failure } = request.record
        return failure && marked.has(request.raw) ? llamaErrorBody(clientError(failure, request)) : payload
      })
    }
  }
}

function propsRoutes(app: FastifyInstance, deps: LlamaDependencies): void {
  const route = llamaRouter(app)
  const { scheduler, catalog } = deps
  for (const [path, id] of Object.entries({ '/health': 'getHealthAsLlamaServer', '/v1/health': 'getHealthOfV1' })) {
    route(`GET ${path}`, id, "Check that corral is running, as llama-server's clients do", {
      role: 'anyone',
      response: json('Running', schemas.HealthSchema),
      handler: async () => ({ status: 'ok', ...(app.drain.since && { draining: true }) })
    })
  }
  route('GET /props', 'llamaProps', 'Show properties of the server or of one model', {
    querystring: schemas.PropsQuery,
    response: json('The properties', schemas.PropsSchema),
    errors: [...MODEL_ERRORS, 'model_not_loaded', 'forbidden_model'],
    handler: async ({ query, caller }, reply) => {
      if (!query.model) return routerProps(scheduler.stats().maxLoaded)
      const { variant, lease } = deps.answers.read({ model: query.model }, caller)
      const running = findRunning(deps, variant)
      if (running) return await modelProps(running.engine, variant, clientSignal(reply))
      if (/^(false|0|no|off)$/i.test(query.autoload ?? '')) throw notLoaded(variant)
      const question = {
        operation: 'tokens',
        body: {},
        lease: { ...lease, mode: defaultMode(variant), loadOnly: true }
      } as const
      return await deps.answers.once(reply, question, ({ engine, signal }) => modelProps(engine, variant, signal))
    }
  })
  route('GET /slots', 'llamaSlots', 'Show the slots of loaded models', {
    querystring: schemas.ModelQuery,
    response: json('The slots', Type.Array(schemas.SlotSchema)),
    errors: ['invalid_model_name', 'model_not_found', 'model_not_loaded', 'forbidden_model'],
    handler: async ({ query, caller }, reply) => {
      const signal = clientSignal(reply)
      if (!query.model) {
        const seen = scheduler.running().filter(({ variant }) => isAllowed(caller.models, variant))
        return (await Promise.all(seen.map(one => listSlots(one, signal)))).flat()
      }
      const variant = catalogFor(catalog, caller).get(parseRequestedName(query.model))
      const first = findRunning(deps, variant)
      if (!first) throw notLoaded(variant)
      // Several nodes of a cluster may have it in memory.
      const all = scheduler.running().filter(({ variant: { key }, mode }) => key === variant.key && mode === first.mode)
      const slots = (await Promise.all(all.map(one => listSlots(one, signal)))).flat()
      return slots.map((slot, id) => ({ ...slot, id }))
    }
  })
  route('GET /tools', 'llamaTools', 'List the tools that the server runs for models', {
    response: json('None', Type.Array(Type.Never())),
    handler: async () => []
  })
}

function findRunning({ scheduler }: LlamaDependencies, { key }: Model): RunningModel | undefined {
  const own = scheduler.running().filter(({ variant }) => variant.key === key)
  return own.find(({ mode }) => mode === 'chat') ?? own[0]
}

function notLoaded({ publicName }: Model): CorralError {
  const message = `The model "${publicName}" is not loaded. Load it with POST /models/load, or send any request that uses it.`
  return new CorralError('model_not_loaded', message, { param: 'model' })
}

const BUILD_INFO = `corral-${version}`

function routerProps(maxLoaded: number): Static<typeof schemas.PropsSchema> {
  return {
    role: 'router',
    max_instances: maxLoaded,
    models_autoload: true,
    model_alias: 'corral',
    model_path: 'none',
    default_generation_settings: { params: {}, n_ctx: 0 },
    ui_settings: {},
    build_info: BUILD_INFO,
    cors_proxy_enabled: false
  }
}

async function modelProps(engine: Engine, variant: Model, signal: AbortSignal) {
  const own = (await engine.properties?.({ signal })) ?? {}
  const { capabilities, chatTemplate = '' } = variant.metadata
  return {
    build_info: BUILD_INFO,
    ui_settings: {},
    total_slots: engine.slots,
    chat_template: variant.defaults?.template ?? chatTemplate,
    ...own,
    // The engine serves no page, but llama.cpp's page hides models that report this.
    ui: true,
    default_generation_settings: {
      params: {},
      ...(isObject(own.default_generation_settings) && own.default_generation_settings),
      n_ctx: engine.contextSize
    },
    model_alias: variant.publicName,
    model_path: variant.publicName,
    modalities: {
      vision: capabilities.includes('vision'),
      audio: capabilities.includes('audio'),
      video: false,
      ...(isObject(own.modalities) && own.modalities)
    }
  }
}

/** Returns the slots of an engine. If the engine does not report them, there is one busy slot per running request. */
async function listSlots({ engine, variant, running }: RunningModel, signal: AbortSignal): Promise<EngineFields[]> {
  const states =
    (await engine.slotStates?.({ signal })) ??
    Array.from({ length: engine.slots }, (_, id) => ({ id, n_ctx: engine.contextSize, is_processing: id < running }))
  return states.map(state => ({ ...state, model: variant.publicName }))
}

function resumeRoutes(app: FastifyInstance): void {
  const route = llamaRouter(app)
  route('GET /v1/stream', 'llamaStream', 'Continue the stream of a conversation', {
    querystring: schemas.ConversationQuery,
    response: { description: 'The rest of the stream', content: { 'text/event-stream': { schema: Type.String() } } },
    errors: ['stream_not_found', 'invalid_request'],
    handler: (request, reply) => {
      const { conv_id, from = '0' } = request.query
      const stream = app.resumable.ofConversation(request, conv_id)
      if (!stream)
        throw new CorralError('stream_not_found', 'The stream was not found or has expired. Send the request again.')
      stream.resume(reply, { from: Number(from) })
    }
  })
  route('DELETE /v1/stream', 'llamaEndStream', 'End the answer to a conversation', {
    querystring: schemas.ConversationQuery,
    response: { 204: { description: 'The answer has ended', content: {} } },
    errors: ['invalid_request'],
    handler: async (request, reply) => {
      app.resumable.ofConversation(request, request.query.conv_id)?.cancel()
      return await reply.code(204).send()
    }
  })
  route('POST /v1/streams/lookup', 'llamaLookUpStreams', 'Find the streams of conversations', {
    body: schemas.LookupRequest,
    audited: false,
    response: json('The streams that were found', Type.Array(schemas.StreamRecord)),
    handler: async request =>
      app.resumable.ofConversations(request, request.body.conversation_ids).map(stream => ({
        conversation_id: stream.conversation!,
        is_done: stream.ended,
        total_bytes: stream.length,
        started_at: seconds(stream.startedAt),
        completed_at: stream.endedAt ? seconds(stream.endedAt) : 0
      }))
  })
}

const seconds = (date: Date) => Math.floor(date.getTime() / 1000)
