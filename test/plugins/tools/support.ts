import { randomUUID } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage } from 'node:http'
import { join } from 'node:path'
import { createMcpHandler, fromJsonSchema, McpServer } from '@modelcontextprotocol/server'
import type { Test } from 'tap'
import { packageRoot } from '../../../core/system/package-info.ts'
import type { Corral } from '../../support/corral.ts'
import { newFolder } from '../../support/folder.ts'
import { listen } from '../../support/listen.ts'

/** A model's answer to a request: text, or calls of tools. */
export interface Scripted {
  text?: string
  calls?: { name: string; arguments: object | string }[]
}

export const MODEL = 'far/scripted'

export const question = { model: MODEL, messages: [{ role: 'user', content: 'What is 2 + 40?' }] }

/** Asks the question in five APIs, and returns the texts of the answers and the tools that were used. */
export async function askFiveApis(t: Test, corral: Corral, headers: Record<string, string>) {
  const used: string[] = []
  const ask = async (path: string, body: object) => {
    const reply = await corral.send(path, { ...question, ...body }, { headers })
    used.push(reply.headers.get('x-corral-used-tools') ?? '')
    const text = await reply.text()
    t.equal(reply.status, 200, text)
    return JSON.parse(text)
  }
  const stream = false
  const answers = [
    (await ask('/v1/chat/completions', {})).choices[0].message.content,
    (await ask('/api/chat', { stream })).message.content,
    (await ask('/ollama/api/chat', { stream })).message.content,
    (await ask('/v1/messages', { max_tokens: 100 })).content.map(({ text = '' }) => text).join(''),
    (await ask('/v1/responses', { input: question.messages, messages: undefined })).output
      .flatMap(({ content = [] }: any) => content)
      .map(({ text = '' }) => text)
      .join('')
  ]
  return { answers, used }
}

/** A server with OpenAI's API whose model says what a function decides. */
export async function scriptedModel(t: Pick<Test, 'teardown'>, decide: (body: any) => Scripted | Promise<Scripted>) {
  const asked: any[] = []
  const server = createServer(async (request, response) => {
    const sent = await textOf(request)
    // The health check of remote models.
    if (!request.url!.endsWith('/chat/completions')) return void response.end('{}')
    const body = JSON.parse(sent)
    asked.push(body)
    const { text, calls = [] } = await decide(body)
    const events = [
      ...(text === undefined ? [] : [{ content: text }]),
      ...calls.map(({ name, arguments: given }, index) => ({
        tool_calls: [
          {
            index,
            id: `call_${asked.length}_${index}`,
            function: { name, arguments: typeof given === 'string' ? given : JSON.stringify(given) }
          }
        ]
      }))
    ].map(delta => ({ choices: [{ index: 0, delta, finish_reason: null as string | null }] }))
    events.push({
      choices: [{ index: 0, delta: {} as never, finish_reason: calls.length > 0 ? 'tool_calls' : 'stop' }]
    })
    Object.assign(events.at(-1)!, { usage: { prompt_tokens: 10, completion_tokens: 3 } })
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.end(`${events.map(event => `data: ${JSON.stringify(event)}\n\n`).join('')}data: [DONE]\n\n`)
  })
  const port = await listen(t, server)
  const section = `remote: { models: { ${MODEL}: { model: one, context: 100000, servers: [{ url: "http://127.0.0.1:${port}/v1" }] } } }\n`
  return { section, asked }
}

async function textOf(request: IncomingMessage): Promise<string> {
  let text = ''
  for await (const chunk of request.setEncoding('utf8')) text += chunk
  return text
}

/** The results that the model has got, in order. */
export const results = (body: any): string[] =>
  body.messages.filter(({ role }: any) => role === 'tool').map(({ content }: any) => content)

export const toolNames = (body: any): string[] => (body.tools ?? []).map((tool: any) => tool.function.name)

/** Writes a program that speaks MCP by the SDK. `tools` is the text of statements that use `server` and `schema`. */
export function toolProgram(t: Test, tools: string): string {
  const file = join(newFolder(t), 'tools.mjs')
  const sdk = join(packageRoot, 'node_modules/@modelcontextprotocol/server/dist')
  writeFileSync(
    file,
    `import { McpServer, fromJsonSchema } from '${sdk}/index.mjs'
import { serveStdio } from '${sdk}/stdio.mjs'
import { appendFileSync } from 'node:fs'
const schema = properties => fromJsonSchema({ type: 'object', properties })
const text = text => ({ content: [{ type: 'text', text }] })
serveStdio(() => {
  const server = new McpServer({ name: 'test', version: '1' })
  ${tools}
  return server
})
`
  )
  return file
}

export const ADDER = `
  server.registerTool('add', { description: 'Adds', inputSchema: schema({ a: { type: 'number' }, b: { type: 'number' } }), annotations: { readOnlyHint: true } }, async ({ a, b }) => text(String(a + b)))
  server.registerTool('delete', { description: 'Deletes', inputSchema: schema({}) }, async () => text('deleted'))
  server.registerTool('pid', { description: 'Process', inputSchema: schema({}), annotations: { readOnlyHint: true } }, async () => text(String(process.pid)))
  server.registerResource('notes', 'test://notes', { mimeType: 'text/plain' }, async ({ href: uri }) => ({ contents: [{ uri, text: 'Remember the milk.' }] }))
  server.registerPrompt('greet', { description: 'Greets', argsSchema: fromJsonSchema({ type: 'object', properties: { name: { type: 'string', description: 'Whom' }, tone: { type: 'string' } }, required: ['name'] }) }, async ({ name, tone = 'kindly' }) => ({
    messages: [
      { role: 'user', content: { type: 'text', text: 'Greet ' + name + ' ' + tone + '.' } },
      { role: 'assistant', content: { type: 'text', text: 'With the card.' } },
      { role: 'user', content: { type: 'resource', resource: { uri: 'file:///card.txt', mimeType: 'text/plain', blob: 'SGVsbG8h' } } }
    ]
  }))
`

/** A server of tools over HTTP, with one tool that searches. */
export async function searchServer(t: Pick<Test, 'teardown'>, requests: { authorization: string | undefined }[] = []) {
  const handler = createMcpHandler(() => {
    const server = new McpServer({ name: 'search', version: '1' })
    const query = fromJsonSchema<{ query: string }>({ type: 'object', properties: { query: { type: 'string' } } })
    const about = { description: 'Searches', inputSchema: query, annotations: { readOnlyHint: true } }
    server.registerTool('web_search', about, async ({ query }) => ({
      content: [{ type: 'text', text: `Found https://example.org/${query}` }]
    }))
    return server
  })
  const server = createServer(async (request, response) => {
    requests.push({ authorization: request.headers.authorization })
    const body = await textOf(request)
    const headers = Object.entries(request.headers).map(([name, value]) => [name, `${value}`] as [string, string])
    const init = { method: request.method!, headers, ...(body && { body }) }
    const reply = await handler.fetch(new Request(`http://127.0.0.1${request.url}`, init))
    response.writeHead(reply.status, Object.fromEntries(reply.headers))
    for await (const chunk of reply.body ?? []) response.write(chunk)
    response.end()
  })
  return `http://127.0.0.1:${await listen(t, server)}/mcp`
}

/** A server over HTTP with sessions. `restart` forgets them. */
export async function sessionServer(t: Pick<Test, 'teardown'>) {
  const sessions = new Set<string>()
  const server = createServer(async (request, response) => {
    const text = await textOf(request)
    const { id, method, params } = text ? JSON.parse(text) : {}
    const session = `${request.headers['mcp-session-id']}`
    const results: Record<string, object> = {
      initialize: {
        protocolVersion: params?.protocolVersion,
        capabilities: { tools: {} },
        serverInfo: { name: 'sessions', version: '1' }
      },
      'tools/list': {
        tools: [{ name: 'session', inputSchema: { type: 'object' }, annotations: { readOnlyHint: true } }]
      },
      'tools/call': { content: [{ type: 'text', text: session }] }
    }
    if (request.method !== 'POST') return void response.writeHead(405).end()
    if (method === 'initialize') {
      const begun = randomUUID()
      sessions.add(begun)
      response.setHeader('mcp-session-id', begun)
    } else if (method !== 'server/discover' && !sessions.has(session)) return void response.writeHead(404).end()
    if (id === undefined) return void response.writeHead(202).end()
    const result = results[method]
    const reply = result ? { result } : { error: { code: -32601, message: 'Method not found' } }
    response
      .writeHead(200, { 'content-type': 'application/json' })
      .end(JSON.stringify({ jsonrpc: '2.0', id, ...reply }))
  })
  return { url: `http://127.0.0.1:${await listen(t, server)}/mcp`, restart: () => sessions.clear() }
}

/**
 * Writes a program that speaks MCP without any library, so that it can lie. `respond` is the text of a function from a
 * request to its result; it may return nothing, and use `say` to write a line.
 */
export function lyingProgram(t: Test, respond: string): string {
  const file = join(newFolder(t), 'liar.mjs')
  writeFileSync(
    file,
    `import { createInterface } from 'node:readline'
const say = message => process.stdout.write(JSON.stringify({ jsonrpc: '2.0', ...message }) + '\\n')
const tool = (name, more = {}) => ({ name, inputSchema: { type: 'object' }, annotations: { readOnlyHint: true }, ...more })
const text = text => ({ content: [{ type: 'text', text }] })
const respond = ${respond}
for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line)
  if (id === undefined) continue
  if (method === 'initialize') {
    say({ id, result: { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: 'liar', version: '1' } } })
  } else if (method === 'server/discover') say({ id, error: { code: -32601, message: 'Method not found' } })
  else {
    const result = await respond(method, params)
    if (result) say({ id, result })
  }
}
`
  )
  return file
}
