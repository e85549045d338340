import { type Static, type TSchema, Type } from 'typebox'
import { LOG_LEVELS } from '../config/core-schema.ts'
import { Count, Described, Flag, Integer, Items, ListOf, Loose, Text, Texts, Titled } from '../http/request-fields.ts'
import { LoadOptionsSchema } from '../models/load-options.ts'
import { STORED_FORMATS } from './models.ts'

/* The records of the native API. They type its functions and commands, and document it. */

/** A time as in all replies. */
export const Time = (description?: string) =>
  Type.String({ format: 'date-time', description: description ?? 'ISO 8601 UTC' })

export const Nanoseconds = (description: string) => Count(`Nanoseconds. ${description}`)

export const Bytes = (description?: string) =>
  Type.Integer({ minimum: 0, description: description ? `Bytes. ${description}` : 'Bytes' })

export const Sha256 = (description = '64 hex digits') => Type.String({ pattern: '^[0-9a-f]{64}$', description })

export const Format = Type.Enum([...STORED_FORMATS])
const ModelFormat = Text(
  'gguf, safetensors, ggml, onnx, checkpoint, or the plugin that provides the model without files'
)

/** A reply that only reports success. */
export const Done = <Status extends string>(status: Status) => Loose({ status: Type.Literal(status) })

/** Another module's schema under a name in the API document. */
export const Named = <Schema extends TSchema>(title: string, schema: Schema) =>
  Type.Unsafe<Static<Schema>>({ ...schema, title })

const names = {
  name: Text('<owner>/<name> for the default variant, <owner>/<name>:<variant> for others'),
  model: Text('The same as name')
}
const digest = Sha256("64 hex digits, computed from the files' digests")
const capabilities = Texts(
  'completion, base (no chat template: it completes text), tools, thinking, vision, audio, insert, embedding, rerank, or an operation such as speak'
)

const detailFields = {
  parent_model: Type.String(),
  format: ModelFormat,
  family: Text('Architecture; empty if unknown'),
  families: Type.Array(Type.String()),
  parameter_size: Text('Such as 7.62B; empty if unknown'),
  quantization_level: Text('Such as Q4_K_M; empty if unknown'),
  context_length: Type.Optional(Integer('Tokens that it was trained for')),
  embedding_length: Type.Optional(Type.Integer())
}
export const ModelDetailsSchema = Titled('ModelDetails', detailFields)
export type ModelDetails = Static<typeof ModelDetailsSchema>

const remote_model = Type.Optional(Text('Its name on the remote server of the configuration that has it'))

const localFields = {
  ...names,
  size: Bytes('Bytes of its own files'),
  format: ModelFormat,
  modified_at: Time('ISO 8601 UTC with milliseconds'),
  digest,
  capabilities,
  aliases: Type.Optional(Texts('Other names from the configuration')),
  remote_model
}
export const LocalModelSchema = Described('LocalModel', 'A variant of a model on disk', {
  ...localFields,
  details: ModelDetailsSchema
})
export type LocalModel = Static<typeof LocalModelSchema>

export const ConversionRecordSchema = Described('Conversion', 'A GGUF that was made from a SafeTensors model', {
  dtype: Text('Such as f16 or q4_k_m'),
  size: Bytes('Bytes of all its files'),
  created_at: Time(),
  converter: Text('Version of the converter that made it'),
  projector: Flag('Whether it has a projector, as models for images and sound do')
})
export type ConversionRecord = Static<typeof ConversionRecordSchema>

export const ModelDescriptionSchema = Titled('ShownModel', {
  modelfile: Text("Empty except in Ollama's profile"),
  details: Loose({ ...localFields, ...detailFields }),
  model_info: Type.Record(Type.String(), Type.Unknown(), { description: "The file's metadata without its arrays" }),
  capabilities,
  context_window: Integer('Tokens that prompt and answer of a request may have together'),
  template: Text('Chat template; empty if there is none'),
  parameters: Text('Options that it was created with: a name and a value on each line'),
  system: Type.Optional(Text('System message for conversations without one')),
  messages: Type.Optional(
    Items('Messages that every conversation begins with', { role: Type.String(), content: Type.String() })
  ),
  license: Type.String(),
  modified_at: localFields.modified_at,
  origin: Loose({
    kind: Type.Enum(['bundled', 'import', 'hub', 'made', 'plugin'], {
      description: 'made: from another model; plugin: provided without files'
    }),
    from: Text('A path, or a hub and its name there'),
    revision: Type.Optional(Text('Identifies the content at the hub: a commit')),
    tag: Type.Optional(Text('The label that it was made under, if any'))
  }),
  files: ListOf({
    path: Text("Relative to the variant's folder"),
    size: Bytes(),
    sha256: Sha256(),
    role: Type.Enum(['model', 'projector', 'draft', 'other'])
  }),
  conversions: Type.Optional(Type.Array(ConversionRecordSchema, { description: 'Only for SafeTensors models' }))
})
export type ShownModel = Static<typeof ModelDescriptionSchema>

/** The same for Ollama's clients. */
export const OllamaModelDescriptionSchema = Titled('OllamaShownModel', {
  ...ModelDescriptionSchema.properties,
  details: ModelDetailsSchema
})
export type OllamaShownModel = Static<typeof OllamaModelDescriptionSchema>

const mode = Text('What its engine is started for: chat, embedding, rerank, or an operation such as speak')
const queued = Count('Queued requests')
const member = Type.Optional(Text('The node of the cluster where it is; absent for this server itself'))

export const PromptCacheProperties = {
  conversations: Count('Stored conversations'),
  tokens: Count('Their tokens'),
  memory: Bytes('Their bytes in main memory'),
  disk: Bytes('Their bytes on disk'),
  hits: Count('Prompts since the start of the server whose conversation was in a slot or restored'),
  misses: Count('Other prompts'),
  restored_tokens: Count('Tokens that were restored instead of processed again'),
  restore_ms: Count('Milliseconds that this took')
}
export const PromptCacheSchema = Titled('PromptCache', PromptCacheProperties)
export type PromptCacheRecord = Static<typeof PromptCacheSchema>

export const SpeculationSchema = Titled('Speculation', {
  method: Text(
    'How the next tokens are guessed ahead: none, mtp (by the model itself), draft (by a model that came with it) or ngram (from earlier text)'
  ),
  tokens_per_second: Type.Record(Type.String(), Type.Number(), {
    description: 'Speed of single answers by method, as far as measured on this machine'
  })
})

export const RunningModelSchema = Described('RunningModel', 'A model in memory', {
  ...names,
  size: Bytes('Memory reserved for it, in all pools together; the size of its files if it uses none here'),
  format: ModelFormat,
  expires_at: Time('When it is unloaded if no request comes; 2999-12-31T23:59:59.000Z is never'),
  digest,
  details: ModelDetailsSchema,
  size_vram: Bytes('The part of size that is on GPUs'),
  context_length: Integer('Tokens of each slot'),
  mode,
  options: Named('LoadOptions', LoadOptionsSchema),
  running: Count('Requests in progress'),
  queued,
  slots: Count('Maximum concurrent requests; of a remote model, its server decides'),
  remote_model,
  generated_tokens: Count(
    'Tokens generated since it was loaded, including answers in progress: to get a speed, ask twice'
  ),
  prompt_cache: Type.Optional(PromptCacheSchema),
  speculation: Type.Optional(SpeculationSchema),
  memory: Type.Optional(
    Type.Record(Type.String(), Bytes(), {
      description: 'Bytes reserved for it by memory pool, such as host or CUDA0'
    })
  ),
  member
})
export type RunningRecord = Static<typeof RunningModelSchema>

export const LoadingModelSchema = Described('LoadingModel', 'A model that is not ready, or is being unloaded', {
  ...names,
  format: ModelFormat,
  mode,
  state: Type.Enum(['queued', 'waiting', 'copying', 'converting', 'loading', 'draining', 'stopping'], {
    description: 'waiting: for memory that other models use; copying: from another node of a cluster'
  }),
  status: Type.Optional(Text('The current step, such as "loading 42%"')),
  progress: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
  queued,
  member
})
export type LoadingRecord = Static<typeof LoadingModelSchema>

export const PoolSchema = Titled('MemoryPool', {
  pool: Text('host, or a GPU such as CUDA0'),
  reserved: Bytes('Set aside for loaded and loading models; their processes often use less'),
  budget: Type.Optional(Bytes('The limit of that; absent if unlimited')),
  free: Type.Optional(Bytes('What more models may take: the budget without what is reserved')),
  used: Type.Optional(Bytes('In use by all programs of the machine now, models included; absent if unknown')),
  total: Type.Optional(Bytes('The size of the memory; absent if unknown'))
})
export type PoolRecord = Static<typeof PoolSchema>

const FileProgressSchema = Loose({ path: Type.String(), completed: Bytes(), total: Bytes() })

export const PullSchema = Titled('Pull', {
  id: Type.String(),
  model: Text('Its future name in lists: <owner>/<name>:<variant>'),
  state: Type.Enum(['waiting', 'downloading', 'storing', 'paused', 'failed'], {
    description: '"waiting" is for other pulls'
  }),
  detached: Flag('Whether it continues without watchers'),
  watchers: Count('Clients that watch it'),
  origin: Type.String(),
  created_at: Time(),
  completed: Bytes('On disk'),
  total: Bytes(),
  speed: Type.Number({ minimum: 0, description: 'Bytes per second in the last seconds' }),
  files: Type.Array(FileProgressSchema),
  reason: Type.Optional(Text('Why it is paused or failed'))
})
export type PullReply = Static<typeof PullSchema>

export const MemberSchema = Described('Member', 'A node of the cluster', {
  name: Type.String(),
  url: Text('Its address'),
  source: Text('Its source: config.yaml, dns, or the name of a plugin'),
  state: Type.Enum(['up', 'draining', 'away'], {
    description: 'up: it gets requests; away: it is unreachable, or does not answer as a node'
  }),
  reason: Type.Optional(Text('Why it is away, and what to do about it')),
  notes: Texts('Hints, such as that it has another version'),
  since: Time('When it entered this state'),
  version: Type.Optional(Text("corral's")),
  build: Type.Optional(Text('Id of the llama.cpp build for new engines on the node')),
  models: Texts('Models on its disk that requests to this server can name'),
  loaded: Texts('Models in its memory'),
  rollout: Type.Optional(Text('What a rollout does there now')),
  slots: Count('Maximum concurrent requests of its engines'),
  running: Count('Requests in progress there, from all clients'),
  queued: Count('Queued requests there'),
  sent: Count('Requests in progress or queued there that this server has sent'),
  pulls: Type.Optional(
    Type.Array(PullSchema, {
      description: 'Models being transferred to it, also from other nodes; absent if unknown'
    })
  ),
  memory: Type.Array(PoolSchema)
})
export type MemberRecord = Static<typeof MemberSchema>

export const ReplicasSchema = Described('Replicas', 'How many nodes have a model in memory, and how many should', {
  model: Text('As in GET /api/tags'),
  mode,
  wanted: Count('Nodes that should have it in memory now'),
  loaded: Count('Nodes that have it'),
  loading: Count('Nodes that are loading it'),
  min: Count('Minimum; `replicas` of the configuration'),
  max: Type.Optional(Count('Maximum; absent if unlimited')),
  members: Type.Optional(Texts('Nodes that should have it')),
  reason: Text('Why this many are wanted, and why there are fewer'),
  failures: Items('Nodes that could not load it', {
    member: Type.String(),
    message: Type.String(),
    retry_at: Time('When the load is retried there')
  })
})
export type ReplicasRecord = Static<typeof ReplicasSchema>

export const PrefixesSchema = Described(
  'Prefixes',
  'What a gateway remembers of the prompts that its nodes have read',
  {
    conversations: Count('Conversations that it remembers'),
    requests: Titled('RoutedRequests', {
      prefix: Count('Requests since the start that went to a node that had read most of the prompt'),
      session: Count('Requests of a known or continued conversation that went to its node for that reason'),
      other: Count('All other requests for text')
    })
  }
)
export type PrefixesRecord = Static<typeof PrefixesSchema>

export const PlanStepSchema = Described('PlanStep', 'What a cluster does to get models where they should be', {
  action: Type.Enum(['load', 'unload', 'copy'], { description: 'copy: only its files' }),
  model: Text('As in GET /api/tags'),
  mode,
  member: Text('The node'),
  from: Type.Optional(Text('The node that its files are copied from')),
  reason: Text('Why, and what the step waits for')
})
export type PlanStepRecord = Static<typeof PlanStepSchema>

export const ImportedSchema = Titled('ImportedModel', {
  status: Type.Literal('success'),
  model: LocalModelSchema,
  linked: Type.Optional(Flag('Its weights were not copied')),
  notes: Type.Optional(Texts('What was not kept, and why'))
})
export type ImportedReply = Static<typeof ImportedSchema>

export const ConvertedSchema = Titled('ConvertedModel', {
  status: Type.Literal('success'),
  model: Type.String(),
  ...ConversionRecordSchema.properties
})
export type ConvertedReply = Static<typeof ConvertedSchema>

const room = Loose({ required: Bytes(), available: Bytes(), fits: Type.Boolean() })

export const PullPlanSchema = Titled('PullPlan', {
  model: Type.String(),
  label: Text('The variant it will become, such as Q4_K_M'),
  format: Format,
  repository: Loose({
    hub: Type.String(),
    id: Type.String(),
    revision: Text('Identifies the content permanently'),
    address: Text('Address of its web page'),
    gated: Flag('Whether the hub requires agreement to terms first')
  }),
  files: ListOf({
    path: Text('Path in the repository'),
    role: Type.Enum(['model', 'projector', 'draft', 'other']),
    size: Type.Optional(Bytes()),
    sha256: Type.Optional(Sha256()),
    gitSha1: Type.Optional(Text("40 hex digits: SHA-1 of git's blob"))
  }),
  size: Bytes('Bytes of all files with a known size'),
  reason: Text('Why these files were chosen'),
  choices: Items('Other variants, best first', { label: Type.String(), size: Bytes() }),
  memory: room,
  disk: room,
  warnings: Type.Array(Type.String()),
  present: Flag('Whether the variant with exactly these files is already stored')
})
export type PlanReply = Static<typeof PullPlanSchema>

/** A repository in the results of a search. */
export const FoundRepositorySchema = Titled('FoundRepository', {
  model: Text('The reference for pulling it, with the prefix of its hub if needed'),
  hub: Type.String(),
  id: Text('<owner>/<name> at the hub'),
  publisher: Type.String(),
  downloads: Type.Optional(Count('As the hub counts them')),
  likes: Type.Optional(Count('As the hub counts them')),
  updated_at: Type.Optional(Text('ISO 8601')),
  license: Type.Optional(Text('Such as apache-2.0')),
  tasks: Texts('Tasks of the model, such as text-generation'),
  gated: Flag('Whether the hub requires agreement to terms first'),
  formats: Type.Array(Format),
  variant: Type.Optional(Text('The variant that a pull chooses by default, such as Q4_K_M')),
  size: Type.Optional(Bytes('Bytes of the files of that variant')),
  memory: Type.Optional(room),
  choices: Type.Optional(Items('The other variants, best first', { label: Type.String(), size: Bytes() })),
  problem: Type.Optional(Text('Why the size is unknown, or why it cannot be pulled'))
})
export type FoundRepository = Static<typeof FoundRepositorySchema>

export const SearchReplySchema = Titled('SearchReply', {
  models: Type.Array(FoundRepositorySchema, { description: 'By hub, the most popular of each first' }),
  hubs: Texts('Hubs that were searched'),
  errors: Items('Hubs that could not be searched', { hub: Type.String(), code: Type.String(), error: Type.String() })
})
export type SearchReply = Static<typeof SearchReplySchema>

export const RepositoryCardSchema = Titled('RepositoryCard', {
  ...PullPlanSchema.properties.repository.properties,
  license: Type.Optional(Text('Such as apache-2.0')),
  capabilities: Texts(
    'tools, thinking, vision, audio, embedding, rerank, transcribe, speak or draw, as far as its files show'
  ),
  readme: Type.Optional(Text('Markdown without its front matter, at most 100,000 characters; absent if there is none')),
  readme_address: Text('Address of the README at the hub, to which its links are relative')
})
export type CardReply = Static<typeof RepositoryCardSchema>

/** A model that corral recommends, from its publisher. */
export const RecommendationSchema = Titled('Recommendation', {
  model: Text('The reference for pulling it'),
  purpose: Type.Enum(['chat', 'code', 'vision', 'embeddings', 'speech']),
  size: Bytes('About the bytes of its smallest good variant'),
  license: Type.String(),
  about: Type.Record(Type.String(), Type.String(), { description: 'A sentence by language, at least in `en`' }),
  memory: room,
  size_class: Type.Enum(['small', 'medium', 'large', 'too_large'], { description: 'By the memory of this machine' })
})
export type Recommendation = Static<typeof RecommendationSchema>

export const PullEventSchema = Titled('PullEvent', {
  status: Text(
    '"pulling <model>", "waiting for other pulls", "downloading <file>", "success", or "error: <message>" in the last event'
  ),
  model: Type.Optional(Text('In the first event, with the fields below: <owner>/<name>')),
  label: Type.Optional(Text('The variant it will become, such as Q4_K_M')),
  format: Type.Optional(Format),
  size: Type.Optional(Bytes('Bytes of all files with a known size')),
  reason: Type.Optional(Text('Why these files were chosen')),
  warnings: Type.Optional(Type.Array(Type.String())),
  present: Type.Optional(Flag('Whether nothing has to be downloaded')),
  digest: Type.Optional(Text("The file's path in the repository")),
  total: Type.Optional(Bytes()),
  completed: Type.Optional(Bytes()),
  error: Type.Optional(Type.String()),
  errorCode: Type.Optional(Type.Integer()),
  code: Type.Optional(Type.String())
})
export type PullEvent = Static<typeof PullEventSchema>

export const WorkStepSchema = Titled('WorkStep', {
  status: Text('The current step'),
  step: Type.Optional(Integer('Number of the current step')),
  steps: Type.Optional(Integer('Number of steps')),
  completed: Type.Optional(Type.Number()),
  total: Type.Optional(Type.Number())
})
export type WorkStep = Static<typeof WorkStepSchema>

/** Counts and durations in Ollama's format. If no answer was requested there are no counts. */
export const CountersSchema = Type.Object({
  total_duration: Nanoseconds('From the request to the end of the answer'),
  load_duration: Nanoseconds('Until the model had loaded, or was found to be loaded'),
  prompt_eval_count: Type.Optional(Integer('Tokens of the prompt')),
  prompt_eval_duration: Type.Optional(Nanoseconds('Prompt processing')),
  eval_count: Type.Optional(Integer('Tokens of the answer')),
  eval_duration: Type.Optional(Nanoseconds('Generation'))
})
export type Counters = Static<typeof CountersSchema>

const SettingChangeSchema = Titled('SettingChange', {
  setting: Text('Such as `limits.max_tokens`'),
  from: Type.Optional(Type.Unknown({ description: 'Its previous value; null if it was not set' })),
  to: Type.Optional(Type.Unknown({ description: 'Its new value' })),
  secret: Type.Optional(Type.Literal(true, { description: 'Whether its values are not shown' }))
})
export type SettingChangeRecord = Static<typeof SettingChangeSchema>

export const ReloadReportSchema = Titled('ReloadReport', {
  file: Type.Union([Type.String(), Type.Null()], { description: 'The configuration file; null if there is none' }),
  applied: Type.Array(SettingChangeSchema, { description: 'Changed settings that are now in effect' }),
  restart: Type.Array(SettingChangeSchema, { description: 'Changed settings that take effect only after a restart' }),
  overridden: Items(
    'Settings that changed in the file without effect, because a flag or an environment variable of the server sets them',
    { setting: Type.String(), by: Type.String() }
  ),
  plugins: Items('Outside plugins whose list or files have changed', {
    name: Type.String(),
    change: Type.Enum(['added', 'replaced', 'removed', 'restart'], {
      description: 'restart: it has hooks for all routes, which only a restart can change'
    })
  }),
  unknown: Items('Unknown settings in the file', {
    where: Type.String(),
    message: Type.String(),
    passedOn: Type.Optional(Type.Literal(true, { description: 'An option of requests, which engines get anyway' }))
  })
})
export type ReloadReport = Static<typeof ReloadReportSchema>

const LayerSchema = Loose({
  value: Type.Unknown(),
  from: Type.Enum(['default', 'config', 'model', 'settings'], {
    description:
      'config: for all models in the configuration; model: by its creator; settings: for it in the configuration'
  })
})

export const ModelPreviewSchema = Titled('ModelPreview', {
  model: Type.String(),
  options: Type.Record(Type.String(), Type.Array(LayerSchema), {
    description: 'The values of each option, the one in force first. keep_alive is in seconds; -1 is for ever'
  }),
  grows: Flag('Whether a longer prompt gets a larger context, because nobody has set one'),
  load: Type.Optional(Named('LoadOptions', LoadOptionsSchema)),
  limited: Type.Optional(
    Type.Partial(LoadOptionsSchema, { description: 'Options of the request that were over a limit, with the limit' })
  ),
  memory: Type.Optional(
    Type.Record(Type.String(), Bytes(), {
      description: 'By pool; absent if the model is on another server, or before a conversion or without a build'
    })
  ),
  size: Type.Optional(Bytes('In all pools together')),
  fits: Type.Optional(
    Type.Enum(['now', 'alone', 'no'], {
      description: 'Beside the loaded models, after they are unloaded, or not at all'
    })
  )
})
export type ModelPreview = Static<typeof ModelPreviewSchema>

const HistorySampleSchema = Described(
  'HistorySample',
  'Averages since the sample before it, over all models and memory pools',
  {
    at: Integer('The end of its time, in seconds since 1970'),
    running: Type.Number({ description: 'Requests in progress' }),
    queued: Type.Number({ description: 'Queued requests' }),
    tokens_per_second: Type.Number({ description: 'Generated tokens' }),
    reserved: Bytes('As in GET /api/ps'),
    used: Type.Optional(Bytes('As in GET /api/ps; absent if it was not measured'))
  }
)
export type HistorySample = Static<typeof HistorySampleSchema>
export const HistorySchema = Titled('History', {
  interval: Integer('Seconds between two samples'),
  samples: Type.Array(HistorySampleSchema, { description: 'Oldest first, the last one until now' })
})
export type HistoryReply = Static<typeof HistorySchema>

export const ServerLogLineSchema = Titled('ServerLogLine', {
  time: Type.Optional(Time()),
  level: Type.Enum([...LOG_LEVELS]),
  part: Type.Optional(Text('The plugin or part of the core, as in GET /api/log-levels')),
  message: Type.String(),
  details: Type.Optional(Loose({}, { description: 'Other fields of the line' }))
})
export type ServerLogLine = Static<typeof ServerLogLineSchema>

export const ConversationSchema = Type.Object(
  {
    id: Type.String(),
    title: Type.String(),
    pinned: Type.Boolean(),
    updated_at: Time(),
    version: Type.Integer({ minimum: 1, description: 'Increases with each change' }),
    size: Type.Integer({ minimum: 0, description: 'Size on disk in bytes' }),
    of: Type.Optional(Text('For a shared copy: the conversation that it is of'))
  },
  { title: 'KeptConversation' }
)
export type ListedConversation = Static<typeof ConversationSchema>
