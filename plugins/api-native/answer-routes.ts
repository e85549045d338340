import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { type AnswerShape, answer, type ToolCall } from './answer.ts'
import type { MountedDependencies } from './dependencies.ts'
import { chatCall, generateCall } from './engine-body.ts'
import { answerOperations } from './operations/answers.ts'

/** Whether an answer was not cut off in the middle of it: nobody can call half a call, and clients want an object. */
function isWhole({ function: { arguments: given } }: ToolCall): boolean {
  return typeof given === 'object' && given !== null && !Array.isArray(given)
}

const CHAT: AnswerShape = {
  fragment: ({ content, thinking, toolCalls, logprobs }) => {
    const calls = toolCalls.filter(isWhole)
    return {
      message: {
        role: 'assistant',
        content,
        ...(thinking ? { thinking } : {}),
        ...(calls.length ? { tool_calls: calls } : {})
      },
      ...(logprobs ? { logprobs } : {})
    }
  },
  // Ollama's Python client needs a message in every NDJSON line; an SSE stream ends without one.
  last: framing => (framing === 'ndjson' ? { message: { role: 'assistant', content: '' } } : {})
}

const GENERATE: AnswerShape = {
  fragment: ({ content, thinking, logprobs }) => ({
    response: content,
    ...(thinking ? { thinking } : {}),
    ...(logprobs ? { logprobs } : {})
  }),
  last: () => ({ response: '' })
}

/** Chat and generate. */
export function answerRoutes(deps: MountedDependencies): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    const operations = answerOperations(deps.streams.types)
    app.post('/chat', { schema: operations.chat }, async (request, reply) => {
      const { body } = request
      return await answer(deps, request, reply, body, CHAT, (variant, sampling, engine) =>
        body.messages?.length ? chatCall(body, variant, sampling, engine) : undefined
      )
    })
    app.post('/generate', { schema: operations.generate }, async (request, reply) => {
      const { body } = request
      return await answer(deps, request, reply, body, GENERATE, (variant, sampling, engine) =>
        body.prompt ? generateCall(body, variant, sampling, engine) : undefined
      )
    })
  }
}
