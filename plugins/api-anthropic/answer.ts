import { randomBytes } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { overflowOf } from '../../core/answers/context-overflow.ts'
import { askEngine, readAll, reasonOf } from '../../core/answers/engine-reply.ts'
import { endWithFailure, withLeaseInStream } from '../../core/answers/leased-stream.ts'
import { checkMedia } from '../../core/answers/media-parts.ts'
import { withModelDefaults } from '../../core/answers/model-defaults.ts'
import { readAnswer } from '../../core/answers/read-answer.ts'
import { tellUnheeded } from '../../core/answers/unheeded-schema.ts'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { settingsFor } from '../../core/config/model-settings.ts'
import type { LeaseRequest, Scheduler } from '../../core/contracts/scheduler.ts'
import type { Storage } from '../../core/contracts/storage.ts'
import { clientSignal } from '../../core/http/client-signal.ts'
import { openReplyStream } from '../../core/http/reply-stream.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { parseKeepAlive, parseOptions, topLevelOptions } from '../../core/models/options.ts'
import { anthropicErrorBody } from './anthropic-error.ts'
import { engineRequest } from './engine-body.ts'
import { MessageEvents, type MessageHead, WholeMessage } from './message-events.ts'
import type { CountRequest, Message, MessageEvent, MessagesRequest } from './schemas.ts'

const CHAT = '/v1/chat/completions'
const PING = frame({ type: 'ping' })

export interface AnthropicDependencies {
  storage: Storage
  scheduler: Scheduler
  config: CoreConfig
  /** Milliseconds of silence after which a waiting stream sends a ping. */
  heartbeat: number
}

function frame(event: { type: string }): string {
  return `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`
}

/** A request as it was understood: what is asked of the engine, and of the scheduler. */
function prepare(deps: AnthropicDependencies, request: CountRequest & Partial<MessagesRequest>, reply: FastifyReply) {
  const model = parseModelName(request.model)
  const own = parseOptions(topLevelOptions(request))
  const nested = parseOptions(request.options)
  const keepAlive = parseKeepAlive(request.keep_alive)
  const variant = deps.storage.get(model)
  const settings = settingsFor(deps.config, variant)
  const { body, places } = engineRequest(request, { ...settings.sampling, ...nested.sampling, ...own.sampling })
  tellUnheeded(reply, body)
  checkMedia(body.messages, variant, settings.engine, (message, part) => places[message]![part]!)
  const lease: LeaseRequest = {
    model,
    options: { ...nested.load, ...own.load },
    keepAlive,
    signal: clientSignal(reply)
  }
  const overflow = overflowOf(own.overflow ?? nested.overflow ?? settings.overflow, reply)
  const messages = withModelDefaults(body.messages, variant.defaults)
  return { lease, call: { path: CHAT, body: { ...body, messages }, overflow } }
}

/** Answers a request for a message, whole or as a stream. */
export async function answerMessage(
  deps: AnthropicDependencies,
  request: FastifyRequest<{ Body: MessagesRequest }>,
  reply: FastifyReply
): Promise<Message | undefined> {
  const { body } = request
  const { lease, call } = prepare(deps, body, reply)
  const head: MessageHead = {
    id: `msg_${randomBytes(12).toString('hex')}`,
    model: body.model,
    stopSequences: body.stop_sequences ?? [],
    omitThinking: body.thinking?.display === 'omitted',
    oneCall: body.tool_choice?.disable_parallel_tool_use === true
  }
  if (!body.stream) {
    return await deps.scheduler.withLease(lease, async held => {
      const events = new MessageEvents(head)
      const whole = new WholeMessage()
      const take = (added: MessageEvent[]) => {
        for (const event of added) whole.take(event)
      }
      await readAnswer(held, call, deltas => {
        for (const delta of deltas) take(events.add(delta))
        return undefined
      })
      take(events.end())
      return whole.message
    })
  }
  const stream = openReplyStream(reply, {
    contentType: 'text/event-stream; charset=utf-8',
    heartbeatInterval: deps.heartbeat,
    heartbeat: () => PING
  })
  const lastEvent: Parameters<typeof endWithFailure>[2] = failure =>
    `event: error\ndata: ${JSON.stringify(anthropicErrorBody(failure, request))}\n\n`
  await endWithFailure(stream, request.log, lastEvent, () =>
    withLeaseInStream(deps.scheduler, lease, stream, async held => {
      const events = new MessageEvents(head)
      await readAnswer(held, call, deltas => {
        let out = ''
        for (const delta of deltas) for (const event of events.add(delta)) out += frame(event)
        return out ? stream.write(out) : undefined
      })
      stream.end(events.end().map(frame).join(''))
    })
  )
  return undefined
}

/** Counts the tokens of a request's prompt as the engine does when it answers. */
export async function countTokens(
  deps: AnthropicDependencies,
  request: CountRequest,
  reply: FastifyReply
): Promise<{ input_tokens: number }> {
  const { lease, call } = prepare(deps, request, reply)
  return await deps.scheduler.withLease(lease, async held => {
    try {
      const asked = { path: `${CHAT}/input_tokens`, body: JSON.stringify(call.body) }
      const response = await askEngine(held, asked)
      const { input_tokens } = JSON.parse((await readAll(response.body)).toString('utf8'))
      return { input_tokens }
    } catch (error) {
      throw reasonOf(held, error)
    }
  })
}
