import { type Static, Type } from 'typebox'
import {
  each,
  Given,
  ignored,
  keep_alive,
  ListOf,
  Loose,
  OrNull,
  options,
  Titled
} from '../../../core/http/request-fields.ts'
import { errorsWithin } from '../../../core/http/response-schemas.ts'
import { anthropicFields } from '../../../core/models/anthropic-record.ts'

const text = Given(Type.String())

const Block = Loose({
  type: Type.String(),
  text: text,
  thinking: text,
  id: Given(Type.String()),
  name: Given(Type.String()),
  input: Type.Optional(Type.Unknown()),
  tool_use_id: Given(Type.String()),
  is_error: Given(Type.Boolean()),
  content: Type.Optional(Type.Unknown()),
  source: Type.Optional(Type.Unknown()),
  title: Given(Type.String()),
  context: Given(Type.String())
})

const MessageParam = Titled('MessageParam', {
  role: Type.Enum(['user', 'assistant', 'system']),
  // The array comes first so that errors name the wrong element within it.
  content: Type.Optional(Type.Union([Type.Array(Block), Type.String()])),
  clear_at: Given(Type.String())
})
export type MessageParam = Static<typeof MessageParam>

const ToolParam = Titled('ToolParam', {
  type: Given(Type.String()),
  name: text,
  description: text,
  input_schema: Given(Loose({})),
  defer_loading: Given(Type.Boolean())
})
export type ToolParam = Static<typeof ToolParam>

const Format = Loose({ type: Type.Literal('json_schema'), schema: Loose({}) })

const Threshold = Given(Loose({ type: text, value: Type.Integer({ minimum: 0 }) }))

const Edit = Titled('ContextEdit', {
  type: Type.String(),
  trigger: Threshold,
  keep: Given(Type.Union([Loose({ type: text, value: Given(Type.Integer({ minimum: 0 })) }), Type.String()])),
  clear_at_least: Threshold,
  exclude_tools: Given(Type.Array(Type.String())),
  clear_tool_inputs: Given(Type.Union([Type.Array(Type.String()), Type.Boolean()])),
  instructions: text,
  pause_after_compaction: Given(Type.Boolean())
})
export type Edit = Static<typeof Edit>

const NOT_HERE = Type.Optional(Type.Unknown())

const conversation = {
  model: Type.String(),
  messages: Type.Array(MessageParam, { minItems: 1 }),
  system: Given(Type.Union([ListOf({ type: Type.Literal('text'), text: Type.String() }), Type.String()])),
  tools: Given(Type.Array(ToolParam)),
  tool_choice: Given(
    Loose({
      type: Type.Enum(['auto', 'any', 'tool', 'none']),
      name: text,
      disable_parallel_tool_use: Given(Type.Boolean())
    })
  ),
  thinking: Given(
    Loose({
      type: Type.Enum(['enabled', 'disabled', 'adaptive', 'between_tools']),
      budget_tokens: Given(Type.Integer({ minimum: 1 })),
      display: Given(Type.String())
    })
  ),
  output_config: Given(Loose({ effort: text, format: Given(Format) })),
  output_format: Given(Format),
  thread: Given(Loose({ type: text })),
  container: NOT_HERE,
  mcp_servers: NOT_HERE,
  context_management: Given(Loose({ edits: Given(Type.Array(Edit, { maxItems: 10 })) })),
  compaction: Given(Loose({ type: Type.Literal('summarize'), instructions: text })),
  ...ignored('billing_policy', 'cache_control', 'diagnostics', 'fallback_credit_token'),
  ...ignored('betas', 'fallbacks', 'inference_geo', 'service_tier', 'speed', 'user_profile_id', 'workspace_id'),
  options,
  keep_alive
}

export const CountRequest = Titled('TokenCountRequest', conversation)
export type CountRequest = Static<typeof CountRequest>

export const MessagesRequest = Titled('MessagesRequest', {
  ...conversation,
  max_tokens: Type.Integer({ minimum: 1 }),
  stop_sequences: Given(Type.Array(Type.String({ minLength: 1 }))),
  temperature: Given(Type.Number()),
  top_p: Given(Type.Number()),
  top_k: Given(Type.Integer()),
  stream: Given(Type.Boolean({ default: false })),
  metadata: Given(Loose({}))
})
export type MessagesRequest = Static<typeof MessagesRequest>

const Usage = Titled('AnthropicUsage', {
  ...each(Type.Integer(), 'input_tokens', 'cache_creation_input_tokens', 'cache_read_input_tokens', 'output_tokens'),
  iterations: Type.Optional(Type.Array(Loose({ type: Type.String() })))
})
export type Usage = Static<typeof Usage>

const ReplyBlock = Type.Union(
  [
    Type.Object({ type: Type.Literal('text'), text: Type.String() }),
    Type.Object({ type: Type.Literal('thinking'), thinking: Type.String(), signature: Type.String() }),
    Type.Object({
      type: Type.Literal('tool_use'),
      id: Type.String(),
      name: Type.String(),
      input: Type.Unknown(),
      toolset_name: Type.Optional(Type.String())
    }),
    Type.Object({
      type: Type.Literal('compaction'),
      content: OrNull(Type.String()),
      encrypted_content: Type.Null(),
      tool_changes: Type.Array(Loose({}))
    }),
    Loose({
      type: Type.Enum(['mcp_tool_use', 'mcp_tool_result', 'server_tool_use', 'web_search_tool_result']),
      id: Type.Optional(Type.String()),
      name: Type.Optional(Type.String()),
      server_name: Type.Optional(Type.String()),
      input: Type.Optional(Type.Unknown()),
      tool_use_id: Type.Optional(Type.String()),
      is_error: Type.Optional(Type.Boolean()),
      content: Type.Optional(Type.Unknown())
    })
  ],
  { title: 'AnthropicBlock' }
)
export type ReplyBlock = Static<typeof ReplyBlock>

const StopReason = Type.Enum(['end_turn', 'max_tokens', 'stop_sequence', 'tool_use', 'compaction'])
export type StopReason = Static<typeof StopReason>

const ContextManagement = Type.Optional(
  Loose({ applied_edits: Type.Array(Loose({ type: Type.String(), cleared_input_tokens: Type.Integer() })) })
)

export const Message = Titled('AnthropicMessage', {
  id: Type.String(),
  type: Type.Literal('message'),
  role: Type.Literal('assistant'),
  model: Type.String(),
  content: Type.Array(ReplyBlock),
  stop_reason: Type.Union([StopReason, Type.Null()]),
  stop_sequence: OrNull(Type.String()),
  usage: Usage,
  context_management: ContextManagement
})
export type Message = Static<typeof Message>

const BlockDelta = Type.Union([
  Type.Object({ type: Type.Literal('text_delta'), text: Type.String() }),
  Type.Object({ type: Type.Literal('thinking_delta'), thinking: Type.String() }),
  Type.Object({ type: Type.Literal('signature_delta'), signature: Type.String() }),
  Type.Object({ type: Type.Literal('input_json_delta'), partial_json: Type.String() }),
  Type.Object({
    type: Type.Literal('compaction_delta'),
    content: OrNull(Type.String()),
    encrypted_content: Type.Null()
  })
])
export type BlockDelta = Static<typeof BlockDelta>

export const MessageEvent = Type.Union(
  [
    Type.Object({ type: Type.Literal('message_start'), message: Message }),
    Type.Object({ type: Type.Literal('ping') }),
    Type.Object({ type: Type.Literal('content_block_start'), index: Type.Integer(), content_block: ReplyBlock }),
    Type.Object({ type: Type.Literal('content_block_delta'), index: Type.Integer(), delta: BlockDelta }),
    Type.Object({ type: Type.Literal('content_block_stop'), index: Type.Integer() }),
    Type.Object({
      type: Type.Literal('message_delta'),
      delta: Type.Object({ stop_reason: StopReason, stop_sequence: OrNull(Type.String()) }),
      usage: Usage,
      context_management: ContextManagement
    }),
    Type.Object({ type: Type.Literal('message_stop') })
  ],
  { title: 'MessageEvent' }
)
export type MessageEvent = Static<typeof MessageEvent>

export const TokenCount = Loose({
  input_tokens: Type.Integer(),
  context_management: Type.Optional(Loose({ original_input_tokens: Type.Integer() }))
})

export const ModelRecord = Loose({ id: Type.String(), ...anthropicFields })

export type ModelRecord = Static<typeof ModelRecord>

export const ModelList = Type.Object({
  data: Type.Array(ModelRecord),
  has_more: Type.Boolean(),
  first_id: OrNull(Type.String()),
  last_id: OrNull(Type.String())
})

const AnthropicError = Titled('AnthropicError', {
  type: Type.Literal('error'),
  error: Loose({
    ...each(Type.String(), 'type', 'message', 'code'),
    details: Loose({ error_code: Type.String() })
  }),
  request_id: Type.String()
})

export const anthropicErrors = errorsWithin(AnthropicError)
