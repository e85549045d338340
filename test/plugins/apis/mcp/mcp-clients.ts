import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio'
import { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport as OldStdio } from '@modelcontextprotocol/sdk/client/stdio.js'
import { StreamableHTTPClientTransport as OldHttp } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import type { Test } from 'tap'
import { commandEnvironment, MAIN } from '../../../command-line/command.ts'
import type { Corral } from '../../../support/corral.ts'

/** The official SDK with the newest protocol, with the one before, and its first version. */
export const CLIENTS = ['2026-07-28', '2025-11-25', 'SDK 1'] as const
export type ClientKind = (typeof CLIENTS)[number]
export type McpClient = Pick<
  Client,
  'listTools' | 'listResources' | 'listResourceTemplates' | 'readResource' | 'callTool' | 'getServerVersion' | 'close'
>

const ME = { name: 'test', version: '1' }

function newClient(kind: ClientKind): Client | OldClient {
  if (kind === 'SDK 1') return new OldClient(ME)
  return new Client(ME, { versionNegotiation: { mode: kind === '2026-07-28' ? { pin: kind } : 'legacy' } })
}

/** Connects a client to a server: over HTTP with a key, or over `corral mcp serve`. */
export async function connectMcp(
  t: Pick<Test, 'teardown'>,
  { url, home }: Pick<Corral, 'url' | 'home'>,
  kind: ClientKind,
  { key, stdio = false }: { key?: string; stdio?: boolean } = {}
): Promise<Client> {
  const client = newClient(kind)
  const isOld = kind === 'SDK 1'
  const command = { command: process.execPath, args: [MAIN, 'mcp', 'serve'], cwd: home }
  const env = commandEnvironment({ home }) as Record<string, string>
  const requestInit = key === undefined ? {} : { headers: { authorization: `Bearer ${key}` } }
  const address = new URL('/mcp', url)
  const transport = stdio
    ? new (isOld ? OldStdio : StdioClientTransport)({ ...command, env })
    : new (isOld ? OldHttp : StreamableHTTPClientTransport)(address, { requestInit })
  t.teardown(() => client.close())
  await (client as Client).connect(transport as StdioClientTransport)
  return client as Client
}

/** Calls a tool and returns its text, its data and whether it failed. */
export async function call(client: Client, name: string, values: object = {}, options: object = {}) {
  const request = { name, arguments: values as Record<string, unknown> }
  // The first version of the SDK takes the options behind a schema.
  const result: any = await (client instanceof OldClient
    ? (client as OldClient).callTool(request, undefined, options)
    : client.callTool(request, options))
  return { text: result.content[0].text as string, data: result.structuredContent, failed: result.isError === true }
}
