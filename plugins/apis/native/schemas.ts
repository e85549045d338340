import { type Static, Type } from 'typebox'
import { hostedFields, ToolApprovals } from '../../../core/answers/hosted-calls.ts'
import { CountersSchema, Time } from '../../../core/contracts/native-records.ts'
import {
  each,
  Given,
  ignored,
  keep_alive,
  Loose,
  named,
  options,
  Text,
  Titled
} from '../../../core/http/request-fields.ts'

const answering = {
  ...named,
  stream: Given(Type.Boolean({ default: true })),
  options,
  format: Given(Type.Union([Type.String(), Loose({})])),
  think: Given(Type.Union([Type.Boolean(), Type.String()])),
  keep_alive,
  truncate: Given(Type.Boolean()),
  ...ignored('shift'),
  logprobs: Given(Type.Boolean()),
  top_logprobs: Given(Type.Integer({ minimum: 0, maximum: 20 }))
}

const ToolCallSchema = Loose({
  id: Given(Type.String()),
  function: Loose({ name: Type.String(), arguments: Type.Optional(Type.Unknown()) })
})

const MessageSchema = Titled('Message', {
  role: Given(Type.Enum(['system', 'user', 'assistant', 'tool', 'developer'])),
  content: Given(Type.String()),
  thinking: Given(Type.String()),
  images: Given(Type.Array(Type.String({ minLength: 1 }))),
  tool_calls: Given(Type.Array(ToolCallSchema)),
  tool_name: Given(Type.String()),
  tool_call_id: Given(Type.String())
})
export type Message = Static<typeof MessageSchema>

export const ChatRequestSchema = Titled('ChatRequest', {
  ...answering,
  messages: Given(Type.Array(MessageSchema)),
  tools: Given(Type.Array(Loose({}))),
  mcp: ToolApprovals
})
export type ChatRequest = Static<typeof ChatRequestSchema>

export const GenerateRequestSchema = Titled('GenerateRequest', {
  ...answering,
  ...each(Given(Type.String()), 'prompt', 'system', 'suffix'),
  context: Given(Type.Unknown()),
  images: Given(Type.Array(Type.String({ minLength: 1 }))),
  raw: Given(Type.Boolean()),
  ...ignored('width', 'height', 'steps')
})
export type GenerateRequest = Static<typeof GenerateRequestSchema>

const CallSchema = Titled('ToolCall', {
  id: Type.Optional(Type.String()),
  function: Loose({ name: Type.String(), arguments: Loose({}), index: Type.Integer() })
})

const AnswerMessageSchema = Titled('AnswerMessage', {
  role: Type.Literal('assistant'),
  content: Type.String(),
  thinking: Type.Optional(Type.String()),
  tool_calls: Type.Optional(Type.Array(CallSchema))
})

const LogprobSchema = Titled('Logprob', {
  token: Type.String(),
  logprob: Type.Number(),
  top_logprobs: Type.Optional(Type.Array(Loose({ token: Type.String(), logprob: Type.Number() })))
})

const begins = { model: Text('The name in the request'), created_at: Time() }
const probabilities = {
  logprobs: Type.Optional(Type.Array(LogprobSchema, { description: 'Of the tokens, if requested' }))
}
const ends = {
  done: Type.Literal(true),
  done_reason: Type.Enum(['stop', 'length', 'load', 'unload']),
  ...CountersSchema.properties
}

/** The last event of an answer that failed after its stream had started. */
const StreamFailure = Titled('StreamFailure', {
  model: Type.String(),
  created_at: Time(),
  done: Type.Literal(true),
  done_reason: Type.Literal('error'),
  error: Type.String(),
  errorCode: Type.Integer(),
  code: Type.String()
})

export const ChatReplySchema = Titled('ChatReply', {
  ...begins,
  message: AnswerMessageSchema,
  ...hostedFields,
  ...probabilities,
  ...ends
})
export const ChatEventSchema = Type.Union(
  [
    Loose({ ...begins, message: AnswerMessageSchema, ...hostedFields, ...probabilities, done: Type.Literal(false) }),
    Loose({ ...begins, message: Type.Optional(AnswerMessageSchema), ...ends }),
    StreamFailure
  ],
  { title: 'ChatEvent' }
)
export type ChatEvent = Static<typeof ChatEventSchema>

const generated = {
  response: Type.String(),
  context: Type.Optional(Type.Array(Type.Integer())),
  thinking: Type.Optional(Type.String()),
  ...probabilities
}
export const GenerateReplySchema = Titled('GenerateReply', { ...begins, ...generated, ...ends })
export const GenerateEventSchema = Type.Union(
  [Loose({ ...begins, ...generated, done: Type.Literal(false) }), GenerateReplySchema, StreamFailure],
  { title: 'GenerateEvent' }
)
export type GenerateEvent = Static<typeof GenerateEventSchema>
