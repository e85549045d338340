import {
  type CallToolResult,
  createMcpHandler,
  ProtocolError,
  ProtocolErrorCode,
  ResourceNotFoundError,
  Server,
  type ServerContext
} from '@modelcontextprotocol/server'
import { createParser } from 'eventsource-parser'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { Caller } from '../../../core/contracts/callers.ts'
import type { LocalModel, PullEvent, ShownModel } from '../../../core/contracts/native-records.ts'
import { CorralError, type ErrorCode } from '../../../core/errors.ts'
import { sendInternally } from '../../../core/http/internal-request.ts'
import { logFailure, toCorralError } from '../../../core/http/native-error.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import { version } from '../../../core/system/package-info.ts'
import { printable } from '../../../core/system/printable.ts'
import { ACTIONS, type Send, TOOLS } from './mcp-tools.ts'

/** Whether a caller may use a route such as `GET /api/tags`. */
export type MayUse = (caller: Caller, route: string) => boolean

interface Asker {
  app: FastifyInstance
  request: FastifyRequest
  signal: AbortSignal
}

const INSTRUCTIONS = 'corral runs language models. Call list_models first: other tools need the name of a model.'
const CARD = 'corral://models/'
const MARKDOWN = 'text/markdown'
/** Resources in one reply. */
const PAGE_SIZE = 500
const HEARTBEAT_MS = 10_000
const PROGRESS_INTERVAL_MS = 250

export type McpServer = ReturnType<typeof createServer>

/** Creates an MCP server that keeps nothing between requests. @param mayUse decides which tools a caller sees */
export function createServer(app: FastifyInstance, mayUse: MayUse) {
  const handler = createMcpHandler(
    ({ era, authInfo }) => serverFor(authInfo!.extra as unknown as Asker, mayUse, era === 'modern'),
    // Headers are sent immediately, because clients give up if none arrive for minutes.
    { responseMode: 'sse', keepAliveMs: HEARTBEAT_MS }
  )
  return {
    /** Notifies the clients that listen. */
    modelsChanged: () => handler.notify.resourcesChanged(),
    /** @param signal ends the work of the request */
    async respond(request: FastifyRequest, signal: AbortSignal): Promise<Response> {
      // Any body is JSON, as for the other APIs.
      const headers = new Headers({ accept: 'application/json, text/event-stream', 'content-type': 'application/json' })
      for (const [name, value] of Object.entries(request.headers)) {
        if (name.startsWith('mcp-')) headers.set(name, String(value))
      }
      const asked = new Request('http://localhost/mcp', { method: 'POST', headers, signal })
      const authInfo = { token: '', clientId: '', scopes: [], extra: { app, request, signal } }
      return await handler.fetch(asked, { authInfo, parsedBody: request.body })
    }
  }
}

function serverFor(asker: Asker, mayUse: MayUse, canListen: boolean): Server {
  const send: Send = async (route, fields) =>
    await sendAs(asker, route, fields).catch(error => {
      throw error instanceof CorralError ? invalid(error.message) : error
    })
  const capabilities = { tools: {}, resources: { listChanged: canListen } }
  const server = new Server({ name: 'corral', version }, { capabilities, instructions: INSTRUCTIONS })
  server.setRequestHandler('tools/list', () => ({
    tools: TOOLS.filter(({ route }) => mayUse(asker.request.caller, route)).map(({ tool }) => tool)
  }))
  server.setRequestHandler('tools/call', ({ params }, context) => callTool(asker, params, context))
  server.setRequestHandler('resources/list', async ({ params }) => {
    const start = Number(params?.cursor ?? 0)
    if (!Number.isSafeInteger(start) || start < 0) throw invalid('The cursor is not from an earlier reply.')
    const { models } = await send<{ models: LocalModel[] }>('GET /api/tags')
    const end = start + PAGE_SIZE
    const resources = models.slice(start, end).map(({ name, capabilities }) => {
      return { uri: CARD + name, name, description: capabilities.join(', '), mimeType: MARKDOWN }
    })
    return { resources, ...(end < models.length && { nextCursor: String(end) }) }
  })
  server.setRequestHandler('resources/templates/list', () => ({
    resourceTemplates: [{ uriTemplate: `${CARD}{+model}`, name: 'Model card', mimeType: MARKDOWN }]
  }))
  server.setRequestHandler('resources/read', async ({ params: { uri } }) => {
    if (!uri.startsWith(CARD)) throw new ResourceNotFoundError(uri)
    const model = uri.slice(CARD.length)
    return { contents: [{ uri, mimeType: MARKDOWN, text: card(model, await send('POST /api/show', { model })) }] }
  })
  return server
}

const invalid = (message: string) => new ProtocolError(ProtocolErrorCode.InvalidParams, message)
const quoted = (text: string) => JSON.stringify(text.slice(0, 100))

/** @param onEvent receives the events of a streamed reply. The last one is the result. @throws CorralError with the route's code */
async function sendAs(
  { app, request, signal }: Asker,
  route: string,
  fields: Record<string, unknown> = {},
  onEvent: (event: PullEvent) => void = () => undefined
  // biome-ignore lint/suspicious/noExplicitAny: the route's schema describes it
): Promise<any> {
  const [method, path] = route.split(' ') as [string, string]
  const given = Object.entries(fields).filter(([, value]) => value !== undefined && value !== null)
  const isGet = method === 'GET'
  if (isGet && given.some(([, value]) => typeof value === 'object')) {
    throw new CorralError('invalid_request', 'An argument is a list or an object. Send a text or a number.')
  }
  let last: PullEvent | undefined
  const parser = createParser({
    onEvent({ data }) {
      last = JSON.parse(data) as PullEvent
      onEvent(last)
    }
  })
  const decoder = new TextDecoder()
  const { body } = await sendInternally(app, request.caller, {
    url: isGet ? `${path}?${new URLSearchParams(Object.fromEntries(given) as Record<string, string>)}` : path,
    signal,
    ...(!isGet && { body: JSON.stringify(fields) }),
    ...(fields.stream === true && { onPiece: piece => parser.feed(decoder.decode(piece, { stream: true })) })
  })
  const reply = (last ?? parseAnyJson(body.toString())) as Record<string, unknown>
  const { error, code } = reply
  if (isObject(error)) throw new CorralError(error.code as ErrorCode, String(error.message))
  if (error !== undefined) throw new CorralError(code as ErrorCode, String(error))
  return reply
}

async function callTool(
  asker: Asker,
  { name, arguments: values = {} }: { name: string; arguments?: Record<string, unknown> },
  context: ServerContext
): Promise<CallToolResult> {
  const schema = TOOLS.find(({ tool }) => tool.name === name)?.tool.inputSchema
  if (!schema) throw invalid(`There is no tool ${quoted(name)}. List the tools with tools/list.`)
  const known = Object.keys(schema.properties ?? {})
  const progress = reportProgress(context)
  try {
    const unknown = Object.keys(values).find(each => !known.includes(each))
    if (unknown !== undefined) {
      const message = `${name} has no argument ${quoted(unknown)}. Its arguments: ${known.join(', ') || 'none'}.`
      throw new CorralError('invalid_request', message)
    }
    const [text, data] = await ACTIONS[name]!((route, fields) => sendAs(asker, route, fields, progress.take), values)
    return { content: [{ type: 'text', text }], structuredContent: { ...data } }
  } catch (error) {
    asker.signal.throwIfAborted()
    const { code, message } = toCorralError(error)
    if (!(error instanceof CorralError)) logFailure(toCorralError(error), asker.request.log)
    const text = printable(`${message} (${code})`)
    return { isError: true, content: [{ type: 'text', text }], structuredContent: { code, error: message } }
  } finally {
    progress.stop()
  }
}

/** Sends a client that wants progress the events of a request, and signs of life. */
function reportProgress({ mcpReq }: ServerContext) {
  const progressToken = mcpReq._meta?.progressToken
  const files = new Map<string, number>()
  let [progress, total, message] = [0, 0, 'waiting']
  let sentAt = Number.NEGATIVE_INFINITY
  const send = () => {
    if (progressToken === undefined || performance.now() - sentAt < PROGRESS_INTERVAL_MS) return
    sentAt = performance.now()
    const bytes = [...files.values()].reduce((sum, each) => sum + each, 0)
    // It must grow with each notification.
    progress = Math.max(progress + 1, bytes)
    const params = { progressToken, progress, message, ...(total > 0 && { total: Math.max(total, progress) }) }
    mcpReq.notify({ method: 'notifications/progress', params }).catch(() => undefined)
  }
  const timer = setInterval(send, HEARTBEAT_MS)
  return {
    take({ status, size = total, digest, completed = 0 }: PullEvent) {
      message = printable(status)
      total = size
      if (digest !== undefined) files.set(digest, completed)
      send()
    },
    stop: () => clearInterval(timer)
  }
}

function card(name: string, { details, ...shown }: ShownModel): string {
  const facts = [
    `Capabilities: ${shown.capabilities.join(', ')}`,
    `Context window: ${shown.context_window} tokens`,
    `Architecture: ${details.family} with ${details.parameter_size || 'an unknown number of'} parameters`,
    `Format: ${details.format} ${details.quantization_level}, ${formatBytes(details.size)}`,
    `License: ${shown.license.split('\n', 1)[0] || 'unknown'}`,
    ...(shown.system ? [`System message: ${shown.system}`] : [])
  ]
  return [`# ${name}\n`, ...facts.map(fact => `- ${printable(fact, 1000)}`), ''].join('\n')
}
