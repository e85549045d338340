import { type Static, Type } from 'typebox'
import {
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
  type: Type.String({
    description:
      'Any type of the Messages API. Blocks that a model cannot use are skipped, or replaced by a sentence about them'
  }),
  text: text,
  thinking: text,
  id: Given(Type.String({ description: 'Of a tool_use' })),
  name: Given(Type.String({ description: 'Of a tool_use: the name of the tool' })),
  input: Type.Optional(
    Type.Unknown({ description: 'Of a tool_use: an object; any other value is wrapped in an object' })
  ),
  tool_use_id: Given(Type.String({ description: 'Of a tool_result' })),
  is_error: Given(Type.Boolean({ description: 'Of a tool_result' })),
  content: Type.Optional(Type.Unknown({ description: 'Of a tool_result: text, or a list of blocks' })),
  source: Type.Optional(
    Type.Unknown({
      description:
        'Of an image: {type: "base64", media_type, data}; of a document: {type: "text", data}, {type: "base64", data} of a PDF, or {type: "file", file_id}'
    })
  ),
  title: Given(Type.String({ description: 'Of a document or search_result' })),
  context: Given(Type.String({ description: 'Of a document' }))
})

const MessageParam = Loose({
  role: Type.Enum(['user', 'assistant', 'system']),
  // The array comes first so that errors name the wrong element within it.
  content: Type.Optional(
    Type.Union([Type.Array(Block), Type.String()], { description: 'May be absent in a system message' })
  ),
  clear_at: Given(
    Type.String({ description: 'Of a system message: "next_user_message" hides it after the next user message' })
  )
})
export type MessageParam = Static<typeof MessageParam>

const ToolParam = Loose({
  type: Given(
    Type.String({
      description:
        'custom, or absent; bash_…, text_editor_…, memory_…, computer_… and the browser and computer sets become functions; tools that Anthropic runs are left out and named in X-Corral-Ignored-Tools'
    })
  ),
  name: text,
  description: text,
  input_schema: Given(Loose({})),
  defer_loading: Given(Type.Boolean({ description: 'The model sees the tool once a message refers to it' }))
})
export type ToolParam = Static<typeof ToolParam>

const Format = Loose({ type: Type.Literal('json_schema'), schema: Loose({}) })

const Threshold = Given(Loose({ type: text, value: Type.Integer({ minimum: 0 }) }))

const Edit = Loose({
  type: Type.String({
    description: 'clear_tool_uses_20250919, clear_thinking_20251015 or compact_20260112; other types have no effect'
  }),
  trigger: Threshold,
  keep: Given(Type.Union([Loose({ type: text, value: Given(Type.Integer({ minimum: 0 })) }), Type.String()])),
  clear_at_least: Threshold,
  exclude_tools: Given(Type.Array(Type.String())),
  clear_tool_inputs: Given(Type.Union([Type.Array(Type.String()), Type.Boolean()])),
  instructions: text,
  pause_after_compaction: Given(Type.Boolean())
})
export type Edit = Static<typeof Edit>

const NOT_HERE = Type.Optional(Type.Unknown({ description: 'Left out, and named in X-Corral-Ignored-Tools' }))

const conversation = {
  model: Type.String({ description: '<owner>/<name> or <owner>/<name>:<variant>' }),
  messages: Type.Array(MessageParam, {
    minItems: 1,
    description: 'Consecutive messages of the same role are merged; a last message of the assistant is continued'
  }),
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
    Loose(
      {
        type: Type.Enum(['enabled', 'disabled', 'adaptive', 'between_tools']),
        budget_tokens: Given(Type.Integer({ minimum: 1 })),
        display: Given(Type.String({ description: '"omitted" leaves out the thinking' }))
      },
      { description: 'Models with thinking do it only if it is enabled' }
    )
  ),
  output_config: Given(Loose({ effort: text, format: Given(Format) })),
  output_format: Given(Format),
  thread: Given(
    Loose({ type: text }, { description: 'Conversations are not stored: "continue" is answered with thread_not_found' })
  ),
  container: NOT_HERE,
  mcp_servers: NOT_HERE,
  context_management: Given(
    Loose(
      { edits: Given(Type.Array(Edit, { maxItems: 10 })) },
      { description: 'Clears old parts of the conversation, or has the model replace it by a summary' }
    )
  ),
  compaction: Given(
    Loose({ type: Type.Literal('summarize'), instructions: text }, { description: 'Answers with a summary only' })
  ),
  ...ignored('billing_policy', 'cache_control', 'diagnostics', 'fallback_credit_token'),
  ...ignored('betas', 'fallbacks', 'inference_geo', 'service_tier', 'speed', 'user_profile_id', 'workspace_id'),
  options,
  keep_alive
}

export const CountRequest = Titled('TokenCountRequest', conversation)
export type CountRequest = Static<typeof CountRequest>

export const MessagesRequest = Titled('MessagesRequest', {
  ...conversation,
  max_tokens: Type.Integer({ minimum: 1, description: 'Maximum number of tokens to generate' }),
  stop_sequences: Given(Type.Array(Type.String({ minLength: 1 }))),
  temperature: Given(Type.Number()),
  top_p: Given(Type.Number()),
  top_k: Given(Type.Integer()),
  stream: Given(Type.Boolean({ default: false })),
  metadata: Given(Loose({}))
})
export type MessagesRequest = Static<typeof MessagesRequest>

const Usage = Loose({
  input_tokens: Type.Integer({ description: 'Prompt tokens that were not in the cache' }),
  cache_creation_input_tokens: Type.Integer(),
  cache_read_input_tokens: Type.Integer({ description: 'Prompt tokens that were in the cache' }),
  output_tokens: Type.Integer(),
  iterations: Type.Optional(
    Type.Array(Loose({ type: Type.String() }), { description: 'With a summary: the tokens of each call of the model' })
  )
})
export type Usage = Static<typeof Usage>

const ReplyBlock = Type.Union([
  Type.Object({ type: Type.Literal('text'), text: Type.String() }),
  Type.Object({ type: Type.Literal('thinking'), thinking: Type.String(), signature: Type.String() }),
  Type.Object({
    type: Type.Literal('tool_use'),
    id: Type.String(),
    name: Type.String(),
    input: Type.Unknown(),
    toolset_name: Type.Optional(Type.String({ description: 'The set of the tool' }))
  }),
  Type.Object({
    type: Type.Literal('compaction'),
    content: OrNull(Type.String({ description: 'The summary. null if the model wrote none' })),
    encrypted_content: Type.Null(),
    tool_changes: Type.Array(Loose({}))
  })
])
export type ReplyBlock = Static<typeof ReplyBlock>

const StopReason = Type.Enum(['end_turn', 'max_tokens', 'stop_sequence', 'tool_use', 'compaction'])
export type StopReason = Static<typeof StopReason>

const ContextManagement = Type.Optional(
  Loose({ applied_edits: Type.Array(Loose({ type: Type.String(), cleared_input_tokens: Type.Integer() })) })
)

export const Message = Loose({
  id: Type.String(),
  type: Type.Literal('message'),
  role: Type.Literal('assistant'),
  model: Type.String({ description: 'The name in the request' }),
  content: Type.Array(ReplyBlock),
  stop_reason: Type.Union([StopReason, Type.Null()], { description: 'null only at the start of a stream' }),
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
    type: Type.String(),
    message: Type.String({ description: 'What happened, to what, and what to do next' }),
    code: Type.String({ description: 'Stable error code for programs' }),
    details: Loose({ error_code: Type.String() })
  }),
  request_id: Type.String()
})

export const anthropicErrors = errorsWithin(AnthropicError)
