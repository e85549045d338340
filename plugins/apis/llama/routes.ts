import type { IncomingMessage } from 'node:http'
import type { FastifyBaseLogger, FastifyInstance, FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import { type Static, type TSchema, Type } from 'typebox'
import { embedChunked } from '../../../core/answers/chunked.ts'
import { type Vector, vectorReply } from '../../../core/answers/embedding.ts'
import { type ApiDependencies, passedFields, readModelRequest } from '../../../core/answers/model-request.ts'
import { askOnce, type Channel, type Question, streamedAnswer, wholeAnswer } from '../../../core/answers/pipeline.ts'
import type { Downloads, PullRecord } from '../../../core/contracts/downloads.ts'
import type { Engine, EngineFields, EngineMode } from '../../../core/contracts/engines.ts'
import type { RunningModel } from '../../../core/contracts/leases.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { Storage } from '../../../core/contracts/storage.ts'
import { CorralError, type ErrorCode, errorMessage } from '../../../core/errors.ts'
import { sendErrors } from '../../../core/http/application.ts'
import { clientSignal } from '../../../core/http/client-gone.ts'
import { bodyObject } from '../../../core/http/json-body.ts'
import { openReplyStream } from '../../../core/http/reply-stream.ts'
import { reroute } from '../../../core/http/reroute.ts'
import {
  ANSWER_ERRORS,
  DOWNLOAD_ERRORS,
  FILE_ERRORS,
  json,
  jsonOrStream,
  MODEL_ERRORS,
  WITH_BODY
} from '../../../core/http/response-schemas.ts'
import { clientError } from '../../../core/http/server-folders.ts'
import { catalogFor, isAllowed } from '../../../core/models/allowed-models.ts'
import { loadStates } from '../../../core/models/load-state.ts'
import { deleteModel, listedVariant, nameToDelete } from '../../../core/models/model-deletion.ts'
import { parseRequestedName } from '../../../core/models/model-name.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { version } from '../../../core/system/package-info.ts'
import { CompletionWriter } from './completion-writer.ts'
import { llamaErrorBody, llamaErrorEvent, llamaRoute } from './llama-error.ts'
import type { ModelFeed } from './model-feed.ts'
import {
  CompletionEvent,
  CompletionRequest,
  ConversationQuery,
  DoneSchema,
  EmbeddingRequest,
  FeedEventSchema,
  HealthSchema,
  InfillRequest,
  LookupRequest,
  ModelQuery,
  NamedRequest,
  PropsQuery,
  PropsSchema,
  SlotSchema,
  StreamRecord,
  VectorSchema
} from './schemas.ts'

const TAG = 'llama-server'

export interface LlamaDependencies extends ApiDependencies {
  downloads: Downloads
  storage: Pick<Storage, 'find' | 'remove'>
  feed: ModelFeed
  log: Pick<FastifyBaseLogger, 'warn'>
  /** Aborted when the server stops. */
  ended: AbortSignal
}

/** Routes that are the same as routes of the OpenAI API. */
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

/**
 * Routes at the same paths as llama-server's router. @param markRerouted called with each request that is passed to /v1
 */
export function llamaRoutes(
  deps: LlamaDependencies,
  markRerouted: (request: IncomingMessage) => void
): FastifyPluginAsync {
  return async app => {
    sendErrors(app, llamaErrorBody)
    app.addHook('preValidation', async request => {
      if (request.routeOptions.schema?.body) bodyObject(request.body)
    })
    app.addHook('preClose', async () => deps.feed.close())
    rerouted(app, markRerouted)
    serverRoutes(app, deps)
    modelRoutes(app, deps)
    textRoutes(app, deps)
    conversationRoutes(app)
  }
}

/** Routes requests to their /v1 equivalents. The second routing logs them. */
function rerouted(app: FastifyInstance, mark: (request: IncomingMessage) => void): void {
  for (const [method, path, as, operationId, summary] of SAME) {
    const { schema, config } = llamaRoute(TAG, operationId, summary, {
      description: `The same as ${method} ${as}, with errors in llama-server's shape.`,
      response: { 200: json(`As ${as}`, Type.Unknown()) },
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

/** Routes that describe the server and the engines. */
function serverRoutes(app: FastifyInstance, deps: LlamaDependencies): void {
  const { scheduler, catalog } = deps
  for (const [path, operationId] of [
    ['/health', 'getHealthAsLlamaServer'],
    ['/v1/health', 'getHealthOfV1']
  ] as const) {
    app.get(
      path,
      llamaRoute(TAG, operationId, "Check that corral is running, as llama-server's clients do", {
        role: 'anyone',
        response: { 200: json('Running', HealthSchema) }
      }),
      async () => ({ status: 'ok', ...(app.drain.since && { draining: true }) })
    )
  }
  app.get<{ Querystring: Static<typeof PropsQuery> }>(
    '/props',
    llamaRoute(TAG, 'llamaProps', 'Show properties of the server or of one model', {
      description:
        'Without a model: the properties of the router. With a model: those of its engine. The model is loaded if necessary, unless `autoload` is false.',
      querystring: PropsQuery,
      response: { 200: json('The properties', PropsSchema) },
      errors: [...MODEL_ERRORS, 'model_not_loaded', 'forbidden_model']
    }),
    async ({ query, caller }, reply) => {
      if (!query.model) return routerProps(scheduler.stats().maxLoaded)
      const { variant, lease } = readModelRequest(deps, { model: query.model }, caller)
      const running = findRunning(deps, variant)
      if (running) return await modelProps(running.engine, variant, clientSignal(reply))
      if (/^(false|0|no|off)$/i.test(query.autoload ?? '')) throw notLoaded(variant)
      const question = {
        operation: 'tokens',
        body: {},
        lease: { ...lease, mode: anyMode(variant), loadOnly: true }
      } as const
      return await askOnce(deps, reply, question, ({ engine, signal }) => modelProps(engine, variant, signal))
    }
  )
  app.get<{ Querystring: Static<typeof ModelQuery> }>(
    '/slots',
    llamaRoute(TAG, 'llamaSlots', 'Show the slots of loaded models', {
      description: 'Prompts and answers are never included.',
      querystring: ModelQuery,
      response: { 200: json('The slots', Type.Array(SlotSchema)) },
      errors: ['invalid_model_name', 'model_not_found', 'model_not_loaded', 'forbidden_model']
    }),
    async ({ query, caller }, reply) => {
      const signal = clientSignal(reply)
      if (!query.model) {
        const seen = scheduler.running().filter(({ variant }) => isAllowed(caller.models, variant))
        return (await Promise.all(seen.map(one => listSlots(one, signal)))).flat()
      }
      const variant = catalogFor(catalog, caller).get(parseRequestedName(query.model))
      const running = findRunning(deps, variant)
      if (!running) throw notLoaded(variant)
      return await listSlots(running, signal)
    }
  )
  app.get(
    '/tools',
    llamaRoute(TAG, 'llamaTools', 'List the tools that the server runs for models', {
      description: 'Always empty: models cannot access this machine.',
      response: { 200: json('None', Type.Array(Type.Never())) }
    }),
    async () => []
  )
}

/** Errors that resolving a model at the hubs can cause. */
const HUB_ERRORS: ErrorCode[] = ['address_not_allowed', 'hub_forbidden', 'repo_not_found', 'model_exists']

/** Finds the unfinished download of this name, unless the same model is already in memory. */
function downloadToCancel({ catalog, scheduler, feed }: LlamaDependencies, name: string): PullRecord | undefined {
  const download = feed.findDownload(name)
  const variant = download && catalog.find(parseRequestedName(download.model))
  return variant && loadStates(scheduler)(variant).value !== 'unloaded' ? undefined : download
}

/** Routes that load, unload, download and delete models, and the feed of these events. */
function modelRoutes(app: FastifyInstance, deps: LlamaDependencies): void {
  const { scheduler, catalog, downloads, feed, log, ended } = deps
  app.post<{ Body: Static<typeof NamedRequest> }>(
    '/models/load',
    llamaRoute(TAG, 'llamaLoad', 'Start loading a model', {
      role: 'operator',
      description: '`GET /models/sse` reports when the model is loaded, or why loading failed.',
      body: NamedRequest,
      response: { 200: json('Loading has started', DoneSchema) },
      errors: ['invalid_model_name', 'model_not_found', 'forbidden_model']
    }),
    async ({ body, caller }) => {
      const { variant, lease } = readModelRequest(deps, body, caller)
      if (loadStates(scheduler)(variant).value !== 'unloaded') {
        throw new CorralError('invalid_request', `The model "${variant.publicName}" is already loaded or loading.`, {
          param: 'model'
        })
      }
      const { turn, owner, bounds } = caller
      scheduler
        .lease({
          ...lease,
          model: { ...variant.model, variant: variant.label },
          turn,
          owner,
          bounds,
          mode: anyMode(variant),
          loadOnly: true,
          signal: ended
        })
        .then(taken => taken.release())
        // The client learns of the failure from the feed.
        .catch(error => log.warn(`${variant.publicName} could not be loaded: ${errorMessage(error)}`))
        .finally(() => feed.look())
      feed.look()
      return { success: true }
    }
  )
  app.post<{ Body: Static<typeof NamedRequest> }>(
    '/models/unload',
    llamaRoute(TAG, 'llamaUnload', 'Unload a model', {
      role: 'operator',
      description:
        'Running requests end with `model_stopped`. If the model is being downloaded, the download is cancelled.',
      body: NamedRequest,
      response: { 200: json('The model is unloaded', DoneSchema) },
      errors: ['invalid_model_name', 'model_not_found', 'model_not_loaded', 'forbidden_model']
    }),
    async ({ body, caller }) => {
      const name = body.model ?? body.name
      const download = name ? downloadToCancel(deps, name) : undefined
      if (download) await downloads.cancel(download.id)
      else {
        const { model, label } = catalogFor(catalog, caller).get(parseRequestedName(name))
        await scheduler.stop({ ...model, variant: label })
      }
      feed.look()
      return { success: true }
    }
  )
  app.post<{ Body: Static<typeof NamedRequest> }>(
    '/models',
    llamaRoute(TAG, 'llamaDownload', 'Start downloading a model', {
      role: 'operator',
      description:
        '`GET /models/sse` reports progress and the result under the name in this request; `POST /models/unload` cancels the download. The download continues if the client disconnects.',
      body: NamedRequest,
      response: { 200: json('The download has started', DoneSchema) },
      errors: [...FILE_ERRORS, ...HUB_ERRORS, ...DOWNLOAD_ERRORS]
    }),
    async ({ body, caller }, reply) => {
      const name = body.model ?? body.name
      if (!name) parseRequestedName(name)
      const model = name!
      const plan = await downloads.plan({ model, caller }, { signal: clientSignal(reply) })
      const pull = await downloads.pull(plan, { detached: true, caller })
      if (!pull) {
        throw new CorralError('invalid_request', `The model ${JSON.stringify(model)} is already stored here.`, {
          param: 'model'
        })
      }
      feed.downloading(pull.record().id, model)
      return { success: true }
    }
  )
  app.delete<{ Querystring: Static<typeof ModelQuery> }>(
    '/models',
    llamaRoute(TAG, 'llamaDelete', 'Delete a model from disk', {
      role: 'operator',
      description:
        'Deletes the model that the list shows under this name. Its running requests and its download end. `GET /models/sse` reports `model_remove`.',
      querystring: ModelQuery,
      response: { 200: json('The model is deleted', DoneSchema) },
      errors: [...FILE_ERRORS, 'forbidden_model']
    }),
    async ({ query, caller }) => {
      const models = catalogFor(catalog, caller)
      const name = nameToDelete(models, parseRequestedName(query.model))
      await deleteModel(deps, listedVariant(models, name))
      feed.look()
      return { success: true }
    }
  )
  const events = llamaRoute(TAG, 'llamaModelEvents', 'Follow changes of models', {
    description:
      'Events `data: {"model","event","data"}`: `model_status` (`data.status` unloaded, loading or loaded), `models_reload` and `model_remove`; for operators also `download_progress`, `download_finished` and `download_failed`. The stream ends when the client disconnects.',
    response: {
      200: {
        description: 'The events',
        content: { 'text/event-stream': { schema: Type.String({ contentSchema: FeedEventSchema }) } }
      }
    },
    errors: ['rate_limited']
  })
  // A HEAD request has no body, so nothing would end its stream.
  app.get('/models/sse', { ...events, exposeHeadRoute: false }, async ({ caller }, reply) => {
    const signal = clientSignal(reply)
    const stream = openReplyStream(reply, llamaChannel(deps))
    stream.status = 'listening'
    let forget = () => {}
    try {
      await new Promise<void>((resolve, reject) => {
        forget = feed.listen({
          caller,
          send: events => stream.write(events.map(event => `data: ${JSON.stringify(event)}\n\n`).join('')),
          end: resolve
        })
        const leave = () => resolve()
        signal.addEventListener('abort', leave)
        // Sends the headers before the first event.
        Promise.resolve(stream.write(': listening\n\n')).catch(reject)
        if (signal.aborted) leave()
      })
    } finally {
      forget()
    }
    stream.end()
  })
}

/** Routes for completions and embeddings. */
function textRoutes(app: FastifyInstance, deps: LlamaDependencies): void {
  const reply200 = (description: string, whole: TSchema = CompletionEvent) =>
    jsonOrStream(description, whole, {
      event: 'Events `data: {"content","tokens","stop":false,…}`; the last has `stop: true` and the counts.',
      item: CompletionEvent
    })
  for (const [path, operationId] of [
    ['/completion', 'llamaCompletion'],
    ['/completions', 'llamaCompletions']
  ] as const) {
    app.post<{ Body: EngineFields }>(
      path,
      llamaRoute(TAG, operationId, "Continue a text, in llama-server's own format", {
        description: 'If there are several prompts, the complete answer is a list.',
        body: CompletionRequest,
        response: { 200: reply200('The text', Type.Union([CompletionEvent, Type.Array(CompletionEvent)])) },
        errors: ANSWER_ERRORS
      }),
      (request, reply) => complete(deps, request, reply, { prompt: toEnginePrompt(request.body.prompt) })
    )
  }
  app.post<{ Body: Static<typeof InfillRequest> & EngineFields }>(
    '/infill',
    llamaRoute(TAG, 'llamaInfill', 'Write the text between two texts', {
      body: InfillRequest,
      response: { 200: reply200('The text between') },
      errors: ANSWER_ERRORS
    }),
    (request, reply) => {
      const { input_prefix, input_suffix, prompt } = request.body
      // As in llama-server, the prompt is the end of the prefix.
      const texts = {
        prompt: `${input_prefix ?? ''}${prompt ?? ''}`,
        suffix: input_suffix ?? '',
        ...(prompt && { line: prompt })
      }
      return complete(deps, request, reply, texts)
    }
  )
  for (const [path, operationId] of [
    ['/embedding', 'llamaEmbedding'],
    ['/embeddings', 'llamaEmbeddings']
  ] as const) {
    app.post<{ Body: Static<typeof EmbeddingRequest> }>(
      path,
      llamaRoute(TAG, operationId, "Create embeddings of texts, in llama-server's own format", {
        body: EmbeddingRequest,
        response: { 200: json('One for each text', Type.Array(VectorSchema)) },
        errors: ANSWER_ERRORS
      }),
      async ({ body, caller }, reply) => {
        const request = readModelRequest(deps, body, caller)
        const question = {
          operation: 'embeddings',
          body: { input: textsToEmbed(body) },
          lease: { ...request.lease, mode: 'embedding' }
        } as const
        const { vectors } = await askOnce(deps, reply, question, (lease, { input }, tally) =>
          embedChunked(lease, input, tally)
        )
        const toRow = (vector: Vector, index: number) => ({ index, embedding: [Array.from(vector)] })
        return vectorReply(reply, vectors, toRow, rows => rows)
      }
    )
  }
}

/** Routes for resumable streams, which clients name by conversation. */
function conversationRoutes(app: FastifyInstance): void {
  app.get<{ Querystring: Static<typeof ConversationQuery> }>(
    '/v1/stream',
    llamaRoute(TAG, 'llamaStream', 'Continue the stream of a conversation', {
      description:
        'The request that started the answer must have had the header `X-Conversation-Id`. The stream continues from the given byte. For streams with an id of corral, use `GET /v1/streams/{id}`.',
      querystring: ConversationQuery,
      response: {
        200: { description: 'The rest of the stream', content: { 'text/event-stream': { schema: Type.String() } } }
      },
      errors: ['stream_not_found', 'invalid_request']
    }),
    (request, reply) => {
      const { conv_id, from = '0' } = request.query
      const stream = app.resumable.ofConversation(request, conv_id)
      if (!stream)
        throw new CorralError('stream_not_found', 'The stream was not found or has expired. Send the request again.')
      stream.resume(reply, { from: Number(from) })
    }
  )
  app.delete<{ Querystring: Static<typeof ConversationQuery> }>(
    '/v1/stream',
    llamaRoute(TAG, 'llamaEndStream', 'End the answer to a conversation', {
      description: 'Succeeds even if there is no such answer.',
      querystring: ConversationQuery,
      response: { 204: { description: 'The answer has ended', content: {} } },
      errors: ['invalid_request']
    }),
    async (request, reply) => {
      app.resumable.ofConversation(request, request.query.conv_id)?.cancel()
      return await reply.code(204).send()
    }
  )
  app.post<{ Body: Static<typeof LookupRequest> }>(
    '/v1/streams/lookup',
    llamaRoute(TAG, 'llamaLookUpStreams', 'Find the streams of conversations', {
      body: LookupRequest,
      audited: false,
      response: { 200: json('The streams that were found', Type.Array(StreamRecord)) }
    }),
    async request =>
      app.resumable.ofConversations(request, request.body.conversation_ids).map(stream => ({
        conversation_id: stream.conversation!,
        is_done: stream.ended,
        total_bytes: stream.length,
        started_at: seconds(stream.startedAt),
        completed_at: stream.endedAt ? seconds(stream.endedAt) : 0
      }))
  )
}

const seconds = (date: Date) => Math.floor(date.getTime() / 1000)

/** Fields of a completion request that are not passed to the engine. */
const OWN = [
  ...['model', 'name', 'options', 'keep_alive', 'stream', 'stream_options', 'n', 'n_cmpl', 'prompt', 'stop', 'suffix'],
  ...['input_prefix', 'input_suffix', 'return_progress', 'return_tokens', 'response_fields']
]

/** Continues a text. @param texts `prompt`, and `suffix` if a text follows the answer */
async function complete(
  deps: LlamaDependencies,
  request: FastifyRequest<{ Body: EngineFields }>,
  reply: FastifyReply,
  texts: EngineFields
): Promise<unknown> {
  const { body, caller } = request
  const modelRequest = readModelRequest(deps, body, caller)
  const { variant, settings, options, lease, overflow, requested } = modelRequest
  if (texts.suffix !== undefined && !variant.metadata.capabilities.includes('insert')) {
    throw new CorralError(
      'unsupported_capability',
      `Model "${variant.publicName}" cannot fill in text between a prefix and a suffix. Use a model that can, such as a code model.`,
      { param: 'model' }
    )
  }
  const { stop, response_fields } = body
  const question: Question = {
    operation: 'completion',
    body: {
      ...settings.sampling,
      ...passedFields(body, options, OWN),
      // An empty stop text would end every answer immediately.
      ...(stop !== undefined && stop !== null && { stop: [stop].flat().filter(text => text !== '') }),
      ...texts
    },
    lease,
    variant,
    overflow,
    native: true
  }
  const open = () =>
    new CompletionWriter({
      model: requested,
      progress: body.return_progress === true,
      tokens: body.return_tokens === true,
      ...(Array.isArray(response_fields) && response_fields.length > 0 && { fields: response_fields as string[] })
    })
  if (body.stream === true) return await streamedAnswer(deps, request, reply, question, llamaChannel(deps), open)
  const answers = (await wholeAnswer(deps, reply, question, open)).whole()
  return Array.isArray(body.prompt) && answers.length > 1 ? answers : answers[0]
}

function llamaChannel(deps: LlamaDependencies): Channel {
  return {
    contentType: 'text/event-stream',
    heartbeatInterval: deps.heartbeat(),
    heartbeat: status => `: ${status}\n\n`,
    failure: llamaErrorEvent
  }
}

/**
 * Converts a prompt to the form that engines accept. @throws CorralError `invalid_request`, `unsupported_capability`
 */
function toEnginePrompt(prompt: unknown): unknown {
  if (isObject(prompt)) return promptText(prompt)
  if (!Array.isArray(prompt)) return prompt
  if (prompt.every(part => typeof part === 'number')) return prompt
  // A list that mixes tokens and texts is one prompt.
  if (prompt.some(part => typeof part === 'number')) return [prompt]
  return prompt.map(part => (isObject(part) ? promptText(part) : part))
}

function promptText({ prompt_string, multimodal_data }: Record<string, unknown>): string {
  // Clients that can send images may send an empty list. Any other content must not be dropped silently.
  const isNothing = multimodal_data === undefined || multimodal_data === null || [multimodal_data].flat().length === 0
  if (!isNothing) {
    throw new CorralError(
      'unsupported_capability',
      'Send images and audio in messages (POST /v1/chat/completions), not in "multimodal_data".',
      { param: 'prompt' }
    )
  }
  if (typeof prompt_string === 'string') return prompt_string
  throw new CorralError('invalid_request', '"prompt.prompt_string" must be text.', { param: 'prompt' })
}

/** Returns the texts to embed. @throws CorralError `invalid_request` */
function textsToEmbed({ content, input }: Static<typeof EmbeddingRequest>): (string | number[])[] {
  const given = input ?? content
  if (given === undefined || given === null || given === '') {
    throw new CorralError('invalid_request', '"content" must be a non-empty text or a list of texts.', {
      param: 'content'
    })
  }
  // A list of numbers is one text, given as tokens.
  return typeof given === 'string' || typeof given[0] === 'number' ? [given as string | number[]] : (given as string[])
}

/** Finds the running engine of a model. A chat engine is preferred. */
function findRunning({ scheduler }: LlamaDependencies, { key }: Model): RunningModel | undefined {
  const own = scheduler.running().filter(({ variant }) => variant.key === key)
  return own.find(({ mode }) => mode === 'chat') ?? own[0]
}

/** The mode in which a model is loaded if the request implies none. */
function anyMode({ metadata: { capabilities } }: Model): EngineMode {
  if (capabilities.includes('completion')) return 'chat'
  return capabilities.includes('rerank') ? 'rerank' : 'embedding'
}

function notLoaded({ publicName }: Model): CorralError {
  return new CorralError(
    'model_not_loaded',
    `The model "${publicName}" is not loaded. Load it with POST /models/load, or send any request that uses it.`,
    { param: 'model' }
  )
}

const BUILD_INFO = `corral-${version}`

function routerProps(maxLoaded: number): Static<typeof PropsSchema> {
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

/** Returns the engine's own properties of a loaded model, together with corral's. */
async function modelProps(engine: Engine, variant: Model, signal: AbortSignal): Promise<Static<typeof PropsSchema>> {
  const own = (await engine.properties?.({ signal })) ?? {}
  const { capabilities, chatTemplate = '' } = variant.metadata
  return {
    build_info: BUILD_INFO,
    ui_settings: {},
    chat_template: variant.defaults?.template ?? chatTemplate,
    ...own,
    // The engine serves no page, but llama.cpp's page hides models that report this.
    ui: true,
    default_generation_settings: {
      params: {},
      ...(isObject(own.default_generation_settings) && own.default_generation_settings),
      n_ctx: engine.contextSize
    },
    total_slots: engine.slots,
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
