import { type Static, type TProperties, Type } from 'typebox'
import { PageOf } from '../../../../core/http/list-page.ts'
import {
  each,
  Given,
  ignored,
  keep_alive,
  ListOf,
  Loose,
  named,
  OrNull,
  options,
  Titled
} from '../../../../core/http/request-fields.ts'
import { SamplingOptionsSchema } from '../../../../core/models/options.ts'

const { temperature, top_p } = SamplingOptionsSchema.properties
const text = Given(Type.String())
const NOT_HERE = Type.Optional(Type.Unknown())
const NO_EFFECT = Given(Type.String())

/** The body of `POST /v1/responses` and, in part, of `/v1/responses/input_tokens`. */
export const ResponseRequest = Titled('ResponseRequest', {
  ...named,
  input: Given(Type.Union([Type.String(), ListOf({})])),
  instructions: Given(Type.String()),
  previous_response_id: Given(Type.String()),
  tools: Given(ListOf({})),
  tool_choice: Given(Type.Union([Type.String(), Loose({})])),
  parallel_tool_calls: Given(Type.Boolean()),
  text: Given(Loose({ format: Given(Loose({})), verbosity: text })),
  reasoning: Given(Loose({ effort: text, summary: text })),
  options,
  keep_alive,
  stream: Given(Type.Boolean({ default: false })),
  store: Given(Type.Boolean({ default: true })),
  max_output_tokens: Given(Type.Integer({ minimum: 1, maximum: 2 ** 31 - 1 })),
  temperature: Given(temperature),
  top_p: Given(top_p),
  stop: Given(Type.Union([Type.String(), Type.Array(Type.String())])),
  top_logprobs: Given(Type.Integer({ minimum: 0, maximum: 20 })),
  include: Given(Type.Array(Type.String())),
  truncation: Given(Type.Enum(['auto', 'disabled'])),
  metadata: Given(Type.Object({}, { additionalProperties: Type.String() })),
  user: text,
  background: Given(Type.Boolean()),
  service_tier: NO_EFFECT,
  safety_identifier: NO_EFFECT,
  prompt_cache_key: Given(Type.String()),
  conversation: NOT_HERE,
  prompt: NOT_HERE,
  context_management: Given(
    ListOf({ type: Type.Literal('compaction'), compact_threshold: Given(Type.Integer({ minimum: 1 })) })
  ),
  moderation: NOT_HERE,
  max_tool_calls: Type.Optional(Type.Unknown()),
  ...ignored('personality', 'prompt_cache_options', 'prompt_cache_retention', 'stream_options')
})
export type ResponseRequest = Static<typeof ResponseRequest>

export const ResponseId = Type.Object({ id: Type.String({ description: 'resp_…' }) })

export const RetrieveQuery = Loose({
  stream: Type.Optional(Type.String({ description: 'Must be false: a response that has ended cannot be streamed' }))
})

export const ItemsQuery = Loose({
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 100, default: 20 })),
  order: Type.Optional(Type.Enum(['asc', 'desc'], { default: 'desc' })),
  after: Type.Optional(Type.String({ description: 'Id of the last item of the previous page' }))
})
export type ItemsQuery = Static<typeof ItemsQuery>

const item = { id: Type.String(), status: Type.Enum(['in_progress', 'completed', 'incomplete']) }
const ItemOf = <Kind extends string, Fields extends TProperties>(title: string, kind: Kind, fields: Fields) =>
  Titled(title, { type: Type.Literal(kind), ...item, ...fields })
const call = { call_id: Type.String(), name: Type.String(), namespace: Type.Optional(Type.String()) }
const probability = { token: Type.String(), bytes: Type.Array(Type.Integer()), logprob: Type.Number() }

/** The parts of user and system messages and of call outputs. */
const InputPart = Type.Union(
  [
    Loose({ type: Type.Literal('input_text'), text: Type.String() }),
    Loose({ type: Type.Literal('input_image'), image_url: Type.Unknown(), detail: Type.String() }),
    Loose({ type: Type.Literal('input_audio'), input_audio: Loose({ data: Type.Unknown() }) }),
    Loose({
      type: Type.Literal('input_file'),
      ...each(Type.Optional(Type.String()), 'file_data', 'file_id', 'file_url', 'filename')
    })
  ],
  { title: 'InputPart' }
)
export type InputPart = Static<typeof InputPart>

const InputMessage = ItemOf('InputMessageItem', 'message', {
  role: Type.Enum(['user', 'developer', 'system']),
  content: Type.Array(InputPart)
})
const OutputMessage = ItemOf('OutputMessageItem', 'message', {
  role: Type.Literal('assistant'),
  content: ListOf({
    type: Type.Literal('output_text'),
    text: Type.String(),
    annotations: Type.Array(Type.Unknown()),
    logprobs: ListOf({ ...probability, top_logprobs: ListOf(probability) })
  })
})
export type OutputMessage = Static<typeof OutputMessage>

const Reasoning = ItemOf('ReasoningItem', 'reasoning', {
  summary: ListOf({ type: Type.Literal('summary_text'), text: Type.String() }),
  content: ListOf({ type: Type.Literal('reasoning_text'), text: Type.String() })
})
export type Reasoning = Static<typeof Reasoning>

const FunctionCall = ItemOf('FunctionCallItem', 'function_call', {
  ...call,
  arguments: Type.String()
})
export type FunctionCall = Static<typeof FunctionCall>

const FunctionCallOutput = ItemOf('FunctionCallOutputItem', 'function_call_output', {
  call_id: Type.String(),
  output: Type.Union([Type.String(), Type.Array(InputPart)])
})

const CustomToolCall = ItemOf('CustomToolCallItem', 'custom_tool_call', {
  ...call,
  input: Type.String()
})
export type CustomToolCall = Static<typeof CustomToolCall>

const CompactionItem = ItemOf('CompactionItem', 'compaction', {
  encrypted_content: Type.String()
})
export type CompactionItem = Static<typeof CompactionItem>

const OtherItem = Titled('OtherItem', { type: Type.String(), ...item })

const OutputItem = Type.Union([OutputMessage, Reasoning, FunctionCall, CustomToolCall, CompactionItem, OtherItem])
export type OutputItem = Static<typeof OutputItem>
export type Message = Static<typeof InputMessage> | OutputMessage
const Item = Type.Union([
  InputMessage,
  FunctionCallOutput,
  OutputMessage,
  Reasoning,
  FunctionCall,
  CustomToolCall,
  CompactionItem,
  OtherItem
])
export type Item = Static<typeof Item>

export const Response = Titled('Response', {
  id: Type.String(),
  object: Type.Literal('response'),
  created_at: Type.Integer(),
  completed_at: OrNull(Type.Integer()),
  status: Type.Enum(['completed', 'incomplete']),
  background: Type.Literal(false),
  error: Type.Null(),
  incomplete_details: OrNull(Loose({ reason: Type.Literal('max_output_tokens') })),
  instructions: OrNull(Type.String()),
  max_output_tokens: OrNull(Type.Integer()),
  metadata: Type.Record(Type.String(), Type.String()),
  model: Type.String(),
  output: Type.Array(OutputItem),
  parallel_tool_calls: Type.Boolean(),
  previous_response_id: OrNull(Type.String()),
  reasoning: Loose({ effort: OrNull(Type.String()), summary: OrNull(Type.String()) }),
  store: Type.Boolean(),
  temperature: OrNull(Type.Number()),
  text: Loose({ format: Loose({}), verbosity: Type.String() }),
  tool_choice: Type.Union([Type.String(), Loose({})]),
  tools: ListOf({ type: Type.String() }),
  top_logprobs: Type.Integer(),
  top_p: OrNull(Type.Number()),
  truncation: Type.Enum(['auto', 'disabled']),
  usage: Loose({
    input_tokens: Type.Integer(),
    input_tokens_details: Loose({ cached_tokens: Type.Integer() }),
    output_tokens: Type.Integer(),
    output_tokens_details: Loose({ reasoning_tokens: Type.Integer() }),
    total_tokens: Type.Integer()
  })
})

export const CompactedResponse = Titled('CompactedResponse', {
  id: Type.String(),
  object: Type.Literal('response.compaction'),
  created_at: Type.Integer(),
  output: Type.Array(Item),
  usage: Response.properties.usage
})

export const ItemList = PageOf(Item)

export const Deleted = Loose({ id: Type.String(), object: Type.Literal('response'), deleted: Type.Literal(true) })

export const TokenCount = Loose({ object: Type.Literal('response.input_tokens'), input_tokens: Type.Integer() })
