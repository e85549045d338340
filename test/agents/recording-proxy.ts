import { createServer, type IncomingHttpHeaders, request as send } from 'node:http'
import { buffer } from 'node:stream/consumers'
import type { Test } from 'tap'
import { listen } from '../support/listen.ts'

export interface Exchange {
  method: string
  path: string
  headers: IncomingHttpHeaders
  body: any
  status: number
  replyHeaders: IncomingHttpHeaders
  reply: string
}

export interface RecordingProxy {
  url: string
  /** Passes later requests to another address. */
  target: string
  exchanges: Exchange[]
}

/** Passes requests on and records them. Its address stays the same while corral restarts. */
export async function startRecordingProxy(t: Pick<Test, 'teardown'>, target: string): Promise<RecordingProxy> {
  const server = createServer(async (request, response) => {
    const { method = '', url: path = '', headers } = request
    const body = await buffer(request).catch(() => undefined)
    if (!body) return
    const text = String(body)
    const exchange: Exchange = {
      method,
      path,
      headers,
      body: text.startsWith('{') ? JSON.parse(text) : text,
      status: 0,
      replyHeaders: {},
      reply: ''
    }
    proxy.exchanges.push(exchange)
    const { host: _, ...passed } = headers
    const upstream = send(new URL(path, proxy.target), { method, headers: passed }, reply => {
      exchange.status = reply.statusCode!
      exchange.replyHeaders = reply.headers
      response.writeHead(reply.statusCode!, reply.headers)
      reply.on('data', chunk => {
        exchange.reply += chunk
        response.write(chunk)
      })
      reply.on('end', () => response.end())
      reply.on('error', () => response.destroy())
    })
    upstream.on('error', () => response.destroy())
    response.on('close', () => upstream.destroy())
    upstream.end(body)
  })
  const port = await listen(t, server)
  const proxy: RecordingProxy = { url: `http://127.0.0.1:${port}`, target, exchanges: [] }
  return proxy
}
