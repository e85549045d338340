import { type Static, Type } from 'typebox'
import { Given, keep_alive, loose, options } from '../../core/http/request-fields.ts'
import type { ErrorShape } from '../../core/http/response-schemas.ts'

const BlockSchema = Type.Object(
  {
    type: Type.String({
      description:
        'text, image (base64), document (text), search_result, tool_result in messages of the user; text, thinking, redacted_thinking, tool_use in those of the assistant; text, tool_addition, tool_removal in those of the system'
    }),
    text: Given(Type.String()),
    thinking: Given(Type.String()),
    id: Given(Type.String({ description: 'Of a tool_use' })),
    name: Given(Type.String({ description: 'Of a tool_use: the tool' })),
    input: Given(Type.Object({}, { ...loose, description: 'Of a tool_use' })),
    tool_use_id: Given(Type.String({ description: 'Of a tool_result' })),
    is_error: Given(Type.Boolean({ description: 'Of a tool_result' })),
    content: Type.Optional(Type.Unknown({ description: 'Of a tool_result: text, or a list of blocks' })),
    source: Type.Optional(
      Type.Unknown({
        description: '{type: "base64", media_type, data} of an image, {type: "text", data} of a document'
      })
    ),
    title: Given(Type.String({ description: 'Of a document or search_result' })),
    context: Given(Type.String({ description: 'Of a document' }))
  },
  loose
)

const TextBlockSchema = Type.Object({ type: Type.Literal('text'), text: Type.String() }, loose)

const MessageParamSchema = Type.Object(
  {
    role: Type.Enum(['user', 'assistant', 'system']),
    // The list comes first: what is wrong within it is what an error tells.
    content: Type.Union([Type.Array(BlockSchema), Type.String()]),
    clear_at: Given(
      Type.String({ description: 'Of the system: "next_user_message" hides it once the user has said more' })
    )
  },
  loose
)
export type MessageParam = Static<typeof MessageParamSchema>

const ToolSchema = Type.Object(
  {
    type: Given(Type.String({ description: 'custom, or nothing; tools that run on a server are refused' })),
    name: Given(Type.String()),
    description: Given(Type.String()),
    input_schema: Given(Type.Object({}, loose)),
    defer_loading: Given(Type.Boolean({ description: 'The model is told of it once a message refers to it' }))
  },
  loose
)
export type ToolParam = Static<typeof ToolSchema>

const FormatSchema = Type.Object({ type: Type.Literal('json_schema'), schema: Type.Object({}, loose) }, loose)

/** What counting and answering share. */
const conversation = {
  model: Type.String({ description: '<owner>/<name> or <owner>/<name>:<variant>' }),
  messages: Type.Array(MessageParamSchema, {
    minItems: 1,
    description: 'Messages of the same role in a row are one turn; a last one of the assistant is continued'
  }),
  system: Given(Type.Union([Type.Array(TextBlockSchema), Type.String()])),
  tools: Given(Type.Array(ToolSchema)),
  tool_choice: Given(
    Type.Object(
      {
        type: Type.Enum(['auto', 'any', 'tool', 'none']),
        name: Given(Type.String()),
        disable_parallel_tool_use: Given(Type.Boolean())
      },
      loose
    )
  ),
  thinking: Given(
    Type.Object(
      {
        type: Type.Enum(['enabled', 'disabled', 'adaptive', 'between_tools']),
        budget_tokens: Given(Type.Integer({ minimum: 1 })),
        display: Given(Type.String({ description: '"omitted" leaves the thoughts out' }))
      },
      { ...loose, description: 'Models that can think do so only where it is asked for' }
    )
  ),
  output_config: Given(Type.Object({ effort: Given(Type.String()), format: Given(FormatSchema) }, loose)),
  output_format: Given(FormatSchema),
  thread: Given(
    Type.Object(
      { type: Given(Type.String()) },
      { ...loose, description: 'No conversations are kept: "continue" is answered with thread_not_found' }
    )
  ),
  options,
  keep_alive
}

export const CountRequestSchema = Type.Object(conversation, { ...loose, title: 'TokenCountRequest' })
export type CountRequest = Static<typeof CountRequestSchema>

export const MessagesRequestSchema = Type.Object(
  {
    ...conversation,
    max_tokens: Type.Integer({ minimum: 1, description: 'Most tokens generated' }),
    stop_sequences: Given(Type.Array(Type.String({ minLength: 1 }))),
    temperature: Given(Type.Number()),
    top_p: Given(Type.Number()),
    top_k: Given(Type.Integer()),
    stream: Given(Type.Boolean({ default: false })),
    metadata: Given(Type.Object({}, loose))
  },
  { ...loose, title: 'MessagesRequest' }
)
export type MessagesRequest = Static<typeof MessagesRequestSchema>

const UsageSchema = Type.Object(
  {
    input_tokens: Type.Integer({ description: 'Those of the prompt that were not in the cache' }),
    cache_creation_input_tokens: Type.Integer(),
    cache_read_input_tokens: Type.Integer({ description: 'Those of the prompt that were in the cache' }),
    output_tokens: Type.Integer()
  },
  loose
)
export type Usage = Static<typeof UsageSchema>

const ReplyBlockSchema = Type.Union([
  Type.Object({ type: Type.Literal('text'), text: Type.String() }),
  Type.Object({ type: Type.Literal('thinking'), thinking: Type.String(), signature: Type.String() }),
  Type.Object({ type: Type.Literal('tool_use'), id: Type.String(), name: Type.String(), input: Type.Unknown() })
])
export type ReplyBlock = Static<typeof ReplyBlockSchema>

const StopReasonSchema = Type.Enum(['end_turn', 'max_tokens', 'stop_sequence', 'tool_use'])
export type StopReason = Static<typeof StopReasonSchema>

export const MessageSchema = Type.Object(
  {
    id: Type.String(),
    type: Type.Literal('message'),
    role: Type.Literal('assistant'),
    model: Type.String({ description: 'As it was asked for' }),
    content: Type.Array(ReplyBlockSchema),
    stop_reason: Type.Union([StopReasonSchema, Type.Null()], { description: 'null only where a stream begins' }),
    stop_sequence: Type.Union([Type.String(), Type.Null()]),
    usage: UsageSchema
  },
  loose
)
export type Message = Static<typeof MessageSchema>

const BlockDeltaSchema = Type.Union([
  Type.Object({ type: Type.Literal('text_delta'), text: Type.String() }),
  Type.Object({ type: Type.Literal('thinking_delta'), thinking: Type.String() }),
  Type.Object({ type: Type.Literal('signature_delta'), signature: Type.String() }),
  Type.Object({ type: Type.Literal('input_json_delta'), partial_json: Type.String() })
])
export type BlockDelta = Static<typeof BlockDeltaSchema>

/** One event of a message that is streamed. */
export const MessageEventSchema = Type.Union(
  [
    Type.Object({ type: Type.Literal('message_start'), message: MessageSchema }),
    Type.Object({ type: Type.Literal('ping') }),
    Type.Object({
      type: Type.Literal('content_block_start'),
      index: Type.Integer(),
      content_block: ReplyBlockSchema
    }),
    Type.Object({ type: Type.Literal('content_block_delta'), index: Type.Integer(), delta: BlockDeltaSchema }),
    Type.Object({ type: Type.Literal('content_block_stop'), index: Type.Integer() }),
    Type.Object({
      type: Type.Literal('message_delta'),
      delta: Type.Object({
        stop_reason: StopReasonSchema,
        stop_sequence: Type.Union([Type.String(), Type.Null()])
      }),
      usage: UsageSchema
    }),
    Type.Object({ type: Type.Literal('message_stop') })
  ],
  { title: 'MessageEvent' }
)
export type MessageEvent = Static<typeof MessageEventSchema>

export const TokenCountSchema = Type.Object({ input_tokens: Type.Integer() }, loose)

export const ModelSchema = Type.Object(
  {
    type: Type.Literal('model'),
    id: Type.String(),
    display_name: Type.String(),
    created_at: Type.String(),
    max_input_tokens: Type.Integer({
      description: 'The context in force; the one that it would be loaded with where it is not'
    })
  },
  loose
)

export const ModelListSchema = Type.Object({
  data: Type.Array(ModelSchema),
  has_more: Type.Boolean(),
  first_id: Type.Union([Type.String(), Type.Null()]),
  last_id: Type.Union([Type.String(), Type.Null()])
})

const AnthropicErrorSchema = Type.Object(
  {
    type: Type.Literal('error'),
    error: Type.Object(
      {
        type: Type.String(),
        message: Type.String({ description: 'What happened, to what, and what to do next' }),
        code: Type.String({ description: 'Stable, for programs' }),
        details: Type.Object({ error_code: Type.String() }, loose)
      },
      loose
    ),
    request_id: Type.String()
  },
  { ...loose, title: 'AnthropicError' }
)

/** Errors in the shape that Anthropic's clients read. */
export const anthropicErrors: ErrorShape = codes =>
  Type.Intersect([AnthropicErrorSchema, Type.Object({ error: Type.Object({ code: Type.Enum([...codes]) }) })])
