import type { AddressInfo } from 'node:net'
import type { FastifyInstance, FastifyPluginAsync, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { Time } from '../../../core/contracts/native-records.ts'
import { CorralError } from '../../../core/errors.ts'
import { httpOrigin } from '../../../core/http/listening.ts'
import { Count, Given, loose, Text } from '../../../core/http/request-fields.ts'
import { DISK_ERRORS, json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { hasRole, ROLES, requireRole } from '../../../core/http/roles.ts'
import type { FailedAttempts } from './failed-attempts.ts'
import { isLoopbackHost, requireSameOrigin } from './host-and-origin.ts'
import { userOfPeer } from './peer-user.ts'
import { SessionRecordSchema, type SessionStore } from './session-store.ts'

const TAG = 'Keys'

interface SessionRules {
  sessions: SessionStore
  host: string
  names(): readonly string[]
  /** How long a browser may stay signed in. */
  days(): number
  attempts: FailedAttempts
}

export function sessionRoutes({ sessions, host, names, days, attempts }: SessionRules): FastifyPluginAsync {
  return async instance => {
    const route = nativeRouter(instance, TAG)

    route('POST /api/sessions/links', 'createSessionLink', 'Create a link that opens the page as an admin', {
      role: 'admin',
      description:
        'The page exchanges the token in the link for a session (`POST /api/sessions`), once and within a minute. `corral open` does both.',
      body: Type.Object(
        {
          uid: Given(Count('Restricts the link to programs of this user on the same machine (Linux)'))
        },
        loose
      ),
      response: {
        200: json(
          'The link',
          Type.Object({
            address: Text('To be opened in a browser; anyone who has it is an admin'),
            expires_at: Time('When the link expires')
          })
        )
      },
      handler: async (request, reply) => {
        const { token, ends } = sessions.makeLink(request.caller, request.body.uid ?? undefined)
        reply.header('cache-control', 'no-store')
        const address = `${originFor(instance, request, { host, names: names() })}${instance.web?.path ?? '/'}#open=${token}`
        return { address, expires_at: ends.toISOString() }
      }
    })

    const begun = json(
      'The session',
      Type.Object({
        key: Text('To be sent as "Authorization: Bearer …"; returned only once'),
        role: Type.Enum([...ROLES]),
        expires_at: Time()
      })
    )
    route('POST /api/sessions', 'createSession', 'Start a session with a link', {
      role: 'anyone',
      description: "For the server's own page: pages of other origins are refused. The session is sent like a key.",
      body: Type.Object({ token: Text('The text after "#open=" in the link') }, loose),
      response: { 200: begun },
      errors: ['link_ended', 'link_refused', 'rate_limited'],
      handler: async (request, reply) => {
        const { origin, host: called, 'user-agent': userAgent } = request.headers
        if (origin !== undefined) requireSameOrigin(origin, called)
        const { address } = request.caller
        const { token } = request.body
        const uid = () => userOfPeer(request.raw.socket)
        const { key, record } = await sessions.begin(token, { address, userAgent, uid }).catch(error => {
          throw error instanceof CorralError && error.code === 'link_ended'
            ? attempts.refuse(address, token, error)
            : error
        })
        reply.header('cache-control', 'no-store')
        return { key, role: 'admin' as const, expires_at: record.expires_at }
      }
    })

    route('POST /api/sessions/stay', 'staySignedIn', 'Stay signed in with a key in this browser', {
      description:
        "For the server's own page: pages of other origins are refused. The session outlives the server and ends with its key or after `security.session_days`. It works only together with the cookie of the reply.",
      body: Type.Object({}, loose),
      response: { 200: begun },
      errors: DISK_ERRORS,
      handler: async (request, reply) => {
        const { origin, host: called, 'user-agent': userAgent } = request.headers
        if (origin !== undefined) requireSameOrigin(origin, called)
        const { caller } = request
        const { key, record, cookie } = await sessions.stay(caller, { address: caller.address, userAgent }, days())
        const isSecure = instance.connectionGuard.encrypts || origin?.startsWith('https:')
        reply.headers({ 'cache-control': 'no-store', 'set-cookie': isSecure ? `${cookie}; Secure` : cookie })
        return { key, role: caller.role, expires_at: record.expires_at }
      }
    })

    route('GET /api/sessions', 'listSessions', 'List browser sessions', {
      description: 'All sessions for admins, and the sessions of their key for other callers.',
      response: {
        200: json('Newest first', Type.Object({ sessions: Type.Array(SessionRecordSchema) }))
      },
      handler: async ({ caller: { role, name, owner } }, reply) => {
        reply.header('cache-control', 'no-store')
        const isAdmin = hasRole(role, 'admin')
        return { sessions: isAdmin || name !== undefined ? sessions.list(isAdmin ? undefined : owner) : [] }
      }
    })

    const ended = json('Ended', Type.Object({ status: Type.Literal('ended'), session: SessionRecordSchema }))
    route('DELETE /api/sessions/current', 'endOwnSession', 'End the session of this request', {
      response: { 200: ended },
      errors: ['session_not_found'],
      handler: async ({ caller }) => {
        if (!caller.session) {
          const message = 'This request does not belong to a session, so there is none to end.'
          throw new CorralError('session_not_found', message)
        }
        return { status: 'ended' as const, session: sessions.end(caller.session.id, 'its browser') }
      }
    })

    route('DELETE /api/sessions/:id', 'endSession', 'End a browser session', {
      description: 'Running answers are ended. Only admins end sessions of other keys.',
      params: Type.Object({ id: Text('The id of a session') }),
      response: { 200: ended },
      errors: ['session_not_found'],
      handler: async ({ params, caller }) => {
        const owner = sessions.ownerOf(params.id)
        const isForeign = owner !== undefined && (caller.name === undefined || owner !== caller.owner)
        if (isForeign) requireRole(caller, 'admin')
        return { status: 'ended' as const, session: sessions.end(params.id, caller.name ?? caller.address) }
      }
    })
  }
}

/** The origin for the browser: the origin that the caller used, or the listening address for the private socket. */
function originFor(
  app: FastifyInstance,
  { caller, headers }: FastifyRequest,
  { host, names }: { host: string; names: readonly string[] }
): string {
  const { encrypts } = app.connectionGuard
  const scheme = encrypts ? 'https' : 'http'
  if (!caller.isLocal && headers.host !== undefined) return `${scheme}://${headers.host}`
  const { port } = app.server.address() as AddressInfo
  const isGeneral = host === '0.0.0.0' || host === '::' || isLoopbackHost(host)
  // Certificates are issued for names.
  if (encrypts && isGeneral) return httpOrigin({ host: names[0] ?? 'localhost', port }, true)
  const reached = host === '0.0.0.0' ? '127.0.0.1' : host === '::' ? '::1' : host
  return httpOrigin({ host: reached, port }, encrypts)
}
