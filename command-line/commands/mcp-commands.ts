import type { IncomingMessage } from 'node:http'
import { createInterface } from 'node:readline'
import { createParser } from 'eventsource-parser'
import { errorMessage } from '../../core/errors.ts'
import { isObject, parseAnyJson } from '../../core/system/json-object.ts'
import { interruption } from '../command-failure.ts'
import type { CommandContext } from '../context.ts'
import { type ServerClient, ServerRefusal } from '../server-client.ts'
import { withServer } from '../server-connection.ts'

export { mcpImport } from './mcp-import.ts'
export { mcpCall, mcpCheck, mcpList } from './tool-commands.ts'

type Message = Record<string, unknown>

/** Passes each message of standard input to the server, and its replies to standard output. */
export async function mcpServe(context: CommandContext): Promise<void> {
  const pass = async ({ client }: { client: ServerClient }) => {
    const running = new Map<unknown, AbortController>()
    for await (const line of createInterface({ input: process.stdin, signal: interruption() })) {
      if (line.trim() === '') continue
      const message = parseAnyJson(line)
      if (!isObject(message)) {
        print({ id: null, error: { code: -32700, message: 'The line is not a JSON-RPC message.' } })
        continue
      }
      const { id, method, params } = message
      if (method === 'notifications/cancelled' && isObject(params)) running.get(params.requestId)?.abort()
      const ended = new AbortController()
      if (id !== undefined) running.set(id, ended)
      void forward(client, message, ended.signal).finally(() => {
        if (running.get(id) === ended) running.delete(id)
      })
    }
    for (const each of running.values()) each.abort()
  }
  await withServer(context, 'fail', pass, 'The tools of "corral mcp serve" need one.')
}

const print = (message: Message) => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`)

async function forward(client: ServerClient, message: Message, signal: AbortSignal): Promise<void> {
  const { id } = message
  let isAnswered = id === undefined
  const take = (text: string) => {
    const reply = parseAnyJson(text)
    if (!isObject(reply)) return
    isAnswered ||= reply.id === id
    print(reply)
  }
  const parser = createParser({ onEvent: ({ data }) => take(data) })
  try {
    const read = async (reply: IncomingMessage) => {
      let whole = ''
      for await (const text of reply.setEncoding('utf8')) {
        if (reply.headers['content-type']?.startsWith('text/event-stream')) parser.feed(text)
        else whole += text
      }
      take(whole)
    }
    await client.bytes('/mcp', message, read, { signal, headers: headersFor(message) })
    if (!isAnswered) throw new Error('The server ended the reply too early. Try again.')
  } catch (error) {
    if (signal.aborted || isAnswered) return
    const refused = error instanceof ServerRefusal && isObject(error.details.error) ? error.details.error : undefined
    print({ id, error: refused ?? { code: -32000, message: errorMessage(error) } })
  }
}

/** The headers that HTTP needs since the version 2026-07-28, in which each message names its version. */
function headersFor({ method, params }: Message): Record<string, string> {
  const { _meta: meta, name, uri } = isObject(params) ? params : {}
  const version = isObject(meta) ? meta['io.modelcontextprotocol/protocolVersion'] : undefined
  if (typeof version !== 'string') return {}
  const target = String(name ?? uri ?? '')
  return {
    'mcp-protocol-version': version,
    'mcp-method': String(method),
    // A header may not contain all characters of a name.
    ...(target !== '' && { 'mcp-name': `=?base64?${Buffer.from(target).toString('base64')}?=` })
  }
}
