import { hash, randomBytes, timingSafeEqual } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import { type Static, Type } from 'typebox'
import type { Caller } from '../../../core/contracts/callers.ts'
import { Time } from '../../../core/contracts/native-records.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { Text } from '../../../core/http/request-fields.ts'
import { dateAt } from '../../../core/system/clock.ts'
import { setNewest } from '../../../core/system/collections.ts'
import { diskRefusal } from '../../../core/system/disk-space.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { printable } from '../../../core/system/printable.ts'
import { type KeyStore, type KnownCredential, revocation } from './key-store.ts'

/*
 * Browser sessions. An admin asks for a link (`corral open`), and the page exchanges the token in it for a session with
 * the rights of that admin. Links and their sessions are only in memory and end with the server. The owner of a key can
 * stay signed in: such a session is stored, and works only in the browser that has its cookie.
 */

const LINK_LIFETIME_MS = 60_000
const SESSION_LIFETIME_MS = 12 * 3_600_000
const DAY_MS = 24 * 3_600_000
/** Timers of Node.js cannot wait longer. */
const MAX_TIMER_MS = 2 ** 31 - 1
/** Maximum number of links, and of the sessions of one owner. Another one ends the oldest. */
const MAX_COUNT = 100
const MAX_AGENT = 200
/** Between writes of the time when a session was used. */
const USE_INTERVAL_MS = 3_600_000

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
    user_agent: Type.Optional(Text('User-Agent header of the browser')),
    stays: Type.Optional(Type.Literal(true, { description: 'Whether it outlives the server' }))
  },
  { title: 'Session' }
)
type SessionRecord = Static<typeof SessionRecordSchema>

/** What a browser must have, as SHA-256 in hex, and the mark of its key. */
const ProofSchema = Type.Object({
  secret: Type.String(),
  cookie: Type.Optional(Type.String()),
  key: Type.Optional(Type.String())
})
type Proof = Static<typeof ProofSchema>

/** The sessions of browsers that stay signed in. */
const SessionFileSchema = Type.Object({
  version: Type.Literal(1),
  sessions: Type.Array(Type.Object({ owner: Type.String(), proof: ProofSchema, record: SessionRecordSchema }))
})

interface Session extends KnownCredential {
  readonly proof: Proof
  readonly record: SessionRecord
  readonly ends: number
  /** When its last use was stored. */
  stored: number
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
  readonly #path: string
  readonly #keys: Pick<KeyStore, 'callerOf' | 'markOf'>
  readonly #log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  readonly #changed: (change: SessionChange, id: string, by: string) => void
  #writing: Promise<unknown> = Promise.resolve()

  /**
   * @param path the file of the browsers that stay signed in
   * @param changed called for each session that starts or ends, with the cause
   */
  constructor(
    path: string,
    keys: Pick<KeyStore, 'callerOf' | 'markOf'>,
    log: Pick<FastifyBaseLogger, 'info' | 'warn'>,
    changed: (...change: [SessionChange, string, string]) => void
  ) {
    this.#path = path
    this.#keys = keys
    this.#log = log
    this.#changed = changed
  }

  /** Continues the sessions of browsers that stay signed in, if their keys are valid and have not been replaced. */
  async load(): Promise<void> {
    const read = await readJsonFile(this.#path, SessionFileSchema)
    if (read?.fault !== undefined) {
      this.#log.warn(`${this.#path} cannot be used: ${read.fault}. Browsers have to sign in again.`)
    }
    for (const { owner, proof, record } of read?.value?.sessions ?? []) {
      const maker = this.#keys.callerOf(owner)
      const isSame = proof.key !== undefined && proof.key === this.#keys.markOf(owner)
      if (maker && isSame && Date.parse(record.expires_at) > Date.now()) this.#add(maker, record, proof)
    }
  }

  /** Creates a link with the rights of an admin. @param uid as in `Link` @returns its token and expiry */
  makeLink({ turn: _, address: __, isLocal: ___, ...maker }: Caller, uid?: number): { token: string; ends: Date } {
    const now = performance.now()
    for (const [digest, { ends }] of this.#links) if (ends <= now) this.#links.delete(digest)
    const token = randomBytes(32).toString('base64url')
    const ends = now + LINK_LIFETIME_MS
    setNewest(this.#links, digestOf(token), { maker, ends, uid }, MAX_COUNT)
    return { token, ends: dateAt(ends) }
  }

  /** Starts a session and uses up its link. @throws CorralError `link_ended`, `link_refused` (another user's browser) */
  async begin(token: string, user: LinkUser) {
    const place = digestOf(token)
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
    return this.#begin(link.maker, user, SESSION_LIFETIME_MS)
  }

  /**
   * Starts a session that outlives the server, for the browser of a caller with a key.
   * @returns also the cookie without which the session does not work
   * @throws CorralError `invalid_request` without a key, errors of the disk
   */
  async stay({ turn: _, address: __, isLocal: ___, ...maker }: Caller, user: Omit<LinkUser, 'uid'>, days: number) {
    if (maker.name === undefined || maker.session || days === 0) {
      const why =
        days === 0 ? 'security.session_days is 0' : maker.session ? 'it has a session already' : 'it has no API key'
      throw new CorralError('invalid_request', `This request cannot start a session that stays, because ${why}.`)
    }
    const cookie = newSecret()
    const begun = this.#begin(maker, user, days * DAY_MS, cookie)
    try {
      await this.#store()
    } catch (error) {
      this.end(begun.record.id, 'a full disk')
      throw diskRefusal(error, 'The session was not stored', 'home') ?? error
    }
    return { ...begun, cookie: cookieOf(begun.record, cookie) }
  }

  /** @param cookies the `Cookie` header */
  find(text: string, cookies = ''): KnownCredential | undefined {
    const [, id, secret] = SESSION_TEXT.exec(text) ?? []
    const session = id === undefined ? undefined : this.#sessions.get(id)
    if (!session || !proves(secret, session.proof.secret)) return undefined
    const { cookie } = session.proof
    if (cookie !== undefined) {
      const [, sent] = new RegExp(`(?:^|; *)${COOKIE}${id}=([\\w-]{43})(?:;|$)`).exec(cookies) ?? []
      if (!proves(sent, cookie)) return undefined
    }
    // Timers run late after the machine slept.
    const now = Date.now()
    if (session.ends <= now) return void this.#end(session, 'its time')
    session.record.last_used_at = new Date(now).toISOString()
    if (session.record.stays && now - session.stored > USE_INTERVAL_MS) {
      session.stored = now
      this.#storeLater()
    }
    return session
  }

  /** @param owner whose sessions; absent for all */
  list(owner?: string): SessionRecord[] {
    const sessions = [...this.#sessions.values()].reverse()
    return sessions.filter(({ caller }) => owner === undefined || caller.owner === owner).map(({ record }) => record)
  }

  ownerOf(id: string): string | undefined {
    return this.#sessions.get(id)?.caller.owner
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

  async close(): Promise<void> {
    await this.#writing.catch(() => undefined)
    for (const session of this.#sessions.values()) {
      if (!session.record.stays) this.#end(session, 'the end of the server')
      else session.end(endedSession())
    }
  }

  #begin(maker: Maker, { address, userAgent }: Omit<LinkUser, 'uid'>, lifetime: number, cookie?: string) {
    const own = this.list(maker.owner)
    if (own.length >= MAX_COUNT) this.end(own.at(-1)!.id, 'newer sessions')
    const id = randomBytes(8).toString('hex')
    const secret = newSecret()
    const now = Date.now()
    // It ends with the key or session that created it.
    const others = [maker.expires, maker.session?.expires]
      .map(moment => Date.parse(moment ?? ''))
      .filter(Number.isFinite)
    const ends = Math.min(now + lifetime, ...others)
    const record: SessionRecord = {
      id,
      created_at: new Date(now).toISOString(),
      expires_at: new Date(ends).toISOString(),
      last_used_at: new Date(now).toISOString(),
      ...(maker.name !== undefined && { key: maker.name }),
      address,
      ...(userAgent !== undefined && { user_agent: printable(userAgent, MAX_AGENT) }),
      ...(cookie !== undefined && { stays: true })
    }
    const stored = cookie !== undefined && { cookie: digestOf(cookie), key: this.#keys.markOf(maker.owner) }
    this.#add(maker, record, { secret: digestOf(secret), ...stored })
    const by = maker.name ?? 'corral open'
    this.#log.info({ session: id, key: maker.name, address }, 'A browser session has started.')
    this.#changed('session_created', id, by)
    return { key: `corral_session_${id}_${secret}`, record }
  }

  #add(maker: Maker, record: SessionRecord, proof: Proof): void {
    const { id, expires_at: expires } = record
    const ends = Date.parse(expires)
    const { signal, track, revoke } = revocation()
    const withMaker = () => this.#end(session, maker.name === undefined ? 'its session' : `the end of ${maker.name}`)
    maker.revoked?.addEventListener('abort', withMaker, { once: true })
    let timer: NodeJS.Timeout
    const wait = () => {
      const left = ends - Date.now()
      if (left <= 0) return this.#end(session, 'its time')
      timer = setTimeout(wait, Math.min(left, MAX_TIMER_MS)).unref()
    }
    const session: Session = {
      caller: { ...maker, revoked: signal, session: { id, expires } },
      isLong: true,
      track,
      proof,
      record,
      ends,
      stored: Date.parse(record.last_used_at),
      end(reason) {
        clearTimeout(timer)
        maker.revoked?.removeEventListener('abort', withMaker)
        revoke(reason)
      }
    }
    this.#sessions.set(id, session)
    wait()
  }

  #end(session: Session, by: string): void {
    const { id, stays } = session.record
    if (!this.#sessions.delete(id)) return
    session.end(endedSession())
    if (stays) this.#storeLater()
    this.#log.info({ session: id }, `A browser session was ended by ${by}.`)
    this.#changed('session_ended', id, by)
  }

  /** Writes the sessions that outlive the server, after earlier writes. */
  #store(): Promise<void> {
    const write = () => {
      const kept = [...this.#sessions.values()].filter(({ record }) => record.stays)
      const sessions = kept.map(({ caller, proof, record }) => ({ owner: caller.owner, proof, record }))
      return writeJsonFile(this.#path, { version: 1, sessions }, { mode: 0o600 })
    }
    const done = this.#writing.then(write, write)
    this.#writing = done
    return done
  }

  #storeLater(): void {
    this.#store().catch(error => this.#log.warn(`${this.#path} was not written: ${errorMessage(error)}`))
  }
}

const newSecret = () => randomBytes(32).toString('base64url')

const digestOf = (text: string) => hash('sha256', text, 'hex')

const proves = (secret: string | undefined, digest: string) =>
  secret !== undefined && timingSafeEqual(Buffer.from(digestOf(secret)), Buffer.from(digest))

/** The name of a session's cookie begins like this, since servers on other ports of the host share cookies. */
const COOKIE = 'corral_'

/** The `Set-Cookie` header for half of a session. Pages cannot read it, and other sites cannot send it. */
function cookieOf({ id, expires_at: expires }: SessionRecord, secret: string): string {
  return `${COOKIE}${id}=${secret}; Path=/; Expires=${new Date(expires).toUTCString()}; HttpOnly; SameSite=Strict`
}

/** The error for a session that has ended. The `session` detail tells it apart from a wrong key. */
export function endedSession(): CorralError {
  const message =
    'This session has ended: it expired, was ended, or belongs to another browser. Sign in with an API key, or run "corral open".'
  return new CorralError('unauthorized', message, { details: { session: 'ended' } })
}
