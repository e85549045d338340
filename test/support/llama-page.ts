import { once } from 'node:events'
import { createReadStream, existsSync, statSync } from 'node:fs'
import { cp, mkdir, rename, rm } from 'node:fs/promises'
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { extname, join } from 'node:path'
import { text } from 'node:stream/consumers'
import type { Test } from 'tap'
import { Value } from 'typebox/value'
import { errorMessage } from '../../core/errors.ts'
import { runTool } from '../../core/system/child-process.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { RuntimesOptions } from '../../runtimes/llama-cpp/options.ts'
import { fetchSource } from '../../runtimes/llama-cpp/sources/llama-source.ts'

const folder = join(packageRoot, '.cache', 'llama-page')
const log = { debug() {} }

/**
 * llama.cpp's own page, built from the source of the release that corral compiles, unmodified; kept in `.cache`.
 * That takes some four minutes, 1.5 GB of disk and 2.4 GB of memory once.
 * @returns its folder, or why there is none
 * @throws ToolError when it cannot be built
 */
export async function llamaPage(): Promise<{ path: string } | { missing: string }> {
  const { package: name, version } = (Value.Create(RuntimesOptions) as RuntimesOptions).source
  const path = join(folder, version)
  if (existsSync(path)) return { path }
  const work = join(folder, 'work')
  await mkdir(work, { recursive: true })
  let interfaceFolder: string
  try {
    const { directory } = await fetchSource({ name, version, work, env: process.env, log }, {})
    interfaceFolder = join(directory, 'tools', 'ui')
    const install = ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']
    await runTool('npm', install, { cwd: interfaceFolder, purpose: 'packages' })
  } catch (error) {
    return { missing: `its source cannot be had: ${errorMessage(error)}` }
  }
  await runTool('npm', ['run', 'build'], { cwd: interfaceFolder, purpose: 'packages' })
  await rm(`${path}.new`, { recursive: true, force: true })
  await cp(join(interfaceFolder, 'dist'), `${path}.new`, { recursive: true })
  await rename(`${path}.new`, path)
  await rm(work, { recursive: true, force: true })
  return { path }
}

const TYPES: Record<string, string> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript',
  '.css': 'text/css',
  '.json': 'application/json',
  '.webmanifest': 'application/manifest+json',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.ico': 'image/x-icon'
}

/** A request that was passed to the server behind the page. */
export interface PassedRequest {
  method: string
  /** Path and query. */
  url: string
  headers: Record<string, string>
  body: string
  /** Status of the reply, or undefined while there is none. */
  status?: number
  /** The client has received the whole reply or has disconnected. */
  ended: boolean
}

export interface ServedPage {
  address: string
  /** Requests that the page sent to the server, in order. */
  passed: PassedRequest[]
}

/** A request of the page, stored to be replayed with one conversation for all. */
export interface RecordedRequest {
  /** Its method, path and field names. */
  kind: string
  method: string
  url: string
  /** Its header `X-Conversation-Id`. */
  conversation?: string
  body?: any
}

export const RECORDED = join(packageRoot, 'test', 'fixtures', 'llama-page-requests.json')
const CONVERSATION = '00000000-0000-4000-8000-000000000000'

/** One request of each kind: requests that differ only in values are one kind. */
export function groupRequests(requests: readonly PassedRequest[]): Map<string, RecordedRequest> {
  const kinds = new Map<string, RecordedRequest>()
  for (const { method, url, headers, body } of requests) {
    const anonymous = (text: string) => text.replaceAll(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g, CONVERSATION)
    const parsed = body === '' ? undefined : JSON.parse(anonymous(body))
    const conversation = headers['x-conversation-id']
    const { pathname, searchParams } = new URL(url, 'http://localhost')
    const fields = parsed === undefined ? [] : Object.keys(parsed).sort()
    const kind = [method, pathname, ...searchParams.keys(), ...fields].join(' ')
    if (kinds.has(kind)) continue
    kinds.set(kind, {
      kind,
      method,
      url: anonymous(url).replace(/from=\d+/, 'from=0'),
      ...(conversation && { conversation: anonymous(conversation) }),
      ...(parsed !== undefined && { body: parsed })
    })
  }
  return kinds
}

/** Serves a built page at its own address, as llama-server does, and passes all other requests on. */
export async function servePage(t: Pick<Test, 'teardown'>, path: string, behind: string): Promise<ServedPage> {
  const passed: PassedRequest[] = []
  const server = createServer((incoming, reply) => {
    const { pathname } = new URL(incoming.url!, behind)
    const file = join(path, pathname === '/' ? 'index.html' : pathname)
    if (incoming.method === 'GET' && file.startsWith(path) && statSync(file, { throwIfNoEntry: false })?.isFile()) {
      reply.setHeader('content-type', TYPES[extname(file)] ?? 'application/octet-stream')
      createReadStream(file).pipe(reply)
    } else void passOn(incoming, reply, behind, passed)
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
  })
  return { address: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`, passed }
}

async function passOn(
  incoming: IncomingMessage,
  reply: ServerResponse,
  behind: string,
  passed: PassedRequest[]
): Promise<void> {
  const { method = 'GET', url = '/', headers } = incoming
  const record: PassedRequest = {
    method,
    url,
    headers: headers as Record<string, string>,
    body: await text(incoming),
    ended: false
  }
  passed.push(record)
  const onward = request(new URL(url, behind), { method, headers })
  reply.once('close', () => {
    record.ended = true
    onward.destroy()
  })
  onward.once('error', error => reply.destroy(error))
  onward.once('response', response => {
    record.status = response.statusCode!
    reply.writeHead(response.statusCode!, response.headers)
    response.pipe(reply)
    response.once('error', error => reply.destroy(error))
  })
  onward.end(record.body)
}
