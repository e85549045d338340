import type { FastifyReply, FastifyRequest } from 'fastify'
import { checkMedia } from '../../../../core/answers/media-parts.ts'
import { withModelDefaults } from '../../../../core/answers/model-defaults.ts'
import { type ApiDependencies, readModelRequest } from '../../../../core/answers/model-request.ts'
import { askOnce, type Question, requireCall, streamedAnswer, wholeAnswer } from '../../../../core/answers/pipeline.ts'
import { CorralError } from '../../../../core/errors.ts'
import { eventChannel } from '../answer.ts'
import { newId, readInput } from './input-items.ts'
import { engineMessages, type PlacedItem } from './input-messages.ts'
import { engineRequest } from './response-request.ts'
import { type ResponseEvent, type ResponseHead, type ResponseObject, ResponseWriter } from './response-writer.ts'
import type { Item, ResponseRequest } from './schemas.ts'
import type { StoredResponses } from './stored-responses.ts'

interface ResponseDependencies extends ApiDependencies {
  stored: StoredResponses
}

type ResponseCall = FastifyRequest<{ Body: ResponseRequest }>

/** A parsed request, before its model is loaded. */
interface Plan {
  head: ResponseHead
  /** The whole conversation. */
  items: Item[]
  question: Question & { body: Record<string, unknown> }
}

function frames(events: readonly ResponseEvent[]): string {
  return events.map(event => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join('')
}

/** Returns the stored conversation, followed by the input of the request. */
function conversation(stored: StoredResponses, owner: string, request: ResponseRequest): PlacedItem[] {
  const { previous_response_id: id, input } = request
  const previous = id ? stored.get(owner, id, 'previous_response_id') : undefined
  let byId: Map<string, Item> | undefined
  const added = readInput(input ?? [], itemId => {
    byId ??= stored.itemsById(owner)
    return byId.get(itemId)
  })
  const place = (index: number) => (typeof input === 'string' ? 'input' : `input[${index}]`)
  return [
    ...[...(previous?.input ?? []), ...(previous?.response.output ?? [])].map(item => ({ item })),
    ...added.map((item, index) => ({ item, place: place(index) }))
  ]
}

/** @throws CorralError naming the wrong field */
function parseRequest(deps: ResponseDependencies, { body: request, caller }: ResponseCall): Plan {
  const { variant, settings, options, lease } = readModelRequest(deps, request, caller)
  const engine = engineRequest(request, options)
  const placed = conversation(deps.stored, caller.owner, request)
  const { messages, places } = engineMessages(placed, request.instructions ?? undefined)
  if (placed.length === 0) {
    const sentence = '"input" is missing. It must be text or a non-empty list of items.'
    throw new CorralError('invalid_request', sentence, { param: 'input' })
  }
  checkMedia(messages, variant, settings.engine, (message, part) => `${places[message]}[${part}]`)
  const overflow = engine.overflow ?? settings.overflow
  const sampling = { ...settings.sampling, ...engine.fields }
  return {
    head: {
      id: newId('resp'),
      createdAt: Math.floor(Date.now() / 1000),
      request,
      engine,
      sampling,
      truncation: overflow === 'drop_oldest' ? 'auto' : 'disabled'
    },
    items: placed.map(({ item }) => item),
    question: {
      operation: 'chat',
      body: { ...sampling, messages: withModelDefaults(messages, variant.defaults) },
      lease,
      variant,
      overflow,
      // Reasoning tokens are determined from the counts of each piece.
      countEach: variant.metadata.capabilities.includes('thinking')
    }
  }
}

/** Answers `POST /v1/responses`. Loads the model if necessary. */
export async function createResponse(
  deps: ResponseDependencies,
  request: ResponseCall,
  reply: FastifyReply
): Promise<unknown> {
  const { head, items, question } = parseRequest(deps, request)
  const keep = (response: ResponseObject) => {
    if (request.body.store !== false) deps.stored.add(request.caller.owner, { response, input: items })
  }
  if (!request.body.stream) {
    const writer = await wholeAnswer(deps, reply, question, () => new ResponseWriter(head))
    const { response } = writer.complete()
    keep(response)
    return response
  }
  let writer = new ResponseWriter(head)
  const channel = eventChannel(deps.heartbeat(), failure => frames(writer.fail(failure)))
  return await streamedAnswer(deps, request, reply, question, channel, () => {
    writer = new ResponseWriter(head)
    return {
      add: deltas => frames(writer.add(deltas)),
      end() {
        const { events, response } = writer.complete()
        keep(response)
        return frames(events)
      }
    }
  })
}

/** Answers `POST /v1/responses/input_tokens`. */
export async function countInputTokens(
  deps: ResponseDependencies,
  request: ResponseCall,
  reply: FastifyReply
): Promise<unknown> {
  const { body, lease } = parseRequest(deps, request).question
  return await askOnce(deps, reply, { operation: 'tokens', body, lease }, async leased => ({
    object: 'response.input_tokens',
    input_tokens: await requireCall(leased, 'countTokens')(body, leased)
  }))
}
