import { createHash, randomBytes, timingSafeEqual } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import { type Static, Type } from 'typebox'
import type { Caller } from '../../../core/contracts/callers.ts'
import { Time } from '../../../core/contracts/native-records.ts'
import { CorralError } from '../../../core/errors.ts'
import { Text } from '../../../core/http/request-fields.ts'
import { dateAt } from '../../../core/system/clock.ts'
import { setNewest } from '../../../core/system/collections.ts'
import { printable } from '../../../core/system/printable.ts'
import { type KnownCredential, revocation } from './key-store.ts'

/*
 * Browser sessions. An admin asks for a link (`corral open`), and the page exchanges the token in it for a session with
 * the rights of that admin. Links and sessions are only in memory and end with the server.
 */

const LINK_LIFETIME_MS = 60_000
const SESSION_LIFETIME_MS = 12 * 3_600_000
/** Maximum number of links, and of sessions. Another one ends the oldest. Only admins create them. */
const MAX_COUNT = 100
const MAX_AGENT = 200

const SESSION_TEXT = /^corral_session_([0-9a-f]{16})_([A-Za-z0-9_-]{43})$/

/** Whether a credential looks like a session, known or not. */
export const isSessionText = (text: string) => SESSION_TEXT.test(text)

/** The admin who asked for the link. The session gets the same rights. */
type Maker = Omit<Caller, 'turn' | 'address' | 'isLocal'>

interface Link {
  maker: Maker
  ends: number
  /** Only programs of this local user may use the link. Undefined means any user. */
  uid: number | undefined
}

type SessionChange = 'session_created' | 'session_ended'

export const SessionRecordSchema = Type.Object(
  {
    id: Type.String(),
    created_at: Time(),
    expires_at: Time(),
    last_used_at: Time(),
    key: Type.Optional(Text('Name of the admin key that created it; absent for "corral open"')),
    address: Text('Address it was started from'),
    user_agent: Type.Optional(Text('User-Agent header of the browser'))
  },
  { title: 'Session' }
)
type SessionRecord = Static<typeof SessionRecordSchema>

interface Session extends KnownCredential {
  readonly digest: Buffer
  readonly record: SessionRecord
  readonly ends: number
  end(reason: CorralError): void
}

export interface LinkUser {
  address: string
  userAgent: string | undefined
  uid(): Promise<number | undefined>
}

export class SessionStore {
  readonly #links = new Map<string, Link>()
  readonly #sessions = new Map<string, Session>()
  readonly #log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  readonly #changed: (change: SessionChange, id: string, by: string) => void

  /** @param changed called for each session that starts or ends, with the cause */
  constructor(
    log: Pick<FastifyBaseLogger, 'info' | 'warn'>,
    changed: (...change: [SessionChange, string, string]) => void
  ) {
    this.#log = log
    this.#changed = changed
  }

  /** Creates a link with the rights of an admin. @param uid as in `Link` @returns its token and expiry */
  makeLink({ turn: _, address: __, isLocal: ___, ...maker }: Caller, uid?: number): { token: string; ends: Date } {
    const now = performance.now()
    for (const [digest, { ends }] of this.#links) if (ends <= now) this.#links.delete(digest)
    const token = randomBytes(32).toString('base64url')
    const ends = now + LINK_LIFETIME_MS
    setNewest(this.#links, digestOf(token).toString('hex'), { maker, ends, uid }, MAX_COUNT)
    return { token, ends: dateAt(ends) }
  }

  /** Starts a session and uses up its link. @throws CorralError `link_ended`, `link_refused` (another user's browser) */
  async begin(token: string, user: LinkUser) {
    const place = digestOf(token).toString('hex')
    const link = this.#links.get(place)
    if (link?.uid !== undefined) {
      const uid = await user.uid()
      if (uid !== link.uid) {
        this.#log.warn(
          { uid, address: user.address },
          'A program of another user tried to use a link of "corral open".'
        )
        const message =
          'This link is for a browser of the user who ran "corral open", on the same machine, and this browser is not known to be one. For another browser, use the link of: corral open --print'
        throw new CorralError('link_refused', message)
      }
    }
    const isWhole = link !== undefined && this.#links.delete(place) && link.ends > performance.now()
    if (!isWhole || link.maker.revoked?.aborted) {
      const message = `This link was already used, or is older than ${LINK_LIFETIME_MS / 1000} s. Each link works once. Run "corral open" again.`
      throw new CorralError('link_ended', message)
    }
    return this.#begin(link.maker, user)
  }

  find(text: string): KnownCredential | undefined {
    const [, id, secret] = SESSION_TEXT.exec(text) ?? []
    const session = id === undefined ? undefined : this.#sessions.get(id)
    if (!session || !timingSafeEqual(session.digest, digestOf(secret!))) return undefined
    // Timers run late after the machine slept.
    if (session.ends <= Date.now()) return void this.#end(session, 'its time')
    session.record.last_used_at = new Date().toISOString()
    return session
  }

  list(): SessionRecord[] {
    return [...this.#sessions.values()].reverse().map(({ record }) => record)
  }

  /** Ends a session and its answers. @param by who ended it, for the log @throws CorralError `session_not_found` */
  end(id: string, by: string): SessionRecord {
    const session = this.#sessions.get(id)
    if (!session) {
      const message = 'There is no such session. It may have ended. GET /api/sessions lists the sessions.'
      throw new CorralError('session_not_found', message)
    }
    this.#end(session, by)
    return session.record
  }

  close(): void {
    for (const session of this.#sessions.values()) this.#end(session, 'the end of the server')
  }

  #begin(maker: Maker, { address, userAgent }: LinkUser) {
    if (this.#sessions.size >= MAX_COUNT) {
      const [oldest] = this.#sessions.values()
      this.#end(oldest!, 'newer sessions')
    }
    const id = randomBytes(8).toString('hex')
    const secret = randomBytes(32).toString('base64url')
    const now = Date.now()
    // It ends with the key or session that created it.
    const others = [maker.expires, maker.session?.expires]
      .map(moment => Date.parse(moment ?? ''))
      .filter(Number.isFinite)
    const ends = Math.min(now + SESSION_LIFETIME_MS, ...others)
    const record: SessionRecord = {
      id,
      created_at: new Date(now).toISOString(),
      expires_at: new Date(ends).toISOString(),
      last_used_at: new Date(now).toISOString(),
      ...(maker.name !== undefined && { key: maker.name }),
      address,
      ...(userAgent !== undefined && { user_agent: printable(userAgent, MAX_AGENT) })
    }
    const { signal, track, revoke } = revocation()
    const withMaker = () => this.#end(session, maker.name === undefined ? 'its session' : `the end of ${maker.name}`)
    maker.revoked?.addEventListener('abort', withMaker, { once: true })
    const timer = setTimeout(() => this.#end(session, 'its time'), ends - now).unref()
    const session: Session = {
      caller: { ...maker, revoked: signal, session: { id, expires: record.expires_at } },
      isLong: true,
      track,
      digest: digestOf(secret),
      record,
      ends,
      end(reason) {
        clearTimeout(timer)
        maker.revoked?.removeEventListener('abort', withMaker)
        revoke(reason)
      }
    }
    this.#sessions.set(id, session)
    const by = maker.name ?? 'corral open'
    this.#log.info({ session: id, key: maker.name, address }, 'A browser session has started.')
    this.#changed('session_created', id, by)
    return { key: `corral_session_${id}_${secret}`, record }
  }

  #end(session: Session, by: string): void {
    const { id } = session.record
    if (!this.#sessions.delete(id)) return
    session.end(endedSession())
    this.#log.info({ session: id }, `A browser session was ended by ${by}.`)
    this.#changed('session_ended', id, by)
  }
}

const digestOf = (text: string) => createHash('sha256').update(text).digest()

/** The error for a session that has ended. The `session` detail tells it apart from a wrong key. */
export function endedSession(): CorralError {
  const message =
    'This session has ended: sessions last 12 hours at most, and end with the server. Run "corral open" again, or send an API key.'
  return new CorralError('unauthorized', message, { details: { session: 'ended' } })
}
