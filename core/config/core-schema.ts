import { type Static, type TProperties, type TSchema, Type } from 'typebox'
import type { BudgetName } from '../contracts/callers.ts'
import { DEFAULT_LOAD_OPTIONS, LoadOptionsSchema } from '../models/load-options.ts'
import { DEFAULT_SAMPLING_OPTIONS, OverflowPolicySchema, SamplingOptionsSchema } from '../models/options.ts'
import { Bytes, Duration, isDuration, KeepAlive, Path, Program, Timeout } from './setting-types.ts'

export { Bytes, Duration, isDuration, KeepAlive, Path, Program, Timeout }

/** A group of settings. Other names are mistakes. */
const Group = <Properties extends TProperties>(properties: Properties, description?: string) =>
  Type.Object(properties, { additionalProperties: false, ...(description && { description }) })

const optional = <Properties extends TProperties>(properties: Properties) =>
  Type.Partial(Type.Object(properties)).properties

const Count = (fallback: number, minimum: number, description: string, more?: { restart: boolean }) =>
  Type.Integer({ default: fallback, minimum, description, ...more })

function withDefaults<Properties extends TProperties>(
  properties: Properties,
  defaults: Record<keyof Properties, unknown>
): Properties {
  return Object.fromEntries(
    Object.entries(properties).map(([name, schema]) => [name, { ...schema, default: defaults[name] }])
  ) as unknown as Properties
}

const contextOverflow = {
  ...OverflowPolicySchema,
  description:
    'What to do with a conversation longer than the context: report an error, or leave out its oldest messages (drop_oldest)'
}

const requestBounds = {
  num_ctx: Type.Integer({
    minimum: 0,
    description: 'Largest context window in tokens; larger ones are reduced to it. 0 is what each model was trained for'
  }),
  num_parallel: Type.Integer({ minimum: 1, description: 'Maximum slots of an engine' }),
  max_tokens: Type.Integer({
    minimum: 1,
    description: 'Maximum tokens of an answer; larger requests, and those without a limit, get this one'
  }),
  keep_alive: KeepAlive({ description: 'Longest keep_alive; negative means forever' }),
  prompts: Type.Integer({ minimum: 1, description: 'Maximum inputs or documents of a request' }),
  n: Type.Integer({ minimum: 1, description: 'Maximum choices of a request' }),
  repeats: Type.Integer({
    minimum: 0,
    description:
      'End an answer that directly repeats the same passage this often, over thousands of characters; 0 is never'
  })
}
export const RequestBoundsSchema = Type.Object(optional(requestBounds))

const MAX_COUNT = 999_999_999_999_999

const amount = (description: string) => Type.Integer({ minimum: 0, maximum: MAX_COUNT, description })

const budgets = {
  requests_per_minute: amount(
    'Requests to models that a client may send per minute; 0 is unlimited, as for the other budgets'
  ),
  requests_per_day: amount('… per day, which begins at 00:00 UTC'),
  tokens_per_minute: amount('Tokens that models may read and write for a client per minute'),
  tokens_per_day: amount('… in a day'),
  tokens_in_per_minute: amount('Tokens that models may read for a client per minute'),
  tokens_in_per_day: amount('… in a day'),
  tokens_out_per_minute: amount('Tokens that models may write for a client per minute'),
  tokens_out_per_day: amount('… in a day')
} satisfies Record<BudgetName, TSchema>
export const BudgetsSchema = Type.Object(optional(budgets))

const LimitsSchema = Group(
  {
    ...withDefaults(requestBounds, {
      num_ctx: 0,
      num_parallel: 64,
      max_tokens: 131_072,
      keep_alive: -1,
      prompts: 8192,
      n: 128,
      repeats: 16
    }),
    ...withDefaults(budgets, Object.fromEntries(Object.keys(budgets).map(name => [name, 0])) as Record<BudgetName, 0>),
    strict_options: Type.Boolean({
      default: false,
      description:
        'Refuse requests with unknown options, such as misspelled ones; otherwise these are passed on to the engine, and the header X-Corral-Unknown-Options lists them'
    }),
    body_depth: Count(200, 1, 'Nesting levels of lists and objects in a request'),
    body_memory: Bytes({
      default: 0,
      description:
        "Memory for the bodies of all unanswered requests; 0 is a sixteenth of the machine's memory, and at most a quarter of the memory that Node.js allows corral"
    }),
    body_memory_per_client: Bytes({ default: 0, description: 'The same for one client; 0 is a quarter of it' }),
    grammar_size: Bytes({
      default: '64KiB',
      description: 'Largest grammar or JSON schema of a request; all of its tools together may have 16 times as much',
      restart: true
    }),
    grammar_repetition: Count(
      20_000,
      1,
      'How many ways a grammar or JSON schema may have to match the characters of one token; nested repetitions multiply them',
      { restart: true }
    ),
    document_size: Bytes({ default: '32MiB', description: 'Largest PDF or text file in a request' }),
    document_pages: Count(200, 1, 'Pages of a PDF that a model gets'),
    document_text: Count(2_000_000, 1, 'Characters of a PDF or text file that a model gets'),
    document_time: Timeout({ default: '30s', description: 'How long reading a PDF may take' }),
    document_memory: Bytes({ default: '256MiB', description: 'Memory for reading a PDF; two are read at a time' }),
    connections: Count(1024, 1, 'Maximum open connections'),
    connections_per_address: Count(
      256,
      1,
      'Maximum open connections of one address; connections from this machine and from trusted proxies are not counted'
    ),
    uploads: Count(8, 1, 'Maximum files received at the same time, half of them from one client; others wait', {
      restart: true
    }),
    uploads_size: Bytes({
      default: '400GiB',
      description: 'Disk space for uploaded files that are not part of a model yet; half of it for one client',
      restart: true
    }),
    upload_stall: Duration({
      default: '2m',
      description: 'How long an upload may stay below 1 kB a second before it is aborted; 0 is unlimited',
      restart: true
    }),
    pulls: Count(4, 1, 'Maximum pulls that transfer at the same time; others wait'),
    waiting_pulls: Count(64, 0, 'Maximum pulls that wait'),
    stored_responses: Count(1000, 0, 'Maximum responses stored for one key; the oldest are removed', { restart: true }),
    queue_per_key: Count(
      512,
      1,
      'Maximum requests of one key (or address without one) that wait for one model; in a full queue they make room for other clients'
    ),
    reader_stall: Duration({
      default: '60s',
      description: 'How long a client may read nothing of its answer before it loses its slot; 0 is unlimited'
    }),
    resume: Duration({
      default: '30s',
      description:
        'How long a streamed answer continues after its connection was lost, and is stored after its end, if the request asks for that (X-Corral-Resumable); 0 is never'
    }),
    hook_timeout: Duration({
      default: '30s',
      description: 'How long one hook of a plugin may take before the request fails; 0 is unlimited'
    }),
    stuck_after: Duration({
      default: '30s',
      description: 'How long an engine may use the processor without progress before it is stopped; 0 never stops it'
    }),
    reloads: Count(6, 0, 'How often in ten minutes a client may force a loaded model to reload with other options')
  },
  'Limits for all clients together and for each client'
)

/** The section of one model under `models`. */
export const ModelSettingsSchema = Group(
  optional({
    keep_alive: KeepAlive({ description: 'How long it stays loaded without requests; negative means forever' }),
    pin: Type.Boolean({ description: 'Never unload it when idle or to make room; keep_alive of requests is ignored' }),
    preload: Type.Boolean({ description: 'Load it when corral starts' }),
    aliases: Type.Array(Type.String(), { uniqueItems: true, description: 'Other names that requests may use' }),
    groups: Type.Array(Type.String({ minLength: 1 }), {
      uniqueItems: true,
      description: 'Models that share a group are never in memory at the same time'
    }),
    max_concurrent: Type.Integer({
      minimum: 1,
      description: 'Maximum requests answered at the same time; others wait'
    }),
    replicas: Group(
      optional({
        min: Type.Integer({ minimum: 0, description: 'At least this many nodes always have it in memory' }),
        max: Type.Integer({ minimum: 0, description: 'At most this many nodes load it; 0 is unlimited' })
      }),
      'How many nodes of a cluster have it in memory, instead of what "cluster.replicas" says'
    ),
    engine: Type.String({
      minLength: 1,
      restart: true,
      needsTrust: true,
      description: 'Program under "engines" that serves it; the model then needs no files in storage'
    }),
    files: Path({
      restart: true,
      needsTrust: true,
      description: 'File or folder that the program gets as {model}; its name if absent'
    }),
    runtime: Type.String({
      description: "llama.cpp build to run on: a kind (cpu, cuda-13, vulkan, …) or an installed build's id"
    }),
    rpc: Type.Array(
      Type.String({
        title: 'an address and a port such as 192.168.1.20:50052',
        pattern: '^[\\w.-]{1,80}:[1-9]\\d{0,4}$'
      }),
      {
        uniqueItems: true,
        maxItems: 16,
        needsTrust: true,
        description: 'Machines that share its layers by running "corral worker" (docs/rpc.md)'
      }
    ),
    rpc_insecure: Type.Boolean({
      needsTrust: true,
      description: 'Allow addresses beyond loopback and private networks: nothing is encrypted or authenticated'
    }),
    arguments: Type.Array(Type.String(), {
      needsTrust: true,
      description: "More flags for the engine, after corral's own"
    }),
    environment: Type.Record(Type.String(), Type.String(), {
      needsTrust: true,
      description: 'More environment variables for the engine'
    }),
    draft: Group(
      {
        model: Type.String({ minLength: 1, description: 'A local model: owner/name or owner/name:variant' }),
        ...optional({
          max_tokens: Type.Integer({ minimum: 1, description: 'Maximum tokens guessed in one step' }),
          min_tokens: Type.Integer({ minimum: 0, description: 'Minimum tokens guessed in one step' }),
          min_probability: Type.Number({ minimum: 0, maximum: 1, description: 'Minimum probability of a guess' }),
          n_gpu_layers: Type.Integer({ minimum: -1, description: 'Its layers on the GPU; -1 is automatic' })
        })
      },
      'Small model that guesses ahead (speculative decoding)'
    ),
    ngram: Type.Boolean({ description: 'Guess ahead from the text of the conversation (needs no second model)' }),
    lora: Type.Array(
      Group({
        path: Path({ description: 'GGUF file of the adapter', minLength: 1 }),
        ...optional({ scale: Type.Number({ description: 'Default 1' }) })
      }),
      { description: 'LoRA adapters' }
    ),
    projector: Path({
      description: 'GGUF file of the projector for images; empty loads none, absent means that of the model'
    }),
    limits: Group(
      { ...RequestBoundsSchema.properties, ...BudgetsSchema.properties },
      'Limits of requests for it, instead of "limits"; its budgets for each client apply in addition to those of "limits"'
    ),
    options: Type.Object(
      {
        ...optional({ ...LoadOptionsSchema.properties, ...SamplingOptionsSchema.properties }),
        ...optional({ context_overflow: contextOverflow })
      },
      { additionalProperties: true, description: 'Defaults of this model; also any option that the engine knows' }
    )
  })
)
export type ModelSettings = Static<typeof ModelSettingsSchema>

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'] as const
const LogLevel = (options: { default?: string; description?: string }) => Type.Enum([...LOG_LEVELS], options)

/** Settings that do not belong to a plugin. */
export const CoreConfigSchema = Group({
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
  tls: Group(
    {
      certificate: Path({
        default: '',
        description: "File in PEM format with the server's certificate and those of its issuers; empty is plain HTTP",
        restart: true
      }),
      key: Path({ default: '', description: 'File in PEM format with its private key', restart: true }),
      check_interval: Timeout({
        default: '10s',
        description: 'How often both files are checked; new connections use a replaced certificate',
        restart: true
      })
    },
    'Encryption of all addresses that the server listens on'
  ),
  log_level: LogLevel({ default: 'info', description: 'Minimum level of messages that are logged' }),
  log_levels: Type.Record(Type.String(), LogLevel({}), {
    default: {},
    description: 'Log levels of single parts: plugins by name, and server, http, plugins of the core',
    examples: [{ scheduler: 'debug' }]
  }),
  watch_config: Type.Boolean({ default: false, description: 'Read this file again whenever it has changed' }),
  body_limit: Bytes({ default: '64MiB', description: 'Largest request body', restart: true }),
  shutdown_grace: Duration({
    default: '10s',
    description: 'How long requests in progress may continue after SIGTERM',
    restart: true
  }),
  models_directory: Path({
    default: '',
    description: 'Folder for models; empty is the folder "models" of the data directory',
    restart: true
  }),
  default_model: Type.String({
    default: '',
    description: 'Model for requests that do not name one, in the APIs of OpenAI and llama-server; empty refuses them',
    examples: ['corral/tiny-chat']
  }),
  plugins: Type.Array(Type.String({ minLength: 1 }), {
    default: [],
    uniqueItems: true,
    description:
      'Plugins in addition to the built-in ones: names of npm packages, or paths; each has a section named like it',
    examples: [['./plugins/shelf.js', 'corral-plugin-shelf']],
    restart: true,
    needsTrust: true
  }),
  defaults: Type.Object(
    {
      ...withDefaults(SamplingOptionsSchema.properties, DEFAULT_SAMPLING_OPTIONS),
      ...withDefaults(LoadOptionsSchema.properties, DEFAULT_LOAD_OPTIONS),
      context: Type.Enum(['grow', 'fixed'], {
        default: 'grow',
        description:
          'Whether a model is reloaded with a larger context if a prompt does not fit and neither the request nor the model sets num_ctx; num_ctx other than 4096 also means fixed'
      }),
      context_overflow: { ...contextOverflow, default: 'error' }
    },
    { additionalProperties: true, description: 'Options for requests and models that set none' }
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
          engine: 'vllm',
          files: '/srv/models/tiny',
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
})
export type CoreConfig = Static<typeof CoreConfigSchema>
