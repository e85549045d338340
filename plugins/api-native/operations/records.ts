import { type Static, Type } from 'typebox'
import { LoadOptionsSchema } from '../../../core/models/options.ts'
import { Bytes, Format, Named, Sha256, Time } from './fields.ts'

/*
 * What the native API tells of models. The functions that make the records are typed by these schemas.
 */

const loose = { additionalProperties: true }

const names = {
  name: Type.String({ description: '<owner>/<name> for the default variant, <owner>/<name>:<variant> for others' }),
  model: Type.String({ description: 'The same' })
}
const digest = Sha256("64 hex digits, made of the files' digests")
const capabilities = Type.Array(Type.String(), {
  description: 'completion, tools, thinking, vision, audio, insert, embedding, rerank'
})

const detailFields = {
  parent_model: Type.String(),
  format: Format,
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
  format: Format,
  modified_at: Time('ISO 8601 UTC with milliseconds'),
  digest,
  capabilities
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
        kind: Type.Enum(['bundled', 'import', 'hub', 'made'], { description: 'made: of another model' }),
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

const mode = Type.Enum(['chat', 'embedding', 'rerank'], { description: 'What its engine is started for' })
const queued = Type.Integer({ minimum: 0, description: 'Requests that wait' })

export const RunningModelSchema = Type.Object(
  {
    ...names,
    size: Bytes('Memory that the engine holds where that is known, else the size of the files'),
    format: Format,
    expires_at: Time('When it is unloaded if no request comes; 2999-12-31T23:59:59.000Z is never'),
    digest,
    details: ModelDetailsSchema,
    size_vram: Bytes('Of size: what is held on GPUs'),
    context_length: Type.Integer({ description: 'Tokens of each slot' }),
    mode,
    options: Named('LoadOptions', LoadOptionsSchema),
    running: Type.Integer({ minimum: 0, description: 'Requests that are being answered' }),
    queued
  },
  { ...loose, title: 'RunningModel', description: 'A model in memory' }
)
export type RunningRecord = Static<typeof RunningModelSchema>

export const LoadingModelSchema = Type.Object(
  {
    ...names,
    format: Format,
    mode,
    state: Type.Enum(['queued', 'waiting', 'converting', 'loading', 'draining', 'stopping'], {
      description: 'waiting: for room that other models hold'
    }),
    status: Type.Optional(Type.String({ description: 'What is being done, such as "loading 42%"' })),
    progress: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
    queued
  },
  { ...loose, title: 'LoadingModel', description: 'A model that is not ready, or not ready any longer' }
)
export type LoadingRecord = Static<typeof LoadingModelSchema>
