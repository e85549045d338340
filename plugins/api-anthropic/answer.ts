import { randomBytes } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { checkMedia } from '../../core/answers/media-parts.ts'
import { withModelDefaults } from '../../core/answers/model-defaults.ts'
import {
  type AnswerDependencies,
  type AnswerWriter,
  askOnce,
  type Channel,
  callOf,
  type Question,
  streamedAnswer,
  wholeAnswer
} from '../../core/answers/pipeline.ts'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { settingsFor } from '../../core/config/model-settings.ts'
import type { Delta } from '../../core/contracts/engines.ts'
import type { Catalog } from '../../core/contracts/models.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { parseKeepAlive, parseOptions, topLevelOptions } from '../../core/models/options.ts'
import { anthropicErrorBody } from './anthropic-error.ts'
import { engineRequest } from './engine-body.ts'
import { MessageEvents, type MessageHead, WholeMessage } from './message-events.ts'
import type { CountRequest, Message, MessagesRequest } from './schemas.ts'

const PING = frame({ type: 'ping' })

export interface AnthropicDependencies extends AnswerDependencies {
  catalog: Catalog
  config: CoreConfig
  /** Milliseconds of silence after which a waiting stream sends a ping. */
  heartbeat: number
}

function frame(event: { type: string }): string {
  return `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`
}

/** What a request asks of the engine. @throws CorralError with the field at fault, before a model is loaded for it */
function questionOf(deps: AnthropicDependencies, request: CountRequest & Partial<MessagesRequest>) {
  const model = parseModelName(request.model)
  const own = parseOptions(topLevelOptions(request))
  const nested = parseOptions(request.options)
  const keepAlive = parseKeepAlive(request.keep_alive)
  const variant = deps.catalog.get(model)
  const settings = settingsFor(deps.config, variant)
  const { body, places } = engineRequest(request, { ...settings.sampling, ...nested.sampling, ...own.sampling })
  checkMedia(body.messages, variant, settings.engine, (message, part) => places[message]![part]!)
  const messages = withModelDefaults(body.messages, variant.defaults)
  return {
    operation: 'chat',
    body: { ...body, messages },
    lease: { model, options: { ...nested.load, ...own.load }, keepAlive },
    variant,
    overflow: own.overflow ?? nested.overflow ?? settings.overflow,
    stopText: Boolean(request.stop_sequences?.length)
  } satisfies Question
}

/** Answers a request for a message, whole or as a stream. */
export async function answerMessage(
  deps: AnthropicDependencies,
  request: FastifyRequest<{ Body: MessagesRequest }>,
  reply: FastifyReply
): Promise<Message | undefined> {
  const { body } = request
  const question = questionOf(deps, body)
  const head: MessageHead = {
    id: `msg_${randomBytes(12).toString('hex')}`,
    model: body.model,
    stopSequences: body.stop_sequences ?? [],
    omitThinking: body.thinking?.display === 'omitted',
    oneCall: body.tool_choice?.disable_parallel_tool_use === true
  }
  if (!body.stream) {
    const taker = await wholeAnswer(deps, reply, question, () => {
      const events = new MessageEvents(head)
      const whole = new WholeMessage()
      return {
        add(deltas: readonly Delta[]) {
          for (const delta of deltas) for (const event of events.add(delta)) whole.take(event)
        },
        message() {
          for (const event of events.end()) whole.take(event)
          return whole.message
        }
      }
    })
    return taker.message()
  }
  const channel: Channel = {
    contentType: 'text/event-stream; charset=utf-8',
    heartbeatInterval: deps.heartbeat,
    heartbeat: () => PING,
    failure: error => `event: error\ndata: ${JSON.stringify(anthropicErrorBody(error, request))}\n\n`
  }
  const open = (): AnswerWriter => {
    const events = new MessageEvents(head)
    return {
      add(deltas) {
        let out = ''
        for (const delta of deltas) for (const event of events.add(delta)) out += frame(event)
        return out
      },
      end: () => events.end().map(frame).join('')
    }
  }
  await streamedAnswer(deps, request, reply, question, channel, open)
  return undefined
}

/** Counts the tokens of a request's prompt as the engine does when it answers. */
export async function countTokens(
  deps: AnthropicDependencies,
  request: CountRequest,
  reply: FastifyReply
): Promise<{ input_tokens: number }> {
  const { body, lease } = questionOf(deps, request)
  return await askOnce(deps, reply, { operation: 'tokens', body, lease }, async held => ({
    input_tokens: await callOf(held, 'countTokens')(body, held)
  }))
}
