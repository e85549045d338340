import { Type } from 'typebox'
import {
  each,
  Given,
  keep_alive,
  ListOf,
  Loose,
  loose,
  named,
  requestOptions,
  Titled
} from '../../../core/plugins/public-api.ts'

const Texts = Type.Union([Type.String(), Type.Array(Type.String())])
const generating = {
  ...named,
  ...requestOptions,
  keep_alive,
  n_predict: requestOptions.max_tokens,
  stream: Given(Type.Boolean({ default: false })),
  stop: Given(Texts),
  return_tokens: Given(Type.Boolean({ default: false })),
  return_progress: Given(Type.Boolean({ default: false })),
  response_fields: Given(Type.Array(Type.String()))
}

const Part = Type.Union([Type.String(), Type.Integer({ minimum: 0, maximum: 2 ** 31 - 1 })])
const PromptObject = Loose({ prompt_string: Type.String() })

export const CompletionRequest = Titled('LlamaCompletionRequest', {
  ...generating,
  prompt: Type.Union([
    Type.String(),
    PromptObject,
    Type.Array(Type.Union([Part, Type.Array(Part, { minItems: 1 }), PromptObject]), { minItems: 1 })
  ])
})

export const InfillRequest = Titled('LlamaInfillRequest', {
  ...generating,
  input_prefix: Given(Type.String()),
  input_suffix: Given(Type.String()),
  input_extra: Given(ListOf({ filename: Given(Type.String()), text: Type.String() })),
  prompt: Given(Type.String())
})

const Content = Type.Union([
  Type.String(),
  Type.Array(Type.String({ minLength: 1 }), { minItems: 1 }),
  Type.Array(Type.Integer({ minimum: 0, maximum: 2 ** 31 - 1 }), { minItems: 1 })
])
export const EmbeddingRequest = Loose({ ...named, content: Given(Content), input: Given(Content), keep_alive })

export const NamedRequest = Loose(named)

const model = Type.Optional(Type.String({ description: '<owner>/<name> or <owner>/<name>:<variant>' }))
export const ModelQuery = Type.Object({ model }, loose)
export const PropsQuery = Type.Object(
  { model, autoload: Type.Optional(Type.String({ description: 'false: do not load the model for this request' })) },
  loose
)

export const ConversationQuery = Type.Object(
  {
    conv_id: Type.String({ minLength: 1, description: 'The value of X-Conversation-Id' }),
    from: Type.Optional(
      Type.String({ pattern: '^[0-9]{1,15}$', description: 'Number of bytes of the body that were received' })
    )
  },
  loose
)
export const LookupRequest = Loose({
  conversation_ids: Type.Array(Type.String(), { maxItems: 1000 })
})

export const HealthSchema = Titled('Health', {
  status: Type.Literal('ok'),
  draining: Type.Optional(Type.Literal(true))
})

export const PropsSchema = Loose({
  role: Type.Optional(Type.Literal('router')),
  default_generation_settings: Loose({ params: Loose({}), n_ctx: Type.Integer() }),
  ...each(Type.String(), 'model_alias', 'model_path', 'build_info'),
  total_slots: Type.Optional(Type.Integer()),
  modalities: Type.Optional(Loose({ vision: Type.Boolean(), audio: Type.Boolean(), video: Type.Boolean() })),
  chat_template: Type.Optional(Type.String()),
  max_instances: Type.Optional(Type.Integer()),
  models_autoload: Type.Optional(Type.Boolean()),
  ui: Type.Optional(Type.Boolean()),
  ui_settings: Type.Optional(Loose({})),
  cors_proxy_enabled: Type.Optional(Type.Boolean())
})

export const SlotSchema = Loose({
  id: Type.Integer(),
  model: Type.String(),
  n_ctx: Type.Integer(),
  is_processing: Type.Boolean()
})

export const DoneSchema = Loose({ success: Type.Literal(true) })

export const FeedEventSchema = Titled('ModelFeedEvent', {
  model: Type.String(),
  event: Type.String(),
  data: Loose({})
})

/** All fields are optional because a request may select fields with `response_fields`. */
export const CompletionEvent = Titled('LlamaCompletion', {
  index: Type.Optional(Type.Integer()),
  content: Type.Optional(Type.String()),
  tokens: Type.Optional(Type.Array(Type.Integer())),
  stop: Type.Optional(Type.Boolean()),
  ...each(Type.Optional(Type.String()), 'stop_type', 'stopping_word', 'model'),
  tokens_predicted: Type.Optional(Type.Integer()),
  tokens_evaluated: Type.Optional(Type.Integer()),
  truncated: Type.Optional(Type.Boolean()),
  timings: Type.Optional(Loose({})),
  generation_settings: Type.Optional(Loose({}))
})

export const VectorSchema = Loose({ index: Type.Integer(), embedding: Type.Array(Type.Array(Type.Number())) })

export const StreamRecord = Loose({
  conversation_id: Type.String(),
  is_done: Type.Boolean(),
  ...each(Type.Integer(), 'total_bytes', 'started_at', 'completed_at')
})
