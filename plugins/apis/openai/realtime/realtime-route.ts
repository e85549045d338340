import type { FastifyInstance } from 'fastify'
import type { ConfiguredApi } from '../../../../core/answers/model-request.ts'
import { CorralError } from '../../../../core/errors.ts'
import { acceptWebSocket } from '../../../../core/http/web-socket.ts'
import { catalogFor } from '../../../../core/models/allowed-models.ts'
import { RealtimeSession } from './realtime-session.ts'

/** Sessions of one client. Each may hold a recording and a conversation. */
const MAX_SESSIONS_PER_CLIENT = 8
const MAX_MESSAGE_BYTES = 16 * 2 ** 20
/** A session ends after this time without a message of the client, and after an hour as at OpenAI. */
const IDLE_MS = 15 * 60_000
const MAX_SESSION_MS = 60 * 60_000
/** Bytes that wait for a client that does not read. */
const MAX_UNREAD_BYTES = 64 * 2 ** 20
/** Codes of RFC 6455. */
const [GOING_AWAY, POLICY] = [1001, 1008]

/** OpenAPI cannot describe WebSockets. */
const SCHEMA = { hide: true, summary: 'Hold a live session over a WebSocket' }

/** Adds OpenAI's realtime API (https://platform.openai.com/docs/guides/realtime-websocket). */
export function realtimeRoute(app: FastifyInstance, { catalog }: ConfiguredApi): void {
  /** Ends each open session. */
  const open = new Map<(why: string) => void, string>()
  app.addHook('preClose', async () => {
    for (const end of open.keys()) end('The server is shutting down.')
  })
  app.get<{ Querystring: { model?: string; intent?: string } }>(
    '/realtime',
    { schema: SCHEMA },
    async (request, reply) => {
      const { caller } = request
      const own = [...open.values()].filter(turn => turn === caller.turn).length
      if (own >= MAX_SESSIONS_PER_CLIENT) {
        const message = `You have ${own} realtime sessions, and more are not allowed. Close one first.`
        throw new CorralError('too_busy', message)
      }
      const socket = await acceptWebSocket(request, reply, MAX_MESSAGE_BYTES)
      const models = () => catalogFor(catalog, caller).list()
      const send = (event: object) => {
        if (socket.readyState !== socket.OPEN) return
        if (socket.bufferedAmount > MAX_UNREAD_BYTES) return socket.terminate()
        socket.send(JSON.stringify(event))
      }
      const session = new RealtimeSession({ request, models, send })
      const end = (why: string, code = GOING_AWAY) => {
        socket.close(code, why)
        setTimeout(() => socket.terminate(), 1000).unref()
      }
      const idle = setTimeout(() => end('The session was idle for too long.'), IDLE_MS).unref()
      const over = setTimeout(() => end('The session has lasted an hour.'), MAX_SESSION_MS).unref()
      const revoke = () => end('The key was revoked.', POLICY)
      caller.revoked?.addEventListener('abort', revoke)
      open.set(end, caller.turn)
      socket.on('error', () => socket.terminate())
      socket.on('close', () => {
        open.delete(end)
        clearTimeout(idle)
        clearTimeout(over)
        caller.revoked?.removeEventListener('abort', revoke)
        session.end()
      })
      socket.on('message', data => {
        idle.refresh()
        session.receive(data.toString())
      })
      session.begin()
    }
  )
}
