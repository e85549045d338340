import { randomBytes } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { checkMedia } from '../../../core/answers/media-parts.ts'
import { withModelDefaults } from '../../../core/answers/model-defaults.ts'
import { type ApiDependencies, readModelRequest } from '../../../core/answers/model-request.ts'
import {
  askOnce,
  type Channel,
  type Question,
  requireCall,
  streamedAnswer,
  wholeAnswer
} from '../../../core/answers/pipeline.ts'
import type { Caller } from '../../../core/contracts/callers.ts'
import type { Delta } from '../../../core/contracts/engines.ts'
import { anthropicErrorBody } from './anthropic-error.ts'
import { MessageEvents, type MessageHead, wholeMessage } from './message-events.ts'
import { engineRequest } from './message-request.ts'
import type { CountRequest, Message, MessageEvent, MessagesRequest } from './schemas.ts'

function frame(event: { type: string }): string {
  return `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`
}

/** Builds the engine's request. @throws CorralError naming the wrong field, before a model is loaded */
function toQuestion(deps: ApiDependencies, request: CountRequest & Partial<MessagesRequest>, caller: Caller) {
  const { variant, settings, sampling, lease, overflow } = readModelRequest(deps, request, caller)
  const { body, places } = engineRequest(request, sampling)
  checkMedia(body.messages, variant, settings.engine, (message, part) => places[message]![part]!)
  const messages = withModelDefaults(body.messages, variant.defaults)
  const stopText = Boolean(request.stop_sequences?.length)
  return { operation: 'chat', body: { ...body, messages }, lease, variant, overflow, stopText } satisfies Question
}

/** Answers a request for a message, as a whole or as a stream. */
export async function answerMessage(
  deps: ApiDependencies,
  request: FastifyRequest<{ Body: MessagesRequest }>,
  reply: FastifyReply
): Promise<Message | undefined> {
  const { body } = request
  const question = toQuestion(deps, body, request.caller)
  const head: MessageHead = {
    id: `msg_${randomBytes(12).toString('hex')}`,
    model: body.model,
    stopSequences: body.stop_sequences ?? [],
    omitThinking: body.thinking?.display === 'omitted',
    oneCall: body.tool_choice?.disable_parallel_tool_use === true
  }
  if (!body.stream) {
    const { writer, events } = await wholeAnswer(deps, reply, question, () => {
      const writer = new MessageEvents(head)
      const events: MessageEvent[] = []
      return { writer, events, add: (deltas: readonly Delta[]) => void events.push(...writer.add(deltas)) }
    })
    return wholeMessage([...events, ...writer.end()])
  }
  const channel: Channel = {
    contentType: 'text/event-stream; charset=utf-8',
    heartbeatInterval: deps.heartbeat(),
    heartbeat: () => frame({ type: 'ping' }),
    failure: error => `event: error\ndata: ${JSON.stringify(anthropicErrorBody(error, request))}\n\n`
  }
  await streamedAnswer(deps, request, reply, question, channel, () => {
    const writer = new MessageEvents(head)
    return { add: deltas => writer.add(deltas).map(frame).join(''), end: () => writer.end().map(frame).join('') }
  })
  return undefined
}

/** Counts the prompt tokens of a request in the same way as for an answer. */
export async function countTokens(
  deps: ApiDependencies,
  request: CountRequest,
  reply: FastifyReply
): Promise<{ input_tokens: number }> {
  const { body, lease } = toQuestion(deps, request, reply.request.caller)
  return await askOnce(deps, reply, { operation: 'tokens', body, lease }, async leased => ({
    input_tokens: await requireCall(leased, 'countTokens')(body, leased)
  }))
}
