import { type Static, type TSchema, Type } from 'typebox'
import { LoadOptionsSchema } from '../models/load-options.ts'

/*
 * The records of the native API. These schemas type the functions that make them and the commands that print them, and
 * the API document is made of them.
 */

const loose = { additionalProperties: true }

/** A moment as all replies give it. */
export const Time = (description?: string) =>
  Type.String({ format: 'date-time', description: description ?? 'ISO 8601 UTC' })

export const Nanoseconds = (description: string) =>
  Type.Integer({ minimum: 0, description: `Nanoseconds. ${description}` })

export const Bytes = (description?: string) =>
  Type.Integer({ minimum: 0, description: description ? `Bytes. ${description}` : 'Bytes' })

export const Sha256 = (description = '64 hex digits') => Type.String({ pattern: '^[0-9a-f]{64}$', description })

export const Format = Type.Enum(['gguf', 'safetensors'])
const ModelFormat = Type.String({ description: 'gguf, safetensors, or the plugin that brings the model without files' })

/** A reply that only says that something is done. */
export const Done = <Status extends string>(status: Status) =>
  Type.Object({ status: Type.Literal(status) }, { additionalProperties: true })

/** A schema of elsewhere under a name in the document. */
export const Named = <Schema extends TSchema>(title: string, schema: Schema) =>
  Type.Unsafe<Static<Schema>>({ ...schema, title })

const names = {
  name: Type.String({ description: '<owner>/<name> for the default variant, <owner>/<name>:<variant> for others' }),
  model: Type.String({ description: 'The same' })
}
const digest = Sha256("64 hex digits, made of the files' digests")
const capabilities = Type.Array(Type.String(), {
  description:
    'completion, base (no chat template: it completes text), tools, thinking, vision, audio, insert, embedding, rerank'
})

const detailFields = {
  parent_model: Type.String(),
  format: ModelFormat,
  family: Type.String({ description: 'Architecture; empty where unknown' }),
  families: Type.Array(Type.String()),
  parameter_size: Type.String({ description: 'Such as 7.62B; empty where unknown' }),
  quantization_level: Type.String({ description: 'Such as Q4_K_M' }),
  context_length: Type.Optional(Type.Integer({ description: 'Tokens that it was trained for' })),
  embedding_length: Type.Optional(Type.Integer())
}
export const ModelDetailsSchema = Type.Object(detailFields, { ...loose, title: 'ModelDetails' })
export type ModelDetails = Static<typeof ModelDetailsSchema>

const localFields = {
  ...names,
  size: Bytes('Of its own files'),
  format: ModelFormat,
  modified_at: Time('ISO 8601 UTC with milliseconds'),
  digest,
  capabilities,
  aliases: Type.Optional(Type.Array(Type.String(), { description: 'Other names that the configuration gives it' }))
}
export const LocalModelSchema = Type.Object(
  { ...localFields, details: ModelDetailsSchema },
  { ...loose, title: 'LocalModel', description: 'A variant of a model on disk' }
)
export type LocalModel = Static<typeof LocalModelSchema>

export const ConversionRecordSchema = Type.Object(
  {
    dtype: Type.String({ description: 'Such as f16 or q4_k_m' }),
    size: Bytes('Of all its files'),
    created_at: Time(),
    converter: Type.String({ description: 'Version of the converter that made it' }),
    projector: Type.Boolean({ description: 'Whether it has a projector, as what sees or hears has' })
  },
  { ...loose, title: 'Conversion', description: 'A GGUF that was made of a SafeTensors model' }
)
export type ConversionRecord = Static<typeof ConversionRecordSchema>

export const ShownModelSchema = Type.Object(
  {
    modelfile: Type.String({ description: "Empty but in the profile for Ollama's clients" }),
    details: Type.Object({ ...localFields, ...detailFields }, loose),
    model_info: Type.Record(Type.String(), Type.Unknown(), { description: "The file's metadata without its arrays" }),
    capabilities,
    template: Type.String({ description: 'Chat template; empty where there is none' }),
    parameters: Type.String({ description: 'Options that it was made with: a name and a value on each line' }),
    system: Type.Optional(Type.String({ description: 'System message of conversations that have none' })),
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
          description: 'made: of another model; plugin: brought without files'
        }),
        from: Type.String({ description: 'A path, or a hub and what it has the model under' }),
        revision: Type.Optional(Type.String({ description: 'Names the content at the hub: a commit' })),
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
    conversions: Type.Optional(Type.Array(ConversionRecordSchema, { description: 'Of SafeTensors models only' }))
  },
  { ...loose, title: 'ShownModel' }
)
export type ShownModel = Static<typeof ShownModelSchema>

/** The same for Ollama's clients. */
export const OllamaShownModelSchema = Type.Object(
  { ...ShownModelSchema.properties, details: ModelDetailsSchema },
  { ...loose, title: 'OllamaShownModel' }
)
export type OllamaShownModel = Static<typeof OllamaShownModelSchema>

const mode = Type.Enum(['chat', 'embedding', 'rerank'], { description: 'What its engine is started for' })
const queued = Type.Integer({ minimum: 0, description: 'Requests that wait' })
const member = Type.Optional(
  Type.String({ description: 'The member of the cluster where it is; absent for this server itself' })
)

export const RunningModelSchema = Type.Object(
  {
    ...names,
    size: Bytes('Memory that is reserved for it, in all pools together; the size of its files if it takes none here'),
    format: ModelFormat,
    expires_at: Time('When it is unloaded if no request comes; 2999-12-31T23:59:59.000Z is never'),
    digest,
    details: ModelDetailsSchema,
    size_vram: Bytes('Of size: what is on GPUs'),
    context_length: Type.Integer({ description: 'Tokens of each slot' }),
    mode,
    options: Named('LoadOptions', LoadOptionsSchema),
    running: Type.Integer({ minimum: 0, description: 'Requests that are being answered' }),
    queued,
    slots: Type.Integer({ minimum: 0, description: 'Requests that it answers at once' }),
    generated_tokens: Type.Integer({
      minimum: 0,
      description:
        'Tokens of its answers since it was loaded, those of running answers included: for a speed, ask twice'
    }),
    memory: Type.Optional(
      Type.Record(Type.String(), Bytes(), {
        description: 'Bytes that are reserved for it by memory pool, such as host or CUDA0'
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
      description: 'waiting: for room that other models hold; copying: from another member of a cluster'
    }),
    status: Type.Optional(Type.String({ description: 'What is being done, such as "loading 42%"' })),
    progress: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
    queued,
    member
  },
  { ...loose, title: 'LoadingModel', description: 'A model that is not ready, or not ready any longer' }
)
export type LoadingRecord = Static<typeof LoadingModelSchema>

export const PoolSchema = Type.Object(
  {
    pool: Type.String({ description: 'host, or a GPU such as CUDA0' }),
    reserved: Bytes('For all loaded models together'),
    budget: Type.Optional(Bytes('That they may have together; absent where there is no limit'))
  },
  { ...loose, title: 'MemoryPool' }
)
export type PoolRecord = Static<typeof PoolSchema>

const FileProgressSchema = Type.Object({ path: Type.String(), completed: Bytes(), total: Bytes() }, loose)

export const PullSchema = Type.Object(
  {
    id: Type.String(),
    model: Type.String({ description: 'As it will be listed: <owner>/<name>:<variant>' }),
    state: Type.Enum(['waiting', 'downloading', 'storing', 'paused', 'failed'], {
      description: '"waiting" is for other pulls'
    }),
    detached: Type.Boolean({ description: 'Goes on without anybody watching' }),
    watchers: Type.Integer({ minimum: 0, description: 'Clients that follow it' }),
    origin: Type.String(),
    created_at: Time(),
    completed: Bytes('On disk'),
    total: Bytes(),
    speed: Type.Number({ minimum: 0, description: 'Bytes a second in the last seconds' }),
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
    source: Type.String({ description: 'How it is known: config.yaml, dns, or what a plugin is called' }),
    state: Type.Enum(['up', 'draining', 'away'], {
      description: 'Requests go to those that are up; away: it cannot be reached, or does not answer as a member'
    }),
    reason: Type.Optional(Type.String({ description: 'Why it is away, and what to do about it' })),
    notes: Type.Array(Type.String(), { description: 'What is worth knowing, such as that it has another version' }),
    since: Time('Since when it is in this state'),
    version: Type.Optional(Type.String({ description: "corral's" })),
    build: Type.Optional(Type.String({ description: 'Id of the llama.cpp build that new engines run on there' })),
    models: Type.Array(Type.String(), { description: 'Models on its disk that requests here can name' }),
    loaded: Type.Array(Type.String(), { description: 'Those that are in its memory' }),
    slots: Type.Integer({ minimum: 0, description: 'Requests that its engines answer at once' }),
    running: Type.Integer({ minimum: 0, description: 'Requests that are answered there, whoever sent them' }),
    queued: Type.Integer({ minimum: 0, description: 'Requests that wait there' }),
    sent: Type.Integer({ minimum: 0, description: 'Of both: those that this server has sent' }),
    pulls: Type.Optional(
      Type.Array(PullSchema, { description: 'Models on their way to it, from other members too; absent where unknown' })
    ),
    memory: Type.Array(PoolSchema)
  },
  { ...loose, title: 'Member', description: 'A server that answers for this one' }
)
export type MemberRecord = Static<typeof MemberSchema>

const replicaCount = (description: string) => Type.Integer({ minimum: 0, description })

export const ReplicasSchema = Type.Object(
  {
    model: Type.String({ description: 'As in GET /api/tags' }),
    mode,
    wanted: replicaCount('Members that should have it in memory now'),
    loaded: replicaCount('Members that have it'),
    loading: replicaCount('Members that load it'),
    min: replicaCount('So many always have it; `replicas` of the configuration'),
    max: Type.Optional(replicaCount('At most so many are made; absent where there is no limit')),
    reason: Type.String({ description: 'Why so many are wanted, and what is in the way where there are fewer' }),
    failures: Type.Array(
      Type.Object(
        { member: Type.String(), message: Type.String(), retry_at: Time('Before that it is not tried there again') },
        loose
      ),
      { description: 'Members that could not load it' }
    )
  },
  { ...loose, title: 'Replicas', description: 'At how many members a model is in memory, and should be' }
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
    label: Type.String({ description: 'Variant that it will be, such as Q4_K_M' }),
    format: Format,
    repository: Type.Object(
      {
        hub: Type.String(),
        id: Type.String(),
        revision: Type.String({ description: 'Names the content for good' }),
        address: Type.String({ description: 'Where people see it' }),
        gated: Type.Boolean({ description: 'The hub wants the reader to agree to terms first' })
      },
      loose
    ),
    files: Type.Array(
      Type.Object(
        {
          path: Type.String({ description: 'In the repository' }),
          role: Type.Enum(['model', 'projector', 'other']),
          size: Type.Optional(Bytes()),
          sha256: Type.Optional(Sha256()),
          gitSha1: Type.Optional(Type.String({ description: "40 hex digits: SHA-1 of git's blob" }))
        },
        loose
      )
    ),
    size: Bytes('Of all files whose size is known'),
    reason: Type.String({ description: 'Why these files' }),
    choices: Type.Array(Type.Object({ label: Type.String(), size: Bytes() }, loose), {
      description: 'What else could be had, the best first'
    }),
    memory: room,
    disk: room,
    warnings: Type.Array(Type.String()),
    present: Type.Boolean({ description: 'The variant with exactly these files is stored already' })
  },
  { ...loose, title: 'PullPlan' }
)
export type PlanReply = Static<typeof PullPlanSchema>

const optionalText = (description: string) => Type.Optional(Type.String({ description }))
const optionalCount = (description: string) => Type.Optional(Type.Integer({ minimum: 0, description }))

/** A repository that a search has found. */
export const FoundRepositorySchema = Type.Object(
  {
    model: Type.String({ description: 'The reference to pull it by, with the prefix of its hub where it needs one' }),
    hub: Type.String(),
    id: Type.String({ description: '<owner>/<name> at the hub' }),
    publisher: Type.String(),
    downloads: optionalCount('As the hub counts them'),
    likes: optionalCount('As the hub counts them'),
    updated_at: optionalText('ISO 8601'),
    license: optionalText('Such as apache-2.0'),
    tasks: Type.Array(Type.String(), { description: 'What it is for, such as text-generation' }),
    gated: Type.Boolean({ description: 'The hub wants the reader to agree to terms first' }),
    formats: Type.Array(Format),
    variant: optionalText('What a pull without a variant would choose, such as Q4_K_M'),
    size: Type.Optional(Bytes('Of the files of that variant')),
    memory: Type.Optional(room),
    choices: Type.Optional(
      Type.Array(Type.Object({ label: Type.String(), size: Bytes() }, loose), {
        description: 'The other variants, the best first'
      })
    ),
    problem: optionalText('Why the size is not known, or why it cannot be pulled')
  },
  { ...loose, title: 'FoundRepository' }
)
export type FoundRepository = Static<typeof FoundRepositorySchema>

export const SearchReplySchema = Type.Object(
  {
    models: Type.Array(FoundRepositorySchema, { description: 'By hub; of each hub the most popular first' }),
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
        '"pulling <model>", "waiting for other pulls", "downloading <file>", "success", or "error: <message>" as the last one'
    }),
    model: Type.Optional(Type.String({ description: 'In the first event, with the fields below: <owner>/<name>' })),
    label: Type.Optional(Type.String({ description: 'Variant that it will be, such as Q4_K_M' })),
    format: Type.Optional(Format),
    size: Type.Optional(Bytes('Of all files whose size is known')),
    reason: Type.Optional(Type.String({ description: 'Why these files' })),
    warnings: Type.Optional(Type.Array(Type.String())),
    present: Type.Optional(Type.Boolean({ description: 'Nothing is to be fetched' })),
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
    status: Type.String({ description: 'What is being done' }),
    step: Type.Optional(Type.Integer({ description: 'Which part of the work this is' })),
    steps: Type.Optional(Type.Integer({ description: 'How many there are' })),
    completed: Type.Optional(Type.Number()),
    total: Type.Optional(Type.Number())
  },
  { title: 'WorkStep', additionalProperties: true }
)
export type WorkStep = Static<typeof WorkStepSchema>

/** What it cost, as Ollama's clients read it. Where no answer was requested there are no counts. */
export const CountersSchema = Type.Object({
  total_duration: Nanoseconds('From the request to the end of the answer'),
  load_duration: Nanoseconds('Until the model had loaded, or was found to be loaded'),
  prompt_eval_count: Type.Optional(Type.Integer({ description: 'Tokens of the prompt' })),
  prompt_eval_duration: Type.Optional(Nanoseconds('Reading them')),
  eval_count: Type.Optional(Type.Integer({ description: 'Tokens of the answer' })),
  eval_duration: Type.Optional(Nanoseconds('Generating them'))
})
export type Counters = Static<typeof CountersSchema>

const changeFields = {
  setting: Type.String({ description: 'Such as `limits.max_tokens`' }),
  from: Type.Optional(Type.Unknown({ description: 'What it was; null where it was not there' })),
  to: Type.Optional(Type.Unknown({ description: 'What the configuration says now' })),
  secret: Type.Optional(Type.Literal(true, { description: 'Its values are not shown' }))
}
const SettingChangeSchema = Type.Object(changeFields, { ...loose, title: 'SettingChange' })
export type SettingChangeRecord = Static<typeof SettingChangeSchema>

/** What became of a reload of the configuration. */
export const ReloadReportSchema = Type.Object(
  {
    file: Type.Union([Type.String(), Type.Null()], { description: 'The configuration file; null where there is none' }),
    applied: Type.Array(SettingChangeSchema, { description: 'Changed settings that are in force now' }),
    restart: Type.Array(SettingChangeSchema, { description: 'Those that count from the next start of the server on' }),
    overridden: Type.Array(Type.Object({ setting: Type.String(), by: Type.String() }, loose), {
      description:
        'Those that the file has changed without effect, since a flag or the environment of the server decides them'
    }),
    unknown: Type.Array(
      Type.Object(
        {
          where: Type.String(),
          message: Type.String(),
          passedOn: Type.Optional(Type.Literal(true, { description: 'An option of requests, which engines get' }))
        },
        loose
      ),
      { description: 'Settings of the file that corral does not know' }
    )
  },
  { ...loose, title: 'ReloadReport' }
)
export type ReloadReport = Static<typeof ReloadReportSchema>
