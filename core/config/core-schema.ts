import { type Static, type TSchema, Type } from 'typebox'
import type { BudgetName } from '../contracts/callers.ts'
import { DEFAULT_LOAD_OPTIONS, LoadOptionsSchema } from '../models/load-options.ts'
import { DEFAULT_SAMPLING_OPTIONS, OverflowPolicySchema, SamplingOptionsSchema } from '../models/options.ts'
import { parseDuration } from '../system/duration.ts'

interface SettingText {
  default?: string | number
  description: string
  /** It is read at the start only. */
  restart?: boolean
  /** It counts only in a trusted file: see `JsonSchema`. */
  needsTrust?: boolean
}

/** A setting that is written as text with a unit, or as a number. */
const measure =
  (format: string, bounds: object = {}) =>
  (options: SettingText) =>
    Type.Unsafe<string | number>({ type: ['string', 'number'], format, ...bounds, ...options })

/** The longest length of time, in hours: timers of Node.js run out at once when they are set to more than 596. */
const MAX_LENGTH = 500

/** A length of time as people write it: `30s`, `5m`, `1h30m` or seconds. None may be negative. */
export const Duration = measure('corral-duration', { minimum: 0, maximum: MAX_LENGTH * 3600 })

/** A length of time without which nothing could be done, such as that of a connection: longer than 0. */
export const Timeout = measure('corral-timeout', { exclusiveMinimum: 0, maximum: MAX_LENGTH * 3600 })

/** How long a model stays loaded: a negative length of time is for ever. */
export const KeepAlive = measure('corral-keep-alive')

/** An amount of bytes as people write it: `64MiB`, `1.5GB` or a number. */
export const Bytes = measure('corral-bytes', { minimum: 0 })

/** Whether a text is a length of time within what `Duration` allows. */
export function isDuration(text: string): boolean {
  const length = parseDuration(text)
  return length !== undefined && length >= 0 && length <= MAX_LENGTH * 3_600_000
}

/**
 * A file or folder; an empty one is none. It is absolute once the configuration is loaded: `~/` is the user's home, and
 * a relative path starts at the file's folder or, for flags and environment, at the working directory.
 */
export const Path = (options: SettingText & { minLength?: number }) =>
  Type.String({ format: 'corral-path', ...options })

/** A program: its name on the PATH, or its path, which is then made absolute as a path is. */
export const Program = (options: SettingText) => Type.String({ format: 'corral-program', ...options })

function withDefaults<Properties extends Record<string, TSchema>>(
  properties: Properties,
  defaults: Record<keyof Properties, unknown>
): Properties {
  return Object.fromEntries(
    Object.entries(properties).map(([name, schema]) => [name, { ...schema, default: defaults[name] }])
  ) as unknown as Properties
}

const contextOverflow = {
  ...OverflowPolicySchema,
  description: 'A conversation longer than the context: an error, or its oldest turns are left out (drop_oldest)'
}

/** What one request may ask for; see `RequestBounds`. */
const requestBounds = {
  num_ctx: Type.Integer({
    minimum: 0,
    description: 'Largest context window in tokens; larger ones are cut to it. 0 is what each model was trained for'
  }),
  num_parallel: Type.Integer({ minimum: 1, description: 'Most slots of an engine' }),
  max_tokens: Type.Integer({ minimum: 1, description: 'Most tokens of an answer, also of those without a limit' }),
  keep_alive: KeepAlive({ description: 'Longest keep_alive; negative means for ever' }),
  prompts: Type.Integer({ minimum: 1, description: 'Most inputs or documents of a request' }),
  n: Type.Integer({ minimum: 1, description: 'Most choices of a request' })
}
export const RequestBoundsSchema = Type.Partial(Type.Object(requestBounds, { additionalProperties: false }))

/** The largest number that the headers of replies may have. */
const MAX_COUNT = 999_999_999_999_999

const amount = (description: string) => Type.Integer({ minimum: 0, maximum: MAX_COUNT, description })

/** What may be taken in time; see `Budgets`. */
const budgets = {
  requests_per_minute: amount('Requests to models that a client may send in a minute; 0 is no limit, as for the rest'),
  requests_per_day: amount('… in a day, which begins at 00:00 UTC'),
  tokens_per_minute: amount('Tokens that models may read and write for a client in a minute'),
  tokens_per_day: amount('… in a day'),
  tokens_in_per_minute: amount('Tokens that models may read for it in a minute'),
  tokens_in_per_day: amount('… in a day'),
  tokens_out_per_minute: amount('Tokens that models may write for it in a minute'),
  tokens_out_per_day: amount('… in a day')
} satisfies Record<BudgetName, TSchema>
export const BudgetsSchema = Type.Partial(Type.Object(budgets, { additionalProperties: false }))

/** What clients may take. */
const LimitsSchema = Type.Object(
  {
    ...withDefaults(requestBounds, {
      num_ctx: 0,
      num_parallel: 64,
      max_tokens: 131_072,
      keep_alive: -1,
      prompts: 8192,
      n: 128
    }),
    ...withDefaults(budgets, {
      requests_per_minute: 0,
      requests_per_day: 0,
      tokens_per_minute: 0,
      tokens_per_day: 0,
      tokens_in_per_minute: 0,
      tokens_in_per_day: 0,
      tokens_out_per_minute: 0,
      tokens_out_per_day: 0
    }),
    strict_options: Type.Boolean({
      default: false,
      description:
        'Refuse requests with options that nobody knows, such as misspelt ones; otherwise they are passed on to the engine, and the header X-Corral-Unknown-Options names them'
    }),
    body_depth: Type.Integer({ default: 200, minimum: 1, description: 'Levels of lists and objects in a request' }),
    body_memory: Bytes({
      default: 0,
      description:
        "Memory for the bodies of all requests that are not answered yet; 0 is a sixteenth of the machine's memory, and at most a quarter of what Node.js lets corral use"
    }),
    body_memory_per_client: Bytes({ default: 0, description: 'The same of one client; 0 is a quarter of it' }),
    grammar_size: Bytes({
      default: '64KiB',
      description: 'Largest grammar or JSON schema of a request; all of its tools may have 16 times as much',
      restart: true
    }),
    grammar_repetition: Type.Integer({
      default: 20_000,
      minimum: 1,
      description:
        'Most ways in which a grammar or JSON schema may let the characters of one token be read; repetitions inside of each other multiply them',
      restart: true
    }),
    connections: Type.Integer({ default: 1024, minimum: 1, description: 'Most open connections' }),
    connections_per_address: Type.Integer({
      default: 256,
      minimum: 1,
      description: 'Most open connections of one address; those of this machine and of trusted proxies are not counted'
    }),
    uploads: Type.Integer({
      default: 8,
      minimum: 1,
      description: 'Most files that are received at once, half of them from one client; more wait',
      restart: true
    }),
    uploads_size: Bytes({
      default: '400GiB',
      description: 'Disk for files that were sent and are not part of a model yet; half of it for one client',
      restart: true
    }),
    upload_stall: Duration({
      default: '2m',
      description:
        'How long a file that is sent may arrive with less than 1 kB a second until it is given up; 0 is no limit',
      restart: true
    }),
    pulls: Type.Integer({ default: 4, minimum: 1, description: 'Most pulls that transfer at once; more wait' }),
    waiting_pulls: Type.Integer({ default: 64, minimum: 0, description: 'Most pulls that wait' }),
    stored_responses: Type.Integer({
      default: 1000,
      minimum: 0,
      description: 'Most responses that are stored for one key; the oldest ones go',
      restart: true
    }),
    queue_per_key: Type.Integer({
      default: 512,
      minimum: 1,
      description:
        'Most requests of one key (or address without one) that wait for one model; in a full queue they give way to others'
    }),
    reader_stall: Duration({
      default: '60s',
      description: 'How long a client may read nothing of its answer until it loses its slot; 0 is no limit'
    }),
    resume: Duration({
      default: '30s',
      description:
        'How long a streamed answer goes on after its connection was lost, and is kept after its end, where the request asks for that (X-Corral-Resumable); 0 is never'
    }),
    hook_timeout: Duration({
      default: '30s',
      description: 'How long one hook of a plugin may take for a request, until the request fails; 0 is no limit'
    }),
    stuck_after: Duration({
      default: '30s',
      description: 'How long an engine may use the processor without getting on until it is ended; 0 never ends it'
    }),
    reloads: Type.Integer({
      default: 6,
      minimum: 0,
      description: 'How often in ten minutes a client may have a loaded model loaded anew with other options'
    })
  },
  { additionalProperties: false, description: 'What clients may take, all of them and each one' }
)

/** One model's section under `models`. */
export const ModelSettingsSchema = Type.Object(
  {
    keep_alive: Type.Optional(
      KeepAlive({ description: 'How long it stays loaded without requests; negative means for ever' })
    ),
    pin: Type.Optional(
      Type.Boolean({ description: 'Never unload it for idleness or to make room; keep_alive of requests is ignored' })
    ),
    preload: Type.Optional(Type.Boolean({ description: 'Load it when corral starts' })),
    aliases: Type.Optional(
      Type.Array(Type.String(), { uniqueItems: true, description: 'Other names that requests may use' })
    ),
    groups: Type.Optional(
      Type.Array(Type.String({ minLength: 1 }), {
        uniqueItems: true,
        description: 'Models that share a group are never in memory together'
      })
    ),
    max_concurrent: Type.Optional(
      Type.Integer({ minimum: 1, description: 'Most requests that are answered at once; more wait' })
    ),
    replicas: Type.Optional(
      Type.Object(
        {
          min: Type.Optional(Type.Integer({ minimum: 0, description: 'So many members always have it in memory' })),
          max: Type.Optional(Type.Integer({ minimum: 0, description: 'At most so many get it; 0 is no limit' }))
        },
        {
          additionalProperties: false,
          description: 'At how many members of a cluster it is in memory, in the place of what "cluster.replicas" says'
        }
      )
    ),
    runtime: Type.Optional(
      Type.String({
        description: "llama.cpp build to run on: a kind (cpu, cuda-13, vulkan, …) or an installed build's id"
      })
    ),
    rpc: Type.Optional(
      Type.Array(
        Type.String({
          title: 'an address and a port such as 192.168.1.20:50052',
          pattern: '^[\\w.-]{1,80}:[1-9]\\d{0,4}$'
        }),
        {
          uniqueItems: true,
          maxItems: 16,
          needsTrust: true,
          description: 'Machines that hold layers of it too, where "corral worker" runs (docs/rpc.md)'
        }
      )
    ),
    rpc_insecure: Type.Optional(
      Type.Boolean({
        needsTrust: true,
        description:
          'Let them be beyond loopback and private networks: nothing is encrypted, and nobody is asked who they are'
      })
    ),
    arguments: Type.Optional(
      Type.Array(Type.String(), { needsTrust: true, description: "More flags for the engine, after corral's own" })
    ),
    environment: Type.Optional(
      Type.Record(Type.String(), Type.String(), {
        needsTrust: true,
        description: 'More environment variables for the engine'
      })
    ),
    draft: Type.Optional(
      Type.Object(
        {
          model: Type.String({ minLength: 1, description: 'A model that is here: owner/name or owner/name:variant' }),
          max_tokens: Type.Optional(Type.Integer({ minimum: 1, description: 'Most tokens guessed at once' })),
          min_tokens: Type.Optional(Type.Integer({ minimum: 0, description: 'Fewest tokens guessed at once' })),
          min_probability: Type.Optional(Type.Number({ minimum: 0, maximum: 1, description: 'Least sure guess' })),
          n_gpu_layers: Type.Optional(
            Type.Integer({ minimum: -1, description: 'Its layers on the GPU; -1 is automatic' })
          )
        },
        { additionalProperties: false, description: 'Small model that guesses ahead (speculative decoding)' }
      )
    ),
    ngram: Type.Optional(
      Type.Boolean({ description: 'Guess ahead from what the conversation says already (needs no second model)' })
    ),
    lora: Type.Optional(
      Type.Array(
        Type.Object(
          {
            path: Path({ description: 'GGUF file of the adapter', minLength: 1 }),
            scale: Type.Optional(Type.Number({ description: '1 where absent' }))
          },
          { additionalProperties: false }
        ),
        { description: 'LoRA adapters' }
      )
    ),
    projector: Type.Optional(
      Path({ description: 'GGUF file of the projector for images, in the place of its own; empty loads none' })
    ),
    limits: Type.Optional(
      Type.Object(
        { ...RequestBoundsSchema.properties, ...BudgetsSchema.properties },
        {
          additionalProperties: false,
          description:
            'What requests for it may ask for, in the place of what "limits" says; requests and tokens in time are counted for each client and this model, beside those of "limits"'
        }
      )
    ),
    options: Type.Optional(
      Type.Object(
        {
          ...Type.Partial(LoadOptionsSchema).properties,
          ...Type.Partial(SamplingOptionsSchema).properties,
          context_overflow: Type.Optional(contextOverflow)
        },
        { additionalProperties: true, description: 'Defaults of this model; also any option that the engine knows' }
      )
    )
  },
  { additionalProperties: false }
)
export type ModelSettings = Static<typeof ModelSettingsSchema>

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'] as const
const LogLevel = (options: { default?: string; description?: string }) => Type.Enum([...LOG_LEVELS], options)

/** Settings that belong to no plugin. */
export const CoreConfigSchema = Type.Object(
  {
    host: Type.String({
      default: '127.0.0.1',
      minLength: 1,
      pattern: '^[^/]+$',
      title: 'a host name or an address, without a port',
      description: 'Address to listen on',
      restart: true
    }),
    port: Type.Integer({
      default: 11435,
      minimum: 0,
      maximum: 65535,
      description: 'Port to listen on; 0 picks a free one',
      restart: true
    }),
    tls: Type.Object(
      {
        certificate: Path({
          default: '',
          description: "File in PEM format with the server's certificate and those of its issuers; empty is plain HTTP",
          restart: true
        }),
        key: Path({ default: '', description: 'File in PEM format with its private key', restart: true }),
        check_interval: Timeout({
          default: '10s',
          description: 'How often both files are looked at; what replaces them counts for new connections',
          restart: true
        })
      },
      { additionalProperties: false, description: 'Encryption of all addresses that the server listens on' }
    ),
    log_level: LogLevel({ default: 'info', description: 'Least severe messages that are logged' }),
    log_levels: Type.Record(Type.String(), LogLevel({}), {
      default: {},
      description: 'The same of single parts: plugins by their names, and server, http, plugins of the core',
      examples: [{ scheduler: 'debug' }]
    }),
    watch_config: Type.Boolean({ default: false, description: 'Read this file again whenever it has changed' }),
    body_limit: Bytes({ default: '64MiB', description: 'Largest request body', restart: true }),
    shutdown_grace: Duration({
      default: '10s',
      description: 'How long running requests may go on after SIGTERM',
      restart: true
    }),
    models_directory: Path({
      default: '',
      description: 'Where models are kept; empty is the folder "models" of the data directory',
      restart: true
    }),
    default_model: Type.String({
      default: '',
      description: 'Model of requests that name none, in the APIs of OpenAI and llama-server; empty refuses them',
      examples: ['corral/tiny-chat']
    }),
    plugins: Type.Array(Type.String({ minLength: 1 }), {
      default: [],
      uniqueItems: true,
      description:
        'Plugins beside the built-in ones: names of npm packages, or paths; each has a section of its own name',
      examples: [['./plugins/shelf.js', 'corral-plugin-shelf']],
      restart: true,
      needsTrust: true
    }),
    defaults: Type.Object(
      {
        ...withDefaults(SamplingOptionsSchema.properties, DEFAULT_SAMPLING_OPTIONS),
        ...withDefaults(LoadOptionsSchema.properties, DEFAULT_LOAD_OPTIONS),
        context_overflow: { ...contextOverflow, default: 'error' }
      },
      { additionalProperties: true, description: 'Options of requests and models that give none of their own' }
    ),
    limits: LimitsSchema,
    models: Type.Record(Type.String(), ModelSettingsSchema, {
      default: {},
      description: 'Settings of single models, by <owner>/<name> or <owner>/<name>:<variant>',
      examples: [
        {
          'corral/tiny-chat': {
            keep_alive: '30m',
            pin: false,
            preload: false,
            aliases: ['gpt-4o', 'my/helper'],
            groups: ['large'],
            max_concurrent: 2,
            replicas: { min: 0, max: 3 },
            runtime: 'cpu',
            rpc: ['192.168.1.20:50052'],
            rpc_insecure: false,
            arguments: ['--no-warmup'],
            environment: { GGML_VK_VISIBLE_DEVICES: '0' },
            draft: { model: 'corral/tiny-chat', max_tokens: 8 },
            ngram: false,
            lora: [{ path: 'adapters/style.gguf', scale: 0.8 }],
            projector: 'projectors/mmproj.gguf',
            limits: { num_ctx: 8192, max_tokens: 4096, tokens_per_day: 100_000 },
            options: { num_ctx: 2048, temperature: 0.2 }
          }
        }
      ]
    })
  },
  { additionalProperties: false }
)
export type CoreConfig = Static<typeof CoreConfigSchema>
