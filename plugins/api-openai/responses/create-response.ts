import type { FastifyReply, FastifyRequest } from 'fastify'
import { checkMedia } from '../../../core/answers/media-parts.ts'
import { withModelDefaults } from '../../../core/answers/model-defaults.ts'
import { askOnce, callOf, type Question, streamedAnswer, wholeAnswer } from '../../../core/answers/pipeline.ts'
import { settingsFor } from '../../../core/config/model-settings.ts'
import type { Delta } from '../../../core/contracts/engines.ts'
import { CorralError } from '../../../core/errors.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { parseKeepAlive } from '../../../core/models/options.ts'
import { eventChannel, type OpenaiDependencies } from '../answer.ts'
import { engineMessages, type PlacedItem } from './engine-messages.ts'
import { engineFields } from './engine-request.ts'
import { readInput } from './input-items.ts'
import { type Item, newId } from './items.ts'
import type { ResponseRequest } from './request-schema.ts'
import { type ResponseEvent, type ResponseHead, type ResponseObject, ResponseWriter } from './response-writer.ts'
import type { StoredResponses } from './stored-responses.ts'

export interface ResponseDependencies extends OpenaiDependencies {
  stored: StoredResponses
}

/** A request as it was understood. */
interface Understood {
  head: ResponseHead
  /** All of the conversation. */
  items: Item[]
  question: Question & { body: Record<string, unknown> }
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
function understand(deps: ResponseDependencies, request: ResponseRequest): Understood {
  const engine = engineFields(request)
  const model = parseModelName(request.model ?? request.name)
  const keepAlive = parseKeepAlive(request.keep_alive)
  const variant = deps.catalog.get(model)
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
    question: {
      operation: 'chat',
      body: { ...sampling, messages: withModelDefaults(messages, variant.defaults) },
      lease: { model, options: engine.load, keepAlive },
      variant,
      overflow: policy,
      // How many tokens are of reasoning is known by counts at each piece.
      countEach: variant.metadata.capabilities.includes('thinking')
    }
  }
}

/** Answers `POST /v1/responses`, loading the model first where needed. */
export async function createResponse(
  deps: ResponseDependencies,
  request: FastifyRequest<{ Body: ResponseRequest }>,
  reply: FastifyReply
): Promise<unknown> {
  const understood = understand(deps, request.body)
  const { head, question } = understood
  if (!request.body.stream) {
    const writer = await wholeAnswer(deps, reply, question, () => new ResponseWriter(head))
    const { response } = writer.complete()
    keep(deps, understood, response)
    return response
  }
  let writer = new ResponseWriter(head)
  const channel = eventChannel(deps.heartbeat, failure => frames(writer.fail(failure)))
  return await streamedAnswer(deps, request, reply, question, channel, () => {
    writer = new ResponseWriter(head)
    return {
      add: (deltas: readonly Delta[]) => frames(writer.add(deltas)),
      end() {
        const { events, response } = writer.complete()
        keep(deps, understood, response)
        return frames(events)
      }
    }
  })
}

/** Answers `POST /v1/responses/input_tokens`. */
export async function countInputTokens(
  deps: ResponseDependencies,
  request: FastifyRequest<{ Body: ResponseRequest }>,
  reply: FastifyReply
): Promise<unknown> {
  const { body, lease } = understand(deps, request.body).question
  return await askOnce(deps, reply, { operation: 'tokens', body, lease }, async held => ({
    object: 'response.input_tokens',
    input_tokens: await callOf(held, 'countTokens')(body, held)
  }))
}

function keep({ stored }: ResponseDependencies, { head, items }: Understood, response: ResponseObject): void {
  if (head.request.store !== false) stored.add({ response, input: items })
}
