import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import {
  ANSWER_ERRORS,
  CorralError,
  callerLease,
  catalogFor,
  clientSignal,
  DOWNLOAD_ERRORS,
  defaultMode,
  each,
  errorsWithin,
  FILE_ERRORS,
  Given,
  HUB_ERRORS,
  ignored,
  json,
  jsonOrStream,
  Loose,
  listedModels,
  MODEL_ERRORS,
  type Model,
  type ModelLimits,
  OrNull,
  parseRequestedName,
  publicModelName,
  type RunningModel,
  requestOptions,
  routerWith,
  routesWith,
  type Services,
  Titled
} from '../../../core/plugins/public-api.ts'
import { answerChat, CHAT_EVENTS, type ChatDependencies, ChatRequest, ChatResult } from './studio-chat.ts'

type Downloads = Services['downloads']
type Pull = NonNullable<Awaited<ReturnType<Downloads['pull']>>>

export interface StudioDependencies extends ChatDependencies {
  downloads: Downloads
  /** Aborted when the server stops. */
  ended: AbortSignal
}

const Level = Type.Enum(['off', 'on', 'low', 'medium', 'high'])
const Config = Loose({ context_length: Type.Integer(), parallel: Type.Optional(Type.Integer()) })
const ModelKind = Type.Enum(['llm', 'embedding'])

const ListedModel = Titled('LMStudioListedModel', {
  type: ModelKind,
  ...each(Type.String(), 'publisher', 'key', 'display_name'),
  architecture: Type.Optional(OrNull(Type.String())),
  quantization: Loose({ name: Type.String(), bits_per_weight: OrNull(Type.Number()) }),
  size_bytes: Type.Integer(),
  params_string: OrNull(Type.String()),
  loaded_instances: Type.Array(Loose({ id: Type.String(), config: Config })),
  max_context_length: Type.Integer(),
  format: OrNull(Type.Literal('gguf')),
  capabilities: Type.Optional(
    Loose({
      vision: Type.Boolean(),
      trained_for_tool_use: Type.Boolean(),
      reasoning: Type.Optional(Loose({ allowed_options: Type.Array(Level), default: Level }))
    })
  ),
  description: Type.Optional(OrNull(Type.String()))
})

const LoadRequest = Titled('LMStudioLoadRequest', {
  model: Type.String(),
  context_length: requestOptions.num_ctx,
  echo_load_config: Given(Type.Boolean({ default: false })),
  ...ignored('eval_batch_size', 'flash_attention', 'num_experts', 'offload_kv_cache_to_gpu')
})
const Instance = Loose({ instance_id: Type.String() })

const Job = Titled('LMStudioDownload', {
  job_id: Type.Optional(Type.String()),
  status: Type.Enum(['downloading', 'paused', 'completed', 'failed', 'already_downloaded']),
  total_size_bytes: Type.Optional(Type.Integer()),
  downloaded_bytes: Type.Optional(Type.Integer()),
  bytes_per_second: Type.Optional(Type.Number()),
  ...each(Type.Optional(Type.String({ format: 'date-time' })), 'estimated_completion', 'started_at', 'completed_at')
})
type Job = Static<typeof Job>

export function studioRoutes(app: FastifyInstance, deps: StudioDependencies): void {
  const route = studioRouter(app)
  const { answers, catalog, scheduler, downloads } = deps
  const jobs = new DownloadJobs(downloads, deps.ended)

  route('GET /models', 'lmStudioListModels', 'List models with their loaded instances', {
    response: json('The models', Loose({ models: Type.Array(ListedModel) })),
    handler: async ({ caller }) => {
      const running = scheduler.running()
      const getLimits = answers.limits(caller)
      const listed = listedModels(catalogFor(catalog, caller))
      return { models: listed.map(({ alias, model }) => listedModel(model, alias, running, getLimits(model))) }
    }
  })

  route('POST /models/load', 'lmStudioLoad', 'Load a model', {
    role: 'operator',
    body: LoadRequest,
    response: json(
      'The model is loaded',
      Loose({
        type: ModelKind,
        ...Instance.properties,
        load_time_seconds: Type.Number(),
        status: Type.Literal('loaded'),
        load_config: Type.Optional(Config)
      })
    ),
    errors: [...MODEL_ERRORS, 'invalid_option', 'unsupported_capability', 'forbidden_model'],
    handler: async ({ body, caller }, reply) => {
      const request = { model: body.model, num_ctx: body.context_length }
      const { variant, lease: wanted } = answers.read(request, caller)
      const lease = await scheduler.lease({
        ...callerLease(reply),
        ...wanted,
        model: publicModelName(variant),
        mode: defaultMode(variant),
        loadOnly: true,
        signal: clientSignal(reply)
      })
      lease.release()
      return {
        type: kindOf(variant),
        instance_id: variant.publicName,
        load_time_seconds: lease.loadDuration / 1000,
        status: 'loaded',
        ...(body.echo_load_config && { load_config: configOf(lease) })
      }
    }
  })

  route('POST /models/unload', 'lmStudioUnload', 'Unload a model', {
    role: 'operator',
    body: Instance,
    response: json('The model is unloaded', Instance),
    errors: ['invalid_model_name', 'model_not_found', 'model_not_loaded', 'forbidden_model'],
    handler: async ({ body: { instance_id }, caller }) => {
      await scheduler.stop(publicModelName(catalogFor(catalog, caller).get(parseRequestedName(instance_id))))
      return { instance_id }
    }
  })

  route('POST /models/download', 'lmStudioDownload', 'Start downloading a model', {
    role: 'operator',
    body: Titled('LMStudioDownloadRequest', {
      model: Type.String(),
      quantization: Given(Type.String())
    }),
    response: json('The download', Job),
    errors: [...FILE_ERRORS, ...HUB_ERRORS, ...DOWNLOAD_ERRORS],
    handler: async ({ body, caller }, reply) => {
      const model = body.quantization ? `${body.model}:${body.quantization}` : body.model
      const plan = await downloads.plan({ model, caller }, { signal: clientSignal(reply) })
      const pull = await downloads.pull(plan, { detached: true, caller })
      return pull ? jobs.add(pull) : { status: 'already_downloaded' }
    }
  })

  route('GET /models/download/status/:job_id', 'lmStudioDownloadStatus', 'Show the progress of a download', {
    role: 'operator',
    params: Type.Object({ job_id: Type.String() }),
    response: json('The download', Job),
    errors: ['model_not_found'],
    handler: async ({ params }) => jobs.get(params.job_id)
  })

  route('POST /chat', 'lmStudioChatV1', 'Answer a message of a stored conversation', {
    body: ChatRequest,
    response: jsonOrStream('The answer', ChatResult, { event: CHAT_EVENTS, item: Type.Unknown() }),
    errors: [...ANSWER_ERRORS, 'response_not_found'],
    handler: ({ body }, reply) => answerChat(deps, body, reply)
  })
}

const kindOf = ({ metadata }: Model) => (metadata.capabilities.includes('completion') ? 'llm' : 'embedding')

const configOf = ({ engine }: Pick<RunningModel, 'engine'>) => ({
  context_length: engine.contextSize,
  parallel: engine.slots
})

function listedModel(
  model: Model,
  key: string,
  running: readonly RunningModel[],
  { window }: ModelLimits
): Static<typeof ListedModel> {
  const { capabilities, architecture, contextLength, quantization, parameters } = model.metadata
  const isText = kindOf(model) === 'llm'
  const bits = parameters ? (model.size * 8) / parameters : undefined
  return {
    type: kindOf(model),
    publisher: model.model.owner,
    key,
    display_name: key,
    ...(isText && { architecture: architecture ?? null }),
    quantization: {
      name: quantization ?? model.label,
      bits_per_weight: bits === undefined ? null : Number(bits.toFixed(1))
    },
    size_bytes: model.size,
    params_string: parameters === undefined ? null : `${Number((parameters / 1e9).toPrecision(3))}B`,
    loaded_instances: running
      .filter(({ variant }) => variant.key === model.key)
      .map(one => ({ id: key, config: configOf(one) })),
    max_context_length: contextLength ?? window,
    format: model.format === 'gguf' ? 'gguf' : null,
    ...(isText && {
      capabilities: {
        vision: capabilities.includes('vision'),
        trained_for_tool_use: capabilities.includes('tools'),
        ...(capabilities.includes('thinking') && {
          reasoning: { allowed_options: ['off', 'on', 'low', 'medium', 'high'], default: 'on' }
        })
      },
      description: null
    })
  }
}

const MAX_FINISHED_JOBS = 100

/** The state of downloads, also after they have ended: pulls are listed only while they are unfinished. */
class DownloadJobs {
  readonly #downloads: Downloads
  readonly #ended: AbortSignal
  readonly #finished = new Map<string, Job>()

  constructor(downloads: Downloads, ended: AbortSignal) {
    this.#downloads = downloads
    this.#ended = ended
  }

  add(pull: Pull): Job {
    const { id } = pull.record()
    const finish = (job: Pick<Job, 'status' | 'completed_at'>) => {
      this.#finished.set(id, { ...jobOf(pull.record()), ...job })
      if (this.#finished.size > MAX_FINISHED_JOBS) this.#finished.delete([...this.#finished.keys()][0]!)
    }
    pull
      .watch(() => undefined, this.#ended)
      .then(
        () => finish({ status: 'completed', completed_at: new Date().toISOString() }),
        // A failed pull can be resumed. The list shows its state until then.
        () => finish({ status: 'failed' })
      )
    return jobOf(pull.record())
  }

  /** @throws CorralError `model_not_found` */
  get(id: string): Job {
    const record = this.#downloads.list().find(pull => pull.id === id)
    const job = record ? jobOf(record) : this.#finished.get(id)
    if (job) return job
    const message = `There is no download ${JSON.stringify(id)}. It may have ended before the last restart: GET /api/v1/models lists the models.`
    throw new CorralError('model_not_found', message, { param: 'job_id' })
  }
}

function jobOf({ id, state, total, completed, speed, created_at }: ReturnType<Downloads['list']>[number]): Job {
  const status = state === 'paused' || state === 'failed' ? state : 'downloading'
  const left = speed > 0 && total > 0 ? ((total - completed) / speed) * 1000 : undefined
  return {
    job_id: id,
    status,
    total_size_bytes: total,
    downloaded_bytes: completed,
    ...(status === 'downloading' && {
      bytes_per_second: speed,
      ...(left !== undefined && { estimated_completion: new Date(Date.now() + left).toISOString() })
    }),
    started_at: created_at
  }
}

export const TAG = 'LM Studio'

const ErrorSchema = Titled('LMStudioError', {
  error: Loose({ message: Type.String(), type: Type.String(), code: Type.String() })
})
const shape = errorsWithin(ErrorSchema)

export const studioRoute = routesWith(shape)
export const studioRouter = (app: FastifyInstance) => routerWith(shape)(app, TAG)

/** Renders an error as LM Studio does. @param typeOf the names of this version of its API */
const errorBody =
  (typeOf: (error: CorralError) => string) =>
  (error: CorralError): { error: Record<string, unknown> } => {
    const { message, param, code, details } = error
    return { error: { ...details, message, type: typeOf(error), param: param ?? null, code } }
  }

export const errorBodyV0 = errorBody(({ status }) => (status >= 500 ? 'server_error' : 'invalid_request_error'))

export const errorBodyV1 = errorBody(({ status, code, param }) => {
  if (code === 'model_not_found') return param === 'job_id' ? 'job_not_found' : code
  if (code === 'not_implemented') return code
  return status >= 500 ? 'internal_error' : 'invalid_request'
})
