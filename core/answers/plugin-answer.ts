import type { FastifyReply } from 'fastify'
import type { AnswerSink, EngineFields } from '../contracts/engines.ts'
import { CorralError } from '../errors.ts'
import type { PassedQuestion } from '../plugins/plugin.ts'
import { isObject } from '../system/json-object.ts'
import { withModelDefaults } from './model-defaults.ts'
import { passedFields, readModelRequest } from './model-request.ts'
import { passedAnswer } from './pipeline.ts'
import type { AnswerDependencies } from './question.ts'

/** Fields that choose the model or the form of the reply, and that engines do not get. */
const NOT_FOR_ENGINES = ['model', 'name', 'stream', 'stream_options', 'keep_alive', 'options']

export async function answerForPlugin(
  deps: AnswerDependencies,
  reply: FastifyReply,
  { operation, body }: PassedQuestion,
  take: AnswerSink['take']
): Promise<void> {
  const { variant, overflow, lease, sampling, options } = readModelRequest(deps, body, reply.request.caller)
  const fields: EngineFields = { ...sampling, ...passedFields(body, options, NOT_FOR_ENGINES) }
  if (operation === 'chat') {
    const { messages } = fields
    if (!Array.isArray(messages) || !messages.every(isObject)) {
      throw new CorralError('invalid_request', '"messages" must be a list of messages.', { param: 'messages' })
    }
    fields.messages = withModelDefaults(messages, variant.defaults)
  }
  await passedAnswer(deps, reply, { operation, body: fields, lease, variant, overflow }, take)
}
