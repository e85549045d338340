import { type Static, Type } from 'typebox'
import { CountersSchema, Time } from '../../../core/contracts/native-records.ts'
import { Given, ignored, keep_alive, Loose, named, options, Titled } from '../../../core/http/request-fields.ts'

const answering = {
  ...named,
  stream: Given(Type.Boolean({ default: true })),
  options,
  format: Given(Type.Union([Type.String(), Loose({})], { description: '"json" or a JSON schema' })),
  think: Given(Type.Union([Type.Boolean(), Type.String()], { description: 'Also an effort: low, medium, high' })),
  keep_alive,
  truncate: Given(
    Type.Boolean({
      description:
        'Truncate the history of a conversation that is too long; as configured by default, but true in the Ollama API'
    })
  ),
  ...ignored('shift'),
  logprobs: Given(Type.Boolean({ description: 'Return the log probabilities of the tokens' })),
  top_logprobs: Given(
    Type.Integer({ minimum: 0, maximum: 20, description: 'Number of alternative tokens at each position' })
  )
}

const ToolCallSchema = Loose({
  id: Given(Type.String()),
  function: Loose({
    name: Type.String(),
    arguments: Type.Optional(
      Type.Unknown({ description: 'An object or its JSON text; anything else is wrapped in an object' })
    )
  })
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
  tools: Given(Type.Array(Loose({})))
})
export type ChatRequest = Static<typeof ChatRequestSchema>

export const GenerateRequestSchema = Titled('GenerateRequest', {
  ...answering,
  prompt: Given(Type.String()),
  system: Given(Type.String()),
  suffix: Given(Type.String()),
  context: Given(
    Type.Unknown({
      description:
        'The context of an earlier answer of the Ollama API, to continue its conversation; contexts of other servers are ignored'
    })
  ),
  images: Given(Type.Array(Type.String({ minLength: 1 }))),
  raw: Given(Type.Boolean()),
  ...ignored('width', 'height', 'steps')
})
export type GenerateRequest = Static<typeof GenerateRequestSchema>

const CallSchema = Titled('ToolCall', {
  id: Type.Optional(Type.String()),
  function: Loose({
    name: Type.String(),
    arguments: Loose({}, { description: 'As the model generated them' }),
    index: Type.Integer()
  })
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

const begins = { model: Type.String({ description: 'The name in the request' }), created_at: Time() }
const probabilities = {
  logprobs: Type.Optional(Type.Array(LogprobSchema, { description: 'Of the tokens, if requested' }))
}
const ends = {
  done: Type.Literal(true),
  done_reason: Type.Enum(['stop', 'length', 'load', 'unload'], {
    description: 'load, unload: there was no prompt, so the model was only loaded or unloaded'
  }),
  ...CountersSchema.properties
}

/** The last event of an answer that failed after its stream had started. */
const StreamFailure = Titled('StreamFailure', {
  model: Type.String(),
  created_at: Time(),
  done: Type.Literal(true),
  done_reason: Type.Literal('error'),
  error: Type.String({ description: 'What happened, to what, and what to do next' }),
  errorCode: Type.Integer({ description: 'The HTTP status that the reply would have had' }),
  code: Type.String({ description: 'Stable error code for programs' })
})

export const ChatReplySchema = Titled('ChatReply', {
  ...begins,
  message: AnswerMessageSchema,
  ...probabilities,
  ...ends
})
export const ChatEventSchema = Type.Union(
  [
    Loose({ ...begins, message: AnswerMessageSchema, ...probabilities, done: Type.Literal(false) }),
    Loose({ ...begins, message: Type.Optional(AnswerMessageSchema), ...ends }),
    StreamFailure
  ],
  { title: 'ChatEvent' }
)
export type ChatEvent = Static<typeof ChatEventSchema>

const generated = {
  response: Type.String({ description: 'The generated text' }),
  context: Type.Optional(
    Type.Array(Type.Integer(), { description: 'Ollama API only, in the last event: continues the conversation' })
  ),
  thinking: Type.Optional(Type.String()),
  ...probabilities
}
export const GenerateReplySchema = Titled('GenerateReply', { ...begins, ...generated, ...ends })
export const GenerateEventSchema = Type.Union(
  [Loose({ ...begins, ...generated, done: Type.Literal(false) }), GenerateReplySchema, StreamFailure],
  { title: 'GenerateEvent' }
)
export type GenerateEvent = Static<typeof GenerateEventSchema>
