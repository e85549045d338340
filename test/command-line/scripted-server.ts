import { createServer, type ServerResponse } from 'node:http'
import type { Test } from 'tap'
import { listen } from '../support/listen.ts'

/** @param count number of requests to this route, including this one */
export type Answer = (reply: ServerResponse, body: Record<string, unknown>, count: number) => void

export interface ScriptedServer {
  /** Flags that make a command use the server. */
  flags: string[]
  /** Bodies of the requests to a route, in order. */
  bodies(route: string): Record<string, unknown>[]
  /** Whether the client left the last request before its answer was complete. */
  left(): boolean
}

/** A server with answers from the test. Keys of `routes` look like `POST /api/pull`. */
export async function scriptedServer(t: Test, routes: Record<string, Answer>): Promise<ScriptedServer> {
  const asked = new Map<string, Record<string, unknown>[]>()
  let left = false
  const server = createServer(async (request, reply) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk)
    if (request.url === '/api/health') return reply.end('{"status":"ok"}')
    const route = `${request.method} ${request.url}`
    const answer = routes[route]
    if (!answer) return refuse(reply, 404, 'route_not_found', `There is no ${route}.`)
    const bodies = asked.get(route) ?? []
    const body = JSON.parse(Buffer.concat(chunks).toString() || '{}')
    asked.set(route, [...bodies, body])
    left = false
    reply.once('close', () => {
      left = !reply.writableFinished
    })
    answer(reply, body, bodies.length + 1)
  })
  return {
    flags: ['--port', String(await listen(t, server))],
    bodies: route => asked.get(route) ?? [],
    left: () => left
  }
}

/** Formats a stream event. */
export function event(value: object): string {
  return `data: ${JSON.stringify(value)}\n\n`
}

export function refuse(reply: ServerResponse, status: number, code: string, error: string, more: object = {}): void {
  reply
    .writeHead(status, { 'content-type': 'application/json' })
    .end(JSON.stringify({ ...more, error, errorCode: status, code }))
}
