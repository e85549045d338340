import type { FastifyReply, FastifyRequest } from 'fastify'
import { overflowOf } from '../../../core/answers/context-overflow.ts'
import { askEngine, readAll, reasonOf } from '../../../core/answers/engine-reply.ts'
import { checkMedia } from '../../../core/answers/media-parts.ts'
import { withModelDefaults } from '../../../core/answers/model-defaults.ts'
import { type EngineCall, readAnswer } from '../../../core/answers/read-answer.ts'
import { tellUnheeded } from '../../../core/answers/unheeded-schema.ts'
import type { CoreConfig } from '../../../core/config/core-schema.ts'
import { settingsFor } from '../../../core/config/model-settings.ts'
import { progressText } from '../../../core/contracts/progress.ts'
import type { Lease, LeaseRequest } from '../../../core/contracts/scheduler.ts'
import type { Storage } from '../../../core/contracts/storage.ts'
import { CorralError } from '../../../core/errors.ts'
import { clientSignal } from '../../../core/http/client-signal.ts'
import type { ReplyStream } from '../../../core/http/reply-stream.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { parseKeepAlive } from '../../../core/models/options.ts'
import { answerInEvents, type EventStreamDependencies } from '../event-stream.ts'
import { engineMessages, type PlacedItem } from './engine-messages.ts'
import { engineFields } from './engine-request.ts'
import { readInput } from './input-items.ts'
import { type Item, newId } from './items.ts'
import type { ResponseRequest } from './request-schema.ts'
import type { ResponseHead, ResponseObject } from './response-object.ts'
import { type ResponseEvent, ResponseWriter } from './response-writer.ts'
import type { StoredResponses } from './stored-responses.ts'

export interface ResponseDependencies extends EventStreamDependencies {
  storage: Storage
  config: CoreConfig
  stored: StoredResponses
}

/** A request as it was understood. */
interface Understood {
  head: ResponseHead
  /** All of the conversation. */
  items: Item[]
  call: EngineCall
  lease: LeaseRequest
}

function frames(events: readonly ResponseEvent[]): string {
  return events.map(event => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join('')
}

/** The conversation so far and what the request adds to it. */
function conversation(stored: StoredResponses, request: ResponseRequest): PlacedItem[] {
  const { previous_response_id: id, input } = request
  const previous = id ? stored.get(id, 'previous_response_id') : undefined
  let byId: Map<string, Item> | undefined
  const added = readInput(input ?? [], itemId => {
    byId ??= stored.itemsById()
    return byId.get(itemId)
  })
  const place = (index: number) => (typeof input === 'string' ? 'input' : `input[${index}]`)
  return [
    ...[...(previous?.input ?? []), ...(previous?.response.output ?? [])].map(item => ({ item })),
    ...added.map((item, index) => ({ item, place: place(index) }))
  ]
}

/** Reads a request, before a model is loaded for it. @throws CorralError */
function understand(deps: ResponseDependencies, request: ResponseRequest, reply: FastifyReply): Understood {
  const engine = engineFields(request)
  const model = parseModelName(request.model ?? request.name)
  const keepAlive = parseKeepAlive(request.keep_alive)
  const variant = deps.storage.get(model)
  const settings = settingsFor(deps.config, variant)
  const placed = conversation(deps.stored, request)
  const { messages, places } = engineMessages(placed, request.instructions ?? undefined)
  if (placed.length === 0) {
    const what = '"input" is missing. It must be text or a list of items that is not empty.'
    throw new CorralError('invalid_request', what, { param: 'input' })
  }
  checkMedia(messages, variant, settings.engine, (message, part) => `${places[message]}[${part}]`)
  const policy = engine.overflow ?? settings.overflow
  const sampling = { ...settings.sampling, ...engine.fields }
  tellUnheeded(reply, sampling)
  return {
    head: {
      id: newId('resp'),
      createdAt: Math.floor(Date.now() / 1000),
      request,
      engine,
      sampling,
      truncation: policy === 'drop_oldest' ? 'auto' : 'disabled'
    },
    items: placed.map(({ item }) => item),
    call: {
      path: '/v1/chat/completions',
      body: {
        ...sampling,
        messages: withModelDefaults(messages, variant.defaults),
        // How many tokens are of reasoning is told by counts at each piece.
        ...(variant.metadata.capabilities.includes('thinking') && { timings_per_token: true })
      },
      overflow: overflowOf(policy, reply)
    },
    lease: { model, options: engine.load, keepAlive, signal: clientSignal(reply) }
  }
}

/** Answers `POST /v1/responses`, loading the model first where needed. */
export async function createResponse(
  deps: ResponseDependencies,
  request: FastifyRequest<{ Body: ResponseRequest }>,
  reply: FastifyReply
): Promise<unknown> {
  const understood = understand(deps, request.body, reply)
  const { head, call, lease } = understood
  if (!request.body.stream) {
    return await deps.scheduler.withLease(lease, async held => {
      const writer = new ResponseWriter(head)
      await readAnswer(held, call, deltas => {
        for (const delta of deltas) writer.take(delta)
        return undefined
      })
      const { response } = writer.complete()
      keep(deps, understood, response)
      return response
    })
  }
  let writer = new ResponseWriter(head)
  const use = async (held: Lease, stream: ReplyStream) => {
    writer = new ResponseWriter(head)
    await readAnswer(held, call, deltas => {
      const events: ResponseEvent[] = []
      for (const delta of deltas) {
        if (delta.promptRead !== undefined) stream.status = readingPrompt(delta.promptRead)
        events.push(...writer.take(delta))
      }
      return events.length > 0 ? stream.write(frames(events)) : undefined
    })
    const { events, response } = writer.complete()
    keep(deps, understood, response)
    stream.end(frames(events))
  }
  return await answerInEvents(deps, request, reply, lease, use, failure => frames(writer.fail(failure)))
}

/** Answers `POST /v1/responses/input_tokens`. */
export async function countInputTokens(
  deps: ResponseDependencies,
  request: FastifyRequest<{ Body: ResponseRequest }>,
  reply: FastifyReply
): Promise<unknown> {
  const { call, lease } = understand(deps, request.body, reply)
  return await deps.scheduler.withLease(lease, held => countTokens(held, call))
}

async function countTokens(lease: Lease, { path, body }: EngineCall): Promise<unknown> {
  try {
    const response = await askEngine(lease, { path: `${path}/input_tokens`, body: JSON.stringify(body) })
    const { input_tokens } = JSON.parse((await readAll(response.body)).toString('utf8'))
    return { object: 'response.input_tokens', input_tokens }
  } catch (error) {
    throw reasonOf(lease, error)
  }
}

function keep({ stored }: ResponseDependencies, { head, items }: Understood, response: ResponseObject): void {
  if (head.request.store !== false) stored.add({ response, input: items })
}

function readingPrompt(fraction: number): string {
  return progressText({ phase: 'generating', subject: '(reading the prompt)', fraction })
}
