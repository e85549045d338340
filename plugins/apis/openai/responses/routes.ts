import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { reportIgnoredTools } from '../../../../core/answers/answer-headers.ts'
import { withModelDefaults } from '../../../../core/answers/engine-fields.ts'
import { eventChannel, namedEvents } from '../../../../core/answers/event-channel.ts'
import { withUsableMedia } from '../../../../core/answers/media-parts.ts'
import { type ConfiguredApi, readModelRequest } from '../../../../core/answers/model-request.ts'
import type { Question } from '../../../../core/answers/question.ts'
import { CorralError, invalidRequest } from '../../../../core/errors.ts'
import { openaiRouter } from '../../../../core/http/openai-error.ts'
import { ANSWER_ERRORS, json, jsonOrStream } from '../../../../core/http/response-schemas.ts'
import { addedTools } from './call-items.ts'
import { compact, compactedWindow, requestedCompaction, sinceCompaction, withTrigger } from './compaction.ts'
import { engineMessages, engineRequest, newId, type PlacedItem, readInput } from './response-request.ts'
import { takeHostedTools, withoutDecided } from './response-tools.ts'
import { type ResponseHead, type ResponseObject, ResponseWriter } from './response-writer.ts'
import * as schemas from './schemas.ts'
import { itemPage, type StoredResponses } from './stored-responses.ts'

const STREAM =
  'Server-sent events in the order of OpenAI’s Responses API: response.created, response.in_progress (repeated while nothing else is sent), items with their parts and pieces, and response.completed, response.incomplete, or response.failed and error'

export function responseRoutes(app: FastifyInstance, deps: ResponseDependencies): void {
  const { stored } = deps
  const route = openaiRouter(app, 'OpenAI responses')
  route('POST /responses', 'createResponse', 'Create a response', {
    body: schemas.ResponseRequest,
    response: jsonOrStream('The response', schemas.Response, { event: STREAM }),
    errors: [...ANSWER_ERRORS, 'response_not_found'],
    handler: (request, reply) => createResponse(deps, request, reply)
  })
  route('POST /responses/input_tokens', 'countResponseInputTokens', 'Count the tokens of an input', {
    body: schemas.ResponseRequest,
    response: json('The number of tokens', schemas.TokenCount),
    errors: [...ANSWER_ERRORS, 'response_not_found'],
    handler: (request, reply) => countInputTokens(deps, request, reply)
  })
  route('POST /responses/compact', 'compactResponse', 'Replace a conversation by a summary', {
    body: schemas.ResponseRequest,
    response: json('The compacted conversation', schemas.CompactedResponse),
    errors: [...ANSWER_ERRORS, 'response_not_found'],
    handler: (request, reply) => compactConversation(deps, request, reply)
  })
  route('GET /responses/:id', 'getResponse', 'Show a stored response', {
    params: schemas.ResponseId,
    querystring: schemas.RetrieveQuery,
    response: json('The response', schemas.Response),
    errors: ['response_not_found', 'invalid_request', 'unsupported_capability'],
    handler: async ({ params, query, caller }) => {
      const { response } = stored.get(caller.owner, params.id)
      if (query.stream !== 'true') return response
      throw new CorralError(
        'unsupported_capability',
        'A stored response cannot be streamed. Remove "stream" to get it as a whole.',
        { param: 'stream' }
      )
    }
  })
  route('GET /responses/:id/input_items', 'listResponseInputItems', 'List the input of a stored response', {
    params: schemas.ResponseId,
    querystring: schemas.ItemsQuery,
    response: json('The items', schemas.ItemList),
    errors: ['response_not_found', 'invalid_request'],
    handler: async ({ params, query, caller }) => itemPage(stored.get(caller.owner, params.id).input, query)
  })
  route('DELETE /responses/:id', 'deleteResponse', 'Delete a stored response', {
    params: schemas.ResponseId,
    response: json('The response is deleted', schemas.Deleted),
    errors: ['response_not_found'],
    handler: async ({ params: { id }, caller }) => {
      stored.delete(caller.owner, id)
      return { id, object: 'response', deleted: true }
    }
  })
  route('POST /responses/:id/cancel', 'cancelResponse', 'Cancel a response (not possible)', {
    params: schemas.ResponseId,
    errors: ['response_not_found', 'invalid_request'],
    handler: async ({ params, caller }) => {
      stored.get(caller.owner, params.id)
      throw new CorralError(
        'invalid_request',
        'This response has ended, and only background responses can be cancelled. To stop a running response, close its connection.'
      )
    }
  })
}

type ResponseDependencies = ConfiguredApi & { stored: StoredResponses }

type ResponseCall = FastifyRequest<{ Body: schemas.ResponseRequest }>

type Plan = ReturnType<typeof parseRequest>

function conversation(stored: StoredResponses, owner: string, request: schemas.ResponseRequest): PlacedItem[] {
  const { previous_response_id: id, input } = request
  const previous = id ? stored.get(owner, id, 'previous_response_id') : undefined
  let byId: Map<string, schemas.Item> | undefined
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
function parseRequest(
  deps: ResponseDependencies,
  { body: request, caller }: Pick<ResponseCall, 'body' | 'caller'>,
  reply: FastifyReply
) {
  const { variant, settings, options, lease } = readModelRequest(deps, request, caller)
  const placed = conversation(deps.stored, caller.owner, request)
  const added = placed.flatMap(({ item, place }) => addedTools(item, [place ?? 'previous_response_id']))
  const host = deps.answers.tools()
  const hosted = host && takeHostedTools(request, placed, host, caller.owner)
  const engine = engineRequest(hosted?.request ?? request, options, added)
  if (hosted) engine.tools.shown.push(...hosted.shown)
  reportIgnoredTools(reply, [...engine.tools.ignored, ...(hosted?.unused ?? [])])
  const conversed = withoutDecided(sinceCompaction(placed), hosted?.tools.decisions ?? [])
  const { messages, places } = engineMessages(conversed, request.instructions ?? undefined)
  // A list may be empty if there are instructions.
  if (placed.length === 0 && !(request.input && messages.length > 0)) {
    throw invalidRequest('input', '"input" is missing. It must be text or a non-empty list of items.')
  }
  const place = (message: number, part: number) => `${places[message]}[${part}]`
  const usable = withUsableMedia(messages, variant, settings.engine, place)
  const compaction = requestedCompaction(request, placed)
  // A conversation that should be compacted is often too long already.
  const overflow = engine.overflow ?? (compaction === 'now' ? 'drop_oldest' : settings.overflow)
  const sampling = { ...settings.sampling, ...engine.fields }
  return {
    head: {
      id: newId('resp'),
      createdAt: Math.floor(Date.now() / 1000),
      request,
      engine,
      sampling,
      truncation: overflow === 'drop_oldest' ? 'auto' : 'disabled',
      listed: new Set(
        placed.flatMap(({ item }) =>
          item.type === 'mcp_list_tools' ? [(item as { server_label?: unknown }).server_label] : []
        )
      )
    } satisfies ResponseHead,
    placed,
    compaction,
    question: {
      operation: 'chat',
      body: { ...sampling, messages: withModelDefaults(usable, variant.defaults) },
      lease,
      variant,
      overflow,
      tools: hosted?.tools,
      // Reasoning tokens are determined from the counts of each piece.
      countEach: variant.metadata.capabilities.includes('thinking')
    } satisfies Question
  }
}

export async function createResponse(deps: ResponseDependencies, request: ResponseCall, reply: FastifyReply) {
  const plan = parseRequest(deps, request, reply)
  const { head, placed, question } = plan
  const keep = (response: ResponseObject) => {
    if (request.body.store !== false)
      deps.stored.add(request.caller.owner, { response, input: placed.map(({ item }) => item) })
  }
  if (!request.body.stream) {
    const { response } = (await wholeResponse(deps, reply, plan)).complete()
    keep(response)
    return response
  }
  let writer = new ResponseWriter(head)
  const fail = (failure: CorralError) => namedEvents(writer.fail(failure))
  const channel = eventChannel(deps.heartbeat(), fail, () => namedEvents(writer.beat()))
  // After a status of 500 and more, Codex repeats a request up to 30 times, and waits for Retry-After each time. After a
  // failure in the stream it repeats the request 5 times at most, or not at all. Its older versions recognize a full
  // context only there. All programs made from it send this header.
  if (request.headers.originator) {
    channel.failsInStream = ({ code, status }) => status >= 500 || code === 'context_exceeded'
  }
  return await deps.answers.stream(reply, question, channel, async (lease, first) => {
    writer = new ResponseWriter(head, writer)
    return {
      body: await compact(plan, writer, lease, first),
      add: deltas => namedEvents(writer.add(deltas)),
      end() {
        const { events, response } = writer.complete()
        keep(response)
        return namedEvents(events)
      }
    }
  })
}

function wholeResponse(deps: ResponseDependencies, reply: FastifyReply, plan: Plan) {
  return deps.answers.whole(reply, plan.question, async (lease, first) => {
    const writer = new ResponseWriter(plan.head)
    const body = await compact(plan, writer, lease, first)
    return Object.assign(writer, { body })
  })
}

async function compactConversation(deps: ResponseDependencies, { body, caller }: ResponseCall, reply: FastifyReply) {
  const plan = parseRequest(deps, { body: withTrigger(body), caller }, reply)
  const { response } = (await wholeResponse(deps, reply, plan)).complete()
  const { id, created_at, output, usage } = response
  return { id, object: 'response.compaction', created_at, output: compactedWindow(plan.placed, output), usage }
}

async function countInputTokens(deps: ResponseDependencies, request: ResponseCall, reply: FastifyReply) {
  const { question } = parseRequest(deps, request, reply)
  return { object: 'response.input_tokens', input_tokens: await deps.answers.prompt(reply, 'countTokens', question) }
}
