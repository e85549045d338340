import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { isIP } from 'node:net'
import proxyAddress from '@fastify/proxy-addr'
import type { FastifyRequest } from 'fastify'
import { type Caller, keylessCaller } from '../../../core/contracts/callers.ts'
import { CorralError } from '../../../core/errors.ts'
import { merged } from '../../../core/system/collections.ts'
import type { FailedAttempts } from './failed-attempts.ts'
import { isLoopbackHost } from './host-and-origin.ts'
import type { KeyStore, KnownCredential } from './key-store.ts'
import { endedSession, isSessionText, type SessionStore } from './session-store.ts'

interface CallerRules {
  keys: KeyStore
  sessions: SessionStore
  attempts: FailedAttempts
  /** Requests that need no key if they come from this machine. */
  keyless: WeakSet<IncomingMessage>
  /** Whether callers on other machines need no key as long as none exists. */
  insecure(): boolean
  /** Whether an address belongs to a proxy whose X-Forwarded-For header is trusted. */
  proxies(address: string, hop: number): boolean
}

interface Found {
  caller: Caller
  key?: KnownCredential
}

type Pending<Value> = Value | Promise<Value>

const HOW_TO_SEND = 'Send "Authorization: Bearer <key>" or "x-api-key: <key>".'

/** Returns a function that identifies the caller of a request. @throws CorralError `unauthorized`, `rate_limited` */
export function callerFinder({ keys, sessions, attempts, keyless, insecure, proxies }: CallerRules) {
  function rightKey(
    sent: readonly string[],
    address: string,
    cookies: string | undefined,
    at = 0
  ): Pending<KnownCredential | undefined> {
    const text = sent[at]
    if (text === undefined) return undefined
    const accepted = (key: KnownCredential | undefined) =>
      key && attempts.accepts(key, address) ? key : rightKey(sent, address, cookies, at + 1)
    const found = sessions.find(text, cookies) ?? keys.find(text)
    return found instanceof Promise ? found.then(accepted) : accepted(found)
  }

  // Synchronous unless the key may have been created a moment ago, because this runs before every request.
  return (request: FastifyRequest): Pending<Found> => {
    // Only the core creates requests from the private socket. A user who can open it could also read the key file.
    if (request.caller.isLocal) return { caller: { ...request.caller, role: 'admin' } }
    const { raw } = request
    const peer = raw.socket.remoteAddress ?? ''
    const isProxied = proxies(peer, 0)
    const forwarded = isProxied ? proxyAddress(raw, proxies) : peer
    const address = isProxied && isIP(forwarded) === 0 ? peer : forwarded
    // For the logs, in case the request is refused.
    if (isProxied) request.caller = keylessCaller(address)
    // These routes ignore keys: they have nothing to protect, and their callers have no keys.
    if (request.routeOptions.config?.role === 'anyone') return { caller: { ...keylessCaller(address), role: 'user' } }

    const sent = sentKeys(raw.headers)
    const withKey = (key: KnownCredential | undefined): Found => {
      if (key) return { caller: callerAt(key, address), key }
      // Tell the owner of a session that it ended instead of treating the request as keyless.
      if (sent.some(isSessionText)) throw attempts.refuse(address, sent[0]!, endedSession())
      // Behind a proxy, no client counts as local, whatever the forwarded address: clients can forge that header.
      const isNear = isLoopbackHost(peer) && !isProxied
      if (isNear && sent.length === 0 && keyless.has(raw)) return { caller: keylessCaller(address) }
      if (!keys.required && (insecure() || isNear)) return { caller: keylessCaller(address) }
      const refusal = (message: string) => new CorralError('unauthorized', `${message} ${HOW_TO_SEND}`)
      if (!keys.required) {
        throw refusal(
          `Without an API key, only programs on the server's own machine may use it${isProxied ? ', not those behind a proxy' : ''}. Ask its admin for a key (corral key create <name>).`
        )
      }
      if (sent.length === 0) throw refusal('This server requires an API key, and the request has none.')
      const wrongKey = 'This server does not know the API key of the request: it may be mistyped, revoked or expired.'
      throw attempts.refuse(address, sent[0]!, refusal(wrongKey))
    }
    // Check even if no key is required: the first key may have been created a moment ago.
    const key = rightKey(sent, address, raw.headers.cookie)
    return key instanceof Promise ? key.then(withKey) : withKey(key)
  }
}

/** The last caller per key or session. The address rarely changes between requests. */
const latest = new WeakMap<KnownCredential['caller'], Caller>()

function callerAt({ caller }: KnownCredential, address: string): Caller {
  const known = latest.get(caller)
  if (known?.address === address) return known
  const now = merged(caller, { turn: caller.owner, address })
  latest.set(caller, now)
  return now
}

/** Returns the keys in a request: `Authorization: Bearer <key>` and `x-api-key: <key>`. */
export function sentKeys({ authorization, 'x-api-key': header }: IncomingHttpHeaders): string[] {
  const bearer = /^Bearer +(\S+) *$/i.exec(authorization ?? '')?.[1]
  return [bearer, [header].flat()[0]].filter(key => key !== undefined && key !== '') as string[]
}
