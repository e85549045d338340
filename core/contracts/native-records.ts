import { type Static, type TSchema, Type } from 'typebox'
import { LoadOptionsSchema } from '../models/load-options.ts'

/*
 * The records of the native API. These schemas type the functions that create them and the commands that print them,
 * and the API document is generated from them.
 */

const loose = { additionalProperties: true }

/** A time as in all replies. */
export const Time = (description?: string) =>
  Type.String({ format: 'date-time', description: description ?? 'ISO 8601 UTC' })

export const Nanoseconds = (description: string) =>
  Type.Integer({ minimum: 0, description: `Nanoseconds. ${description}` })

export const Bytes = (description?: string) =>
  Type.Integer({ minimum: 0, description: description ? `Bytes. ${description}` : 'Bytes' })

export const Sha256 = (description = '64 hex digits') => Type.String({ pattern: '^[0-9a-f]{64}$', description })

export const Format = Type.Enum(['gguf', 'safetensors'])
const ModelFormat = Type.String({
  description: 'gguf, safetensors, or the plugin that provides the model without files'
})

/** A reply that only reports success. */
export const Done = <Status extends string>(status: Status) =>
  Type.Object({ status: Type.Literal(status) }, { additionalProperties: true })

/** Another module's schema under a name in the API document. */
export const Named = <Schema extends TSchema>(title: string, schema: Schema) =>
  Type.Unsafe<Static<Schema>>({ ...schema, title })

const names = {
  name: Type.String({ description: '<owner>/<name> for the default variant, <owner>/<name>:<variant> for others' }),
  model: Type.String({ description: 'The same as name' })
}
const digest = Sha256("64 hex digits, computed from the files' digests")
const capabilities = Type.Array(Type.String(), {
  description:
    'completion, base (no chat template: it completes text), tools, thinking, vision, audio, insert, embedding, rerank'
})

const detailFields = {
  parent_model: Type.String(),
  format: ModelFormat,
  family: Type.String({ description: 'Architecture; empty if unknown' }),
  families: Type.Array(Type.String()),
  parameter_size: Type.String({ description: 'Such as 7.62B; empty if unknown' }),
  quantization_level: Type.String({ description: 'Such as Q4_K_M' }),
  context_length: Type.Optional(Type.Integer({ description: 'Tokens that it was trained for' })),
  embedding_length: Type.Optional(Type.Integer())
}
export const ModelDetailsSchema = Type.Object(detailFields, { ...loose, title: 'ModelDetails' })
export type ModelDetails = Static<typeof ModelDetailsSchema>

const localFields = {
  ...names,
  size: Bytes('Bytes of its own files'),
  format: ModelFormat,
  modified_at: Time('ISO 8601 UTC with milliseconds'),
  digest,
  capabilities,
  aliases: Type.Optional(Type.Array(Type.String(), { description: 'Other names from the configuration' }))
}
export const LocalModelSchema = Type.Object(
  { ...localFields, details: ModelDetailsSchema },
  { ...loose, title: 'LocalModel', description: 'A variant of a model on disk' }
)
export type LocalModel = Static<typeof LocalModelSchema>

export const ConversionRecordSchema = Type.Object(
  {
    dtype: Type.String({ description: 'Such as f16 or q4_k_m' }),
    size: Bytes('Bytes of all its files'),
    created_at: Time(),
    converter: Type.String({ description: 'Version of the converter that made it' }),
    projector: Type.Boolean({ description: 'Whether it has a projector, as models for images and sound do' })
  },
  { ...loose, title: 'Conversion', description: 'A GGUF that was made from a SafeTensors model' }
)
export type ConversionRecord = Static<typeof ConversionRecordSchema>

export const ModelDescriptionSchema = Type.Object(
  {
    modelfile: Type.String({ description: "Empty except in Ollama's profile" }),
    details: Type.Object({ ...localFields, ...detailFields }, loose),
    model_info: Type.Record(Type.String(), Type.Unknown(), { description: "The file's metadata without its arrays" }),
    capabilities,
    template: Type.String({ description: 'Chat template; empty if there is none' }),
    parameters: Type.String({ description: 'Options that it was created with: a name and a value on each line' }),
    system: Type.Optional(Type.String({ description: 'System message for conversations without one' })),
    messages: Type.Optional(
      Type.Array(Type.Object({ role: Type.String(), content: Type.String() }, loose), {
        description: 'Messages that every conversation begins with'
      })
    ),
    license: Type.String(),
    modified_at: localFields.modified_at,
    origin: Type.Object(
      {
        kind: Type.Enum(['bundled', 'import', 'hub', 'made', 'plugin'], {
          description: 'made: from another model; plugin: provided without files'
        }),
        from: Type.String({ description: 'A path, or a hub and its name there' }),
        revision: Type.Optional(Type.String({ description: 'Identifies the content at the hub: a commit' })),
        tag: Type.Optional(Type.String({ description: 'The label that it was made under, if any' }))
      },
      loose
    ),
    files: Type.Array(
      Type.Object(
        {
          path: Type.String({ description: "Relative to the variant's folder" }),
          size: Bytes(),
          sha256: Sha256(),
          role: Type.Enum(['model', 'projector', 'other'])
        },
        loose
      )
    ),
    conversions: Type.Optional(Type.Array(ConversionRecordSchema, { description: 'Only for SafeTensors models' }))
  },
  { ...loose, title: 'ShownModel' }
)
export type ShownModel = Static<typeof ModelDescriptionSchema>

/** The same for Ollama's clients. */
export const OllamaModelDescriptionSchema = Type.Object(
  { ...ModelDescriptionSchema.properties, details: ModelDetailsSchema },
  { ...loose, title: 'OllamaShownModel' }
)
export type OllamaShownModel = Static<typeof OllamaModelDescriptionSchema>

const mode = Type.Enum(['chat', 'embedding', 'rerank'], { description: 'What its engine is started for' })
const queued = Type.Integer({ minimum: 0, description: 'Queued requests' })
const member = Type.Optional(
  Type.String({ description: 'The node of the cluster where it is; absent for this server itself' })
)

export const RunningModelSchema = Type.Object(
  {
    ...names,
    size: Bytes('Memory reserved for it, in all pools together; the size of its files if it uses none here'),
    format: ModelFormat,
    expires_at: Time('When it is unloaded if no request comes; 2999-12-31T23:59:59.000Z is never'),
    digest,
    details: ModelDetailsSchema,
    size_vram: Bytes('The part of size that is on GPUs'),
    context_length: Type.Integer({ description: 'Tokens of each slot' }),
    mode,
    options: Named('LoadOptions', LoadOptionsSchema),
    running: Type.Integer({ minimum: 0, description: 'Requests in progress' }),
    queued,
    slots: Type.Integer({ minimum: 0, description: 'Maximum concurrent requests' }),
    generated_tokens: Type.Integer({
      minimum: 0,
      description: 'Tokens generated since it was loaded, including answers in progress: to get a speed, ask twice'
    }),
    memory: Type.Optional(
      Type.Record(Type.String(), Bytes(), {
        description: 'Bytes reserved for it by memory pool, such as host or CUDA0'
      })
    ),
    member
  },
  { ...loose, title: 'RunningModel', description: 'A model in memory' }
)
export type RunningRecord = Static<typeof RunningModelSchema>

export const LoadingModelSchema = Type.Object(
  {
    ...names,
    format: ModelFormat,
    mode,
    state: Type.Enum(['queued', 'waiting', 'copying', 'converting', 'loading', 'draining', 'stopping'], {
      description: 'waiting: for memory that other models use; copying: from another node of a cluster'
    }),
    status: Type.Optional(Type.String({ description: 'The current step, such as "loading 42%"' })),
    progress: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
    queued,
    member
  },
  { ...loose, title: 'LoadingModel', description: 'A model that is not ready, or is being unloaded' }
)
export type LoadingRecord = Static<typeof LoadingModelSchema>

export const PoolSchema = Type.Object(
  {
    pool: Type.String({ description: 'host, or a GPU such as CUDA0' }),
    reserved: Bytes('Used by all loaded models together'),
    budget: Type.Optional(Bytes('Their limit together; absent if unlimited'))
  },
  { ...loose, title: 'MemoryPool' }
)
export type PoolRecord = Static<typeof PoolSchema>

const FileProgressSchema = Type.Object({ path: Type.String(), completed: Bytes(), total: Bytes() }, loose)

export const PullSchema = Type.Object(
  {
    id: Type.String(),
    model: Type.String({ description: 'Its future name in lists: <owner>/<name>:<variant>' }),
    state: Type.Enum(['waiting', 'downloading', 'storing', 'paused', 'failed'], {
      description: '"waiting" is for other pulls'
    }),
    detached: Type.Boolean({ description: 'Whether it continues without watchers' }),
    watchers: Type.Integer({ minimum: 0, description: 'Clients that watch it' }),
    origin: Type.String(),
    created_at: Time(),
    completed: Bytes('On disk'),
    total: Bytes(),
    speed: Type.Number({ minimum: 0, description: 'Bytes per second in the last seconds' }),
    files: Type.Array(FileProgressSchema),
    reason: Type.Optional(Type.String({ description: 'Why it is paused or failed' }))
  },
  { ...loose, title: 'Pull' }
)
export type PullReply = Static<typeof PullSchema>

export const MemberSchema = Type.Object(
  {
    name: Type.String(),
    url: Type.String({ description: 'Its address' }),
    source: Type.String({ description: 'Its source: config.yaml, dns, or the name of a plugin' }),
    state: Type.Enum(['up', 'draining', 'away'], {
      description: 'up: it gets requests; away: it is unreachable, or does not answer as a node'
    }),
    reason: Type.Optional(Type.String({ description: 'Why it is away, and what to do about it' })),
    notes: Type.Array(Type.String(), { description: 'Hints, such as that it has another version' }),
    since: Time('When it entered this state'),
    version: Type.Optional(Type.String({ description: "corral's" })),
    build: Type.Optional(Type.String({ description: 'Id of the llama.cpp build for new engines on the node' })),
    models: Type.Array(Type.String(), { description: 'Models on its disk that requests to this server can name' }),
    loaded: Type.Array(Type.String(), { description: 'Models in its memory' }),
    slots: Type.Integer({ minimum: 0, description: 'Maximum concurrent requests of its engines' }),
    running: Type.Integer({ minimum: 0, description: 'Requests in progress there, from all clients' }),
    queued: Type.Integer({ minimum: 0, description: 'Queued requests there' }),
    sent: Type.Integer({ minimum: 0, description: 'Requests in progress or queued there that this server has sent' }),
    pulls: Type.Optional(
      Type.Array(PullSchema, {
        description: 'Models being transferred to it, also from other nodes; absent if unknown'
      })
    ),
    memory: Type.Array(PoolSchema)
  },
  { ...loose, title: 'Member', description: 'A node of the cluster' }
)
export type MemberRecord = Static<typeof MemberSchema>

const replicaCount = (description: string) => Type.Integer({ minimum: 0, description })

export const ReplicasSchema = Type.Object(
  {
    model: Type.String({ description: 'As in GET /api/tags' }),
    mode,
    wanted: replicaCount('Nodes that should have it in memory now'),
    loaded: replicaCount('Nodes that have it'),
    loading: replicaCount('Nodes that are loading it'),
    min: replicaCount('Minimum; `replicas` of the configuration'),
    max: Type.Optional(replicaCount('Maximum; absent if unlimited')),
    reason: Type.String({ description: 'Why this many are wanted, and why there are fewer' }),
    failures: Type.Array(
      Type.Object(
        { member: Type.String(), message: Type.String(), retry_at: Time('When the load is retried there') },
        loose
      ),
      { description: 'Nodes that could not load it' }
    )
  },
  { ...loose, title: 'Replicas', description: 'How many nodes have a model in memory, and how many should' }
)
export type ReplicasRecord = Static<typeof ReplicasSchema>

export const ImportedSchema = Type.Object(
  {
    status: Type.Literal('success'),
    model: LocalModelSchema,
    linked: Type.Optional(Type.Boolean({ description: 'Its weights were not copied' })),
    notes: Type.Optional(Type.Array(Type.String(), { description: 'What was not kept, and why' }))
  },
  { ...loose, title: 'ImportedModel' }
)
export type ImportedReply = Static<typeof ImportedSchema>

export const ConvertedSchema = Type.Object(
  { status: Type.Literal('success'), model: Type.String(), ...ConversionRecordSchema.properties },
  { ...loose, title: 'ConvertedModel' }
)
export type ConvertedReply = Static<typeof ConvertedSchema>

const room = Type.Object({ required: Bytes(), available: Bytes(), fits: Type.Boolean() }, loose)

export const PullPlanSchema = Type.Object(
  {
    model: Type.String(),
    label: Type.String({ description: 'The variant it will become, such as Q4_K_M' }),
    format: Format,
    repository: Type.Object(
      {
        hub: Type.String(),
        id: Type.String(),
        revision: Type.String({ description: 'Identifies the content permanently' }),
        address: Type.String({ description: 'Address of its web page' }),
        gated: Type.Boolean({ description: 'Whether the hub requires agreement to terms first' })
      },
      loose
    ),
    files: Type.Array(
      Type.Object(
        {
          path: Type.String({ description: 'Path in the repository' }),
          role: Type.Enum(['model', 'projector', 'other']),
          size: Type.Optional(Bytes()),
          sha256: Type.Optional(Sha256()),
          gitSha1: Type.Optional(Type.String({ description: "40 hex digits: SHA-1 of git's blob" }))
        },
        loose
      )
    ),
    size: Bytes('Bytes of all files with a known size'),
    reason: Type.String({ description: 'Why these files were chosen' }),
    choices: Type.Array(Type.Object({ label: Type.String(), size: Bytes() }, loose), {
      description: 'Other variants, best first'
    }),
    memory: room,
    disk: room,
    warnings: Type.Array(Type.String()),
    present: Type.Boolean({ description: 'Whether the variant with exactly these files is already stored' })
  },
  { ...loose, title: 'PullPlan' }
)
export type PlanReply = Static<typeof PullPlanSchema>

const optionalText = (description: string) => Type.Optional(Type.String({ description }))
const optionalCount = (description: string) => Type.Optional(Type.Integer({ minimum: 0, description }))

/** A repository in the results of a search. */
export const FoundRepositorySchema = Type.Object(
  {
    model: Type.String({ description: 'The reference for pulling it, with the prefix of its hub if needed' }),
    hub: Type.String(),
    id: Type.String({ description: '<owner>/<name> at the hub' }),
    publisher: Type.String(),
    downloads: optionalCount('As the hub counts them'),
    likes: optionalCount('As the hub counts them'),
    updated_at: optionalText('ISO 8601'),
    license: optionalText('Such as apache-2.0'),
    tasks: Type.Array(Type.String(), { description: 'What it is for, such as text-generation' }),
    gated: Type.Boolean({ description: 'Whether the hub requires agreement to terms first' }),
    formats: Type.Array(Format),
    variant: optionalText('The variant that a pull chooses by default, such as Q4_K_M'),
    size: Type.Optional(Bytes('Bytes of the files of that variant')),
    memory: Type.Optional(room),
    choices: Type.Optional(
      Type.Array(Type.Object({ label: Type.String(), size: Bytes() }, loose), {
        description: 'The other variants, best first'
      })
    ),
    problem: optionalText('Why the size is unknown, or why it cannot be pulled')
  },
  { ...loose, title: 'FoundRepository' }
)
export type FoundRepository = Static<typeof FoundRepositorySchema>

export const SearchReplySchema = Type.Object(
  {
    models: Type.Array(FoundRepositorySchema, { description: 'By hub, the most popular of each first' }),
    hubs: Type.Array(Type.String(), { description: 'Hubs that were searched' }),
    errors: Type.Array(Type.Object({ hub: Type.String(), code: Type.String(), error: Type.String() }, loose), {
      description: 'Hubs that could not be searched'
    })
  },
  { ...loose, title: 'SearchReply' }
)
export type SearchReply = Static<typeof SearchReplySchema>

export const PullEventSchema = Type.Object(
  {
    status: Type.String({
      description:
        '"pulling <model>", "waiting for other pulls", "downloading <file>", "success", or "error: <message>" in the last event'
    }),
    model: Type.Optional(Type.String({ description: 'In the first event, with the fields below: <owner>/<name>' })),
    label: Type.Optional(Type.String({ description: 'The variant it will become, such as Q4_K_M' })),
    format: Type.Optional(Format),
    size: Type.Optional(Bytes('Bytes of all files with a known size')),
    reason: Type.Optional(Type.String({ description: 'Why these files were chosen' })),
    warnings: Type.Optional(Type.Array(Type.String())),
    present: Type.Optional(Type.Boolean({ description: 'Whether nothing has to be downloaded' })),
    digest: Type.Optional(Type.String({ description: "The file's path in the repository" })),
    total: Type.Optional(Bytes()),
    completed: Type.Optional(Bytes()),
    error: Type.Optional(Type.String()),
    errorCode: Type.Optional(Type.Integer()),
    code: Type.Optional(Type.String())
  },
  { ...loose, title: 'PullEvent' }
)
export type PullEvent = Static<typeof PullEventSchema>

export const WorkStepSchema = Type.Object(
  {
    status: Type.String({ description: 'The current step' }),
    step: Type.Optional(Type.Integer({ description: 'Number of the current step' })),
    steps: Type.Optional(Type.Integer({ description: 'Number of steps' })),
    completed: Type.Optional(Type.Number()),
    total: Type.Optional(Type.Number())
  },
  { title: 'WorkStep', additionalProperties: true }
)
export type WorkStep = Static<typeof WorkStepSchema>

/** Counts and durations in Ollama's format. If no answer was requested there are no counts. */
export const CountersSchema = Type.Object({
  total_duration: Nanoseconds('From the request to the end of the answer'),
  load_duration: Nanoseconds('Until the model had loaded, or was found to be loaded'),
  prompt_eval_count: Type.Optional(Type.Integer({ description: 'Tokens of the prompt' })),
  prompt_eval_duration: Type.Optional(Nanoseconds('Prompt processing')),
  eval_count: Type.Optional(Type.Integer({ description: 'Tokens of the answer' })),
  eval_duration: Type.Optional(Nanoseconds('Generation'))
})
export type Counters = Static<typeof CountersSchema>

const changeFields = {
  setting: Type.String({ description: 'Such as `limits.max_tokens`' }),
  from: Type.Optional(Type.Unknown({ description: 'Its previous value; null if it was not set' })),
  to: Type.Optional(Type.Unknown({ description: 'Its new value' })),
  secret: Type.Optional(Type.Literal(true, { description: 'Whether its values are not shown' }))
}
const SettingChangeSchema = Type.Object(changeFields, { ...loose, title: 'SettingChange' })
export type SettingChangeRecord = Static<typeof SettingChangeSchema>

/** The result of a reload of the configuration. */
export const ReloadReportSchema = Type.Object(
  {
    file: Type.Union([Type.String(), Type.Null()], { description: 'The configuration file; null if there is none' }),
    applied: Type.Array(SettingChangeSchema, { description: 'Changed settings that are now in effect' }),
    restart: Type.Array(SettingChangeSchema, { description: 'Changed settings that take effect only after a restart' }),
    overridden: Type.Array(Type.Object({ setting: Type.String(), by: Type.String() }, loose), {
      description:
        'Settings that changed in the file without effect, because a flag or an environment variable of the server sets them'
    }),
    unknown: Type.Array(
      Type.Object(
        {
          where: Type.String(),
          message: Type.String(),
          passedOn: Type.Optional(
            Type.Literal(true, { description: 'An option of requests, which engines get anyway' })
          )
        },
        loose
      ),
      { description: 'Unknown settings in the file' }
    )
  },
  { ...loose, title: 'ReloadReport' }
)
export type ReloadReport = Static<typeof ReloadReportSchema>
