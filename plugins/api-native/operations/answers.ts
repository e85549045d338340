import { type Static, Type } from 'typebox'
import { CountersSchema, Time } from '../../../core/contracts/native-records.ts'
import { ANSWER_ERRORS, errorResponses, jsonOrStream, nativeErrors } from '../../../core/http/response-schemas.ts'
import type { StreamType } from '../native-streams.ts'
import { ChatRequestSchema, GenerateRequestSchema } from '../schemas.ts'
import { streamFailure } from './stream-failure.ts'

const loose = { additionalProperties: true }

const ToolCallSchema = Type.Object(
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
    tool_calls: Type.Optional(Type.Array(ToolCallSchema))
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

const ChatReplySchema = Type.Object(
  { ...begins, message: AnswerMessageSchema, ...probabilities, ...ends },
  { ...loose, title: 'ChatReply' }
)
const ChatEventSchema = Type.Union(
  [
    Type.Object({ ...begins, message: AnswerMessageSchema, ...probabilities, done: Type.Literal(false) }, loose),
    Type.Object({ ...begins, message: Type.Optional(AnswerMessageSchema), ...ends }, loose),
    streamFailure
  ],
  { title: 'ChatEvent' }
)
export type ChatEvent = Static<typeof ChatEventSchema>

const generated = {
  response: Type.String({ description: 'What the model wrote' }),
  thinking: Type.Optional(Type.String()),
  ...probabilities
}
const GenerateReplySchema = Type.Object({ ...begins, ...generated, ...ends }, { ...loose, title: 'GenerateReply' })
const GenerateEventSchema = Type.Union(
  [Type.Object({ ...begins, ...generated, done: Type.Literal(false) }, loose), GenerateReplySchema, streamFailure],
  { title: 'GenerateEvent' }
)

/** How chat and generate are described at a mount whose streams are of these types, the default one first. */
export function answerOperations(types: readonly StreamType[]) {
  return {
    chat: {
      summary: 'Answer a conversation',
      description:
        'Loads the model where needed. Without messages it is only loaded, or unloaded where `keep_alive` is 0.',
      tags: ['Answers'],
      operationId: 'chat',
      body: ChatRequestSchema,
      response: {
        200: jsonOrStream('The answer, whole where `stream` is false', ChatReplySchema, {
          event: 'Pieces of the answer; the last event has `done: true`, and in Server-Sent Events no `message`',
          item: ChatEventSchema,
          types
        }),
        ...errorResponses(nativeErrors, ANSWER_ERRORS)
      }
    },
    generate: {
      summary: 'Continue a prompt',
      description:
        'The prompt is put into the chat template as one user message, unless `raw` is true or there is a `suffix` ' +
        'to fill in before. Without a prompt the model is only loaded, or unloaded where `keep_alive` is 0.',
      tags: ['Answers'],
      operationId: 'generate',
      body: GenerateRequestSchema,
      response: {
        200: jsonOrStream('What the model wrote, whole where `stream` is false', GenerateReplySchema, {
          event: 'Pieces of it; the last event has `done: true`',
          item: GenerateEventSchema,
          types
        }),
        ...errorResponses(nativeErrors, ANSWER_ERRORS)
      }
    }
  }
}
