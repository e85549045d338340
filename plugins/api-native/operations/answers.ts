import { Type } from 'typebox'
import { ANSWER_ERRORS, errorResponses, jsonOrStream, nativeErrors } from '../../../core/http/response-schemas.ts'
import type { StreamType } from '../framing.ts'
import { ChatRequestSchema, GenerateRequestSchema } from '../schemas.ts'
import { Nanoseconds, Time } from './fields.ts'
import { streamFailure } from './stream-failure.ts'

const loose = { additionalProperties: true }

/** What it cost, as Ollama's clients read it. Where no answer was asked for there are no counts. */
const counters = {
  total_duration: Nanoseconds('From the request to the end of the answer'),
  load_duration: Nanoseconds('That the request waited for the model to load'),
  prompt_eval_count: Type.Optional(Type.Integer({ description: 'Tokens of the prompt' })),
  prompt_eval_duration: Type.Optional(Nanoseconds('Reading them')),
  eval_count: Type.Optional(Type.Integer({ description: 'Tokens of the answer' })),
  eval_duration: Type.Optional(Nanoseconds('Generating them'))
}

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
  ...counters
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
