import { type Static, Type } from 'typebox'
import { CountersSchema, Time } from '../../core/contracts/native-records.ts'
import { Given, keep_alive, loose, named, options } from '../../core/http/request-fields.ts'

const answering = {
  ...named,
  stream: Given(Type.Boolean({ default: true })),
  options,
  format: Given(Type.Union([Type.String(), Type.Object({}, loose)], { description: '"json" or a JSON schema' })),
  think: Given(Type.Union([Type.Boolean(), Type.String()])),
  keep_alive,
  truncate: Given(
    Type.Boolean({ description: 'Whether the oldest turns of a conversation that is too long are left out' })
  ),
  logprobs: Given(Type.Boolean({ description: 'Tell the log probabilities of the tokens' })),
  top_logprobs: Given(
    Type.Integer({ minimum: 0, maximum: 20, description: 'Of how many other tokens at each place too' })
  )
}

/** A call in a request. */
const ToolCallSchema = Type.Object(
  {
    id: Given(Type.String()),
    function: Type.Object(
      {
        name: Type.String(),
        arguments: Given(Type.Union([Type.Object({}, loose), Type.String()]))
      },
      loose
    )
  },
  loose
)

const MessageSchema = Type.Object(
  {
    role: Given(Type.Enum(['system', 'user', 'assistant', 'tool', 'developer'])),
    content: Given(Type.String()),
    thinking: Given(Type.String()),
    images: Given(Type.Array(Type.String({ minLength: 1 }))),
    tool_calls: Given(Type.Array(ToolCallSchema)),
    tool_name: Given(Type.String()),
    tool_call_id: Given(Type.String())
  },
  { ...loose, title: 'Message' }
)
export type Message = Static<typeof MessageSchema>

export const ChatRequestSchema = Type.Object(
  {
    ...answering,
    messages: Given(Type.Array(MessageSchema)),
    tools: Given(Type.Array(Type.Object({}, loose)))
  },
  { ...loose, title: 'ChatRequest' }
)
export type ChatRequest = Static<typeof ChatRequestSchema>

export const GenerateRequestSchema = Type.Object(
  {
    ...answering,
    prompt: Given(Type.String()),
    system: Given(Type.String()),
    suffix: Given(Type.String()),
    context: Type.Optional(Type.Unknown({ description: "Not heeded: another server's numbers mean nothing here" })),
    images: Given(Type.Array(Type.String({ minLength: 1 }))),
    raw: Given(Type.Boolean())
  },
  { ...loose, title: 'GenerateRequest' }
)
export type GenerateRequest = Static<typeof GenerateRequestSchema>

const CallSchema = Type.Object(
  {
    id: Type.Optional(Type.String()),
    function: Type.Object(
      {
        name: Type.String(),
        arguments: Type.Object({}, { ...loose, description: 'As the model gave them' }),
        index: Type.Integer()
      },
      loose
    )
  },
  { ...loose, title: 'ToolCall' }
)

const AnswerMessageSchema = Type.Object(
  {
    role: Type.Literal('assistant'),
    content: Type.String(),
    thinking: Type.Optional(Type.String()),
    tool_calls: Type.Optional(Type.Array(CallSchema))
  },
  { ...loose, title: 'AnswerMessage' }
)

const LogprobSchema = Type.Object(
  {
    token: Type.String(),
    logprob: Type.Number(),
    top_logprobs: Type.Optional(Type.Array(Type.Object({ token: Type.String(), logprob: Type.Number() }, loose)))
  },
  { ...loose, title: 'Logprob' }
)

const begins = { model: Type.String({ description: 'As it was asked for' }), created_at: Time() }
const probabilities = {
  logprobs: Type.Optional(Type.Array(LogprobSchema, { description: 'Of the tokens, where they were asked for' }))
}
const ends = {
  done: Type.Literal(true),
  done_reason: Type.Enum(['stop', 'length', 'load', 'unload'], {
    description: 'load, unload: there was nothing to answer, and only that was done'
  }),
  ...CountersSchema.properties
}

/** The last event of an answer that failed after its stream had begun. */
const StreamFailure = Type.Object(
  {
    model: Type.String(),
    created_at: Time(),
    done: Type.Literal(true),
    done_reason: Type.Literal('error'),
    error: Type.String({ description: 'What happened, to what, and what to do next' }),
    errorCode: Type.Integer({ description: 'The status that it would have had' }),
    code: Type.String({ description: 'Stable, for programs' })
  },
  { title: 'StreamFailure', additionalProperties: true }
)

export const ChatReplySchema = Type.Object(
  { ...begins, message: AnswerMessageSchema, ...probabilities, ...ends },
  { ...loose, title: 'ChatReply' }
)
export const ChatEventSchema = Type.Union(
  [
    Type.Object({ ...begins, message: AnswerMessageSchema, ...probabilities, done: Type.Literal(false) }, loose),
    Type.Object({ ...begins, message: Type.Optional(AnswerMessageSchema), ...ends }, loose),
    StreamFailure
  ],
  { title: 'ChatEvent' }
)
export type ChatEvent = Static<typeof ChatEventSchema>

const generated = {
  response: Type.String({ description: 'What the model wrote' }),
  thinking: Type.Optional(Type.String()),
  ...probabilities
}
export const GenerateReplySchema = Type.Object(
  { ...begins, ...generated, ...ends },
  { ...loose, title: 'GenerateReply' }
)
export const GenerateEventSchema = Type.Union(
  [Type.Object({ ...begins, ...generated, done: Type.Literal(false) }, loose), GenerateReplySchema, StreamFailure],
  { title: 'GenerateEvent' }
)
