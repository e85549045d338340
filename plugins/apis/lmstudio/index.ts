import type { IncomingMessage } from 'node:http'
import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import {
  ANSWER_ERRORS,
  type ApiDependencies,
  apiDependencies,
  type Caller,
  catalogFor,
  type Delta,
  definePlugin,
  each,
  findListed,
  type HookedRequest,
  isObject,
  json,
  jsonOrStream,
  Loose,
  listedModels,
  loadStates,
  type Model,
  parseRequestedName,
  reroute,
  type Services,
  Timeout,
  Titled,
  useErrorFormat,
  WITH_BODY
} from '../../../core/plugins/public-api.ts'
import { errorBodyV0, errorBodyV1, studioRoute, studioRouter, studioRoutes, TAG } from './model-routes.ts'

export default definePlugin({
  name: 'api-lmstudio',
  api: 1,
  description:
    "LM Studio's REST API under /api/v0 and /api/v1: models with their states, answers with their speed. It needs api-openai",
  needs: ['catalog', 'scheduler', 'engines', 'runtimes', 'downloads', 'responses'],
  optional: true,
  options: Type.Object(
    { heartbeat: Timeout({ default: '10s', description: 'Silence after which a waiting stream sends its progress' }) },
    { restart: true }
  ),
  setup(context, { heartbeat }) {
    const scheduler = context.service('scheduler')
    const facts = new AnswerStats({ scheduler, runtimes: context.service('runtimes') })
    const deps = apiDependencies(context, () => heartbeat)
    return {
      hooks: async app => {
        app.addHook('preValidation', async ({ raw, body }) => {
          if (!facts.marked.has(raw) || !isObject(body)) return
          readTtl(body)
          // llama-server reports which stop text ended an answer only in its own format.
          if (!raw.url?.startsWith('/v1/embeddings')) body.verbose = true
        })
      },
      on: { event: (delta, request) => facts.note(delta, request), eventsOf: request => facts.wantedFor(request) },
      routes: async app => {
        const mark = (request: IncomingMessage) => void facts.marked.add(request)
        await app.register(async mount => lmStudioRoutes(mount, deps, mark), { prefix: '/api/v0' })
        await app.register(
          async mount => {
            useErrorFormat(mount, errorBodyV1)
            studioRoutes(mount, {
              ...deps,
              downloads: context.service('downloads'),
              responses: context.service('responses'),
              error: errorBodyV1,
              ended: context.signal
            })
          },
          { prefix: '/api/v1' }
        )
      }
    }
  }
})

function readTtl(body: Record<string, unknown>): void {
  const { ttl } = body
  delete body.ttl
  if (ttl !== undefined && ttl !== null) body.keep_alive ??= ttl
}

type LmStudioDependencies = Pick<ApiDependencies, 'catalog' | 'scheduler' | 'answers'>

const ModelRecord = Titled('LMStudioModel', {
  id: Type.String(),
  object: Type.Literal('model'),
  type: Type.Enum(['llm', 'vlm', 'embeddings']),
  publisher: Type.String(),
  arch: Type.String(),
  compatibility_type: Type.String({ description: 'gguf or safetensors' }),
  quantization: Type.String(),
  state: Type.Enum(['loaded', 'not-loaded']),
  max_context_length: Type.Integer({ description: 'Context size in tokens that the model was trained with' }),
  loaded_context_length: Type.Optional(Type.Integer({ description: 'Context size in tokens of the loaded model' })),
  capabilities: Type.Array(Type.String({ description: 'tool_use' }))
})

const AnswerSchema = Titled('LMStudioAnswer', {
  stats: Loose({
    ...each(Type.Number(), 'tokens_per_second', 'time_to_first_token', 'generation_time'),
    stop_reason: Type.String({
      description: 'eosFound, stopStringFound, toolCalls, maxPredictedTokensReached or contextLengthReached'
    })
  }),
  model_info: Loose({
    ...each(Type.String(), 'arch', 'quant', 'format'),
    context_length: Type.Integer()
  }),
  runtime: Loose({
    name: Type.String(),
    version: Type.Optional(Type.String()),
    supported_formats: Type.Array(Type.String())
  })
})

function lmStudioRoutes(app: FastifyInstance, deps: LmStudioDependencies, mark: (request: IncomingMessage) => void) {
  const { catalog } = deps
  const route = studioRouter(app)
  useErrorFormat(app, errorBodyV0)
  route('GET /models', 'lmStudioModels', 'List models with their states, as LM Studio does', {
    response: json('The models', Loose({ object: Type.Literal('list'), data: Type.Array(ModelRecord) })),
    handler: async ({ caller }) => {
      const toRecord = modelRecords(deps, caller)
      const data = listedModels(catalogFor(catalog, caller)).map(({ alias, model }) => toRecord(model, alias))
      return { object: 'list', data }
    }
  })
  // Model names contain a slash, which clients send literally or as %2F.
  route('GET /models/*', 'lmStudioModel', 'Show a model, as LM Studio does', {
    params: Type.Object({ '*': Type.String({ title: 'model', description: 'The id in the list' }) }),
    response: json('The model', ModelRecord),
    errors: ['invalid_model_name', 'model_not_found', 'forbidden_model'],
    handler: async ({ params, caller }) => {
      const { model, alias = model.publicName } = findListed(
        catalogFor(catalog, caller),
        parseRequestedName(params['*'])
      )
      return modelRecords(deps, caller)(model, alias)
    }
  })
  for (const [path, operationId, summary] of [
    ['/chat/completions', 'lmStudioChat', 'Answer a conversation and report the speed'],
    ['/completions', 'lmStudioCompletion', 'Continue a text and report the speed']
  ] as const) {
    const route = studioRoute(TAG, operationId, summary, {
      description: `The same as POST /v1${path}, with \`stats\`, \`model_info\` and \`runtime\` added; a stream has them in its last event before [DONE]. \`ttl\` is \`keep_alive\` in seconds.`,
      response: jsonOrStream('The answer', AnswerSchema, {
        event: `The events of POST /v1${path}`,
        item: Type.Unknown(),
        end: '[DONE]'
      }),
      errors: [...ANSWER_ERRORS, ...WITH_BODY]
    })
    reroute(app, { method: 'POST', url: path, as: `/v1${path}`, ...route }, mark)
  }
  const embeddings = studioRoute(TAG, 'lmStudioEmbeddings', 'Create embeddings of texts', {
    description: 'The same as POST /v1/embeddings.',
    response: json('As /v1/embeddings', Type.Unknown()),
    errors: [...ANSWER_ERRORS, ...WITH_BODY]
  })
  reroute(app, { method: 'POST', url: '/embeddings', as: '/v1/embeddings', ...embeddings }, mark)
}

function modelRecords({ scheduler, answers }: LmStudioDependencies, caller: Caller) {
  const getState = loadStates(scheduler)
  const getLimits = answers.limits(caller)
  return (model: Model, id: string): Static<typeof ModelRecord> => {
    const { capabilities, architecture = 'unknown', contextLength, quantization } = model.metadata
    const isLoaded = getState(model).value === 'loaded'
    const context = getLimits(model).context
    const isText = capabilities.includes('completion')
    return {
      id,
      object: 'model',
      type: !isText ? 'embeddings' : capabilities.includes('vision') ? 'vlm' : 'llm',
      publisher: model.model.owner,
      arch: architecture,
      compatibility_type: model.format,
      quantization: quantization ?? model.label,
      state: isLoaded ? 'loaded' : 'not-loaded',
      max_context_length: contextLength ?? context,
      ...(isLoaded && { loaded_context_length: context }),
      capabilities: capabilities.includes('tools') ? ['tool_use'] : []
    }
  }
}

/**
 * Adds LM Studio's fields to answers of `/v1` that were requested under `/api/v0`. In a stream they are in the last
 * event with content, or in the event with the usage.
 */
class AnswerStats {
  readonly #deps: Pick<Services, 'scheduler' | 'runtimes'>
  /** The requests that are passed to /v1. */
  readonly marked = new WeakSet<IncomingMessage>()
  readonly #firstTokens = new WeakMap<HookedRequest, number>()

  constructor(deps: Pick<Services, 'scheduler' | 'runtimes'>) {
    this.#deps = deps
  }

  wantedFor({ reply }: HookedRequest): boolean {
    return reply !== undefined && this.marked.has(reply.request.raw)
  }

  note(delta: Delta, request: HookedRequest): void {
    if (!this.wantedFor(request)) return
    const { content, thinking, toolCalls, finish, extra } = delta
    if ((content || thinking || toolCalls) && !this.#firstTokens.has(request)) {
      this.#firstTokens.set(request, performance.now())
    }
    if (!finish) return
    const { system_fingerprint } = extra ?? {}
    delta.extra = { ...(system_fingerprint !== undefined && { system_fingerprint }), ...this.#facts(delta, request) }
  }

  #facts(delta: Delta, request: HookedRequest) {
    const { record } = request.reply!.request
    const { variant } = record.use!
    const running = this.#deps.scheduler.running().find(model => model.variant.key === variant.key)
    const build = running?.engine.provider === 'llama-server' ? this.#deps.runtimes.current() : undefined
    const contextSize = running?.engine.contextSize ?? variant.metadata.contextLength ?? 0
    const now = performance.now()
    const first = this.#firstTokens.get(request) ?? now
    const generation = (delta.timing?.generation ?? now - first) / 1000
    const tokens = delta.usage?.completionTokens ?? 0
    return {
      stats: {
        tokens_per_second: generation > 0 ? tokens / generation : 0,
        // Loading the model and waiting for a slot do not count as the model's time.
        time_to_first_token: Math.max(0, first - (record.leased ?? record.began)) / 1000,
        generation_time: generation,
        stop_reason: stopReason(delta, contextSize)
      },
      model_info: {
        arch: variant.metadata.architecture ?? 'unknown',
        quant: variant.metadata.quantization ?? variant.label,
        format: variant.format,
        context_length: contextSize
      },
      runtime: {
        name: build ? `llama.cpp-${build.kind}` : (running?.engine.provider ?? 'unknown'),
        ...(build && { version: build.version }),
        supported_formats: build ? ['gguf'] : [variant.format]
      }
    }
  }
}

function stopReason({ finish, stopSequence, usage }: Delta, contextSize: number): string {
  if (finish === 'tool_calls') return 'toolCalls'
  if (finish === 'length') {
    const used = usage ? usage.promptTokens + usage.completionTokens : 0
    return contextSize > 0 && used >= contextSize ? 'contextLengthReached' : 'maxPredictedTokensReached'
  }
  return stopSequence === undefined ? 'eosFound' : 'stopStringFound'
}
