import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { isIP } from 'node:net'
import proxyAddress from '@fastify/proxy-addr'
import type { FastifyBaseLogger, FastifyRequest } from 'fastify'
import { type Caller, keylessCaller } from '../../../core/contracts/callers.ts'
import { CorralError } from '../../../core/errors.ts'
import { merged } from '../../../core/system/collections.ts'
import { FailedAttempts } from './failed-attempts.ts'
import { isLoopbackHost } from './host-and-origin.ts'
import type { KeyStore, KnownCredential } from './key-store.ts'
import { endedSession, isSessionText, type SessionStore } from './session-store.ts'

/** Whether an address belongs to a proxy whose X-Forwarded-For header is trusted. */
export type TrustedProxies = (address: string, hop: number) => boolean

interface CallerRules {
  keys: KeyStore
  sessions: Pick<SessionStore, 'find'>
  guesses: Guesses
  /** Requests that need no key if they come from this machine. */
  keyless: Pick<WeakSet<IncomingMessage>, 'has'>
  /** Whether callers on other machines need no key as long as none exists. */
  insecure(): boolean
  proxies: TrustedProxies
}

/** The sender of a request, and the key or session that identified it. */
export interface Found {
  caller: Caller
  key?: KnownCredential
}

type Pending<Value> = Value | Promise<Value>

/** Counts wrong keys and links per address. */
export interface Guesses {
  attempts: FailedAttempts
  /**
   * Counts a wrong key or link.
   * @returns the error to throw: the given one, or `rate_limited` after too many
   */
  refuse(address: string, sent: string, refusal: CorralError): CorralError
}

export function countGuesses(log: Pick<FastifyBaseLogger, 'warn'>): Guesses {
  const attempts = new FailedAttempts()
  const say = boundedLog(log)
  return {
    attempts,
    refuse(address, sent, refusal) {
      const { wait, first } = attempts.fail(address, sent)
      if (wait === 0) {
        if (first)
          say({ address, code: refusal.code }, 'A request had a wrong API key or a link that was already used.')
        return refusal
      }
      if (first)
        say(
          { address },
          'Too many wrong API keys from one address: further wrong keys from it are refused for a while.'
        )
      return new CorralError(
        'rate_limited',
        `Too many requests with wrong API keys came from ${address}. Wait ${wait} s, or send a valid key: requests with a valid key are not delayed.`,
        { retryAfter: wait }
      )
    }
  }
}

/**
 * Returns a function that identifies the caller of a request.
 * @throws CorralError `unauthorized` without a required key, `rate_limited` after too many wrong ones
 */
export function callerFinder({ keys, sessions, guesses, keyless, insecure, proxies }: CallerRules) {
  const { attempts, refuse } = guesses

  /** Returns the first of the sent keys that is valid. */
  function rightKey(sent: readonly string[], address: string): Pending<KnownCredential | undefined> {
    for (let at = 0; at < sent.length; at++) {
      const text = sent[at]!
      const found = sessions.find(text) ?? keys.find(text)
      if (found instanceof Promise) {
        return found.then(key => (mayUse(key, address) ? key : rightKey(sent.slice(at + 1), address)))
      }
      if (mayUse(found, address)) return found
    }
    return undefined
  }

  function mayUse(key: KnownCredential | undefined, address: string): key is KnownCredential {
    if (!key || key.isLong) return key !== undefined
    // While an address is guessing, the answer must not reveal whether a guess was right.
    const { owner } = key.caller
    if (attempts.isGuessing(address) && !attempts.wasGood(address, owner)) return false
    attempts.succeed(address, owner)
    return true
  }

  // Synchronous unless the key may have been created a moment ago, because this runs before every request.
  return (request: FastifyRequest): Pending<Found> => {
    // Only the core creates requests from the private socket. Whoever can open it could read the key file as well.
    if (request.caller.isLocal) return { caller: { ...request.caller, role: 'admin' } }
    const { raw } = request
    const peer = raw.socket.remoteAddress ?? ''
    const isProxied = proxies(peer, 0)
    const address = isProxied ? forwardedAddress(raw, proxies, peer) : peer
    // For the logs, in case the request is refused.
    if (isProxied) request.caller = keylessCaller(address)
    // These routes ignore keys: they have nothing to protect, and their callers have no keys.
    if (request.routeOptions.config?.role === 'anyone') return { caller: { ...keylessCaller(address), role: 'user' } }

    const sent = sentKeys(raw.headers)
    // Also while no key is required: the first one may have been created a moment ago.
    const key = sent.length > 0 ? rightKey(sent, address) : undefined
    const origin = { raw, peer, address, isProxied }
    return key instanceof Promise ? key.then(found => callerWith(found, sent, origin)) : callerWith(key, sent, origin)
  }

  function callerWith(
    key: KnownCredential | undefined,
    sent: readonly string[],
    { raw, peer, address, isProxied }: { raw: IncomingMessage; peer: string; address: string; isProxied: boolean }
  ): Found {
    if (key) return { caller: callerAt(key, address), key }
    // Tell the owner of a session that it ended instead of treating the request as keyless.
    if (sent.some(isSessionText)) throw refuse(address, sent[0]!, endedSession())
    // Behind a proxy nobody counts as local, whatever the forwarded address: clients can forge that header.
    const isNear = isLoopbackHost(peer) && !isProxied
    if (isNear && sent.length === 0 && keyless.has(raw)) return { caller: keylessCaller(address) }
    if (keys.required) {
      if (sent.length > 0) throw refuse(address, sent[0]!, wrongKey())
      throw new CorralError('unauthorized', `This server requires an API key, and the request has none. ${HOW_TO_SEND}`)
    }
    if (insecure() || isNear) return { caller: keylessCaller(address) }
    throw new CorralError(
      'unauthorized',
      `Without an API key, only programs on the server's own machine may use it${isProxied ? ', not those behind a proxy' : ''}. Ask its admin for a key (corral key create <name>). ${HOW_TO_SEND}`
    )
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

function wrongKey(): CorralError {
  return new CorralError(
    'unauthorized',
    `This server does not know the API key of the request: it may be mistyped, revoked or expired. ${HOW_TO_SEND}`
  )
}

const HOW_TO_SEND = 'Send "Authorization: Bearer <key>" or "x-api-key: <key>".'

/** The address that the client, or the nearest proxy that is not trusted, called from. */
function forwardedAddress(raw: IncomingMessage, proxies: TrustedProxies, peer: string): string {
  const address = proxyAddress(raw, proxies)
  return isIP(address) === 0 ? peer : address
}

/** Returns the keys in a request: `Authorization: Bearer <key>` and `x-api-key: <key>`. */
export function sentKeys({ authorization, 'x-api-key': header }: IncomingHttpHeaders): string[] {
  const bearer = /^Bearer +(\S+) *$/i.exec(authorization ?? '')?.[1]
  return [bearer, [header].flat()[0]].filter(key => key !== undefined && key !== '') as string[]
}

/** Log lines about refusals per minute, for all addresses together. */
const MAX_LINES = 60

/** Logs at most this many lines per minute. The first line of the next minute says how many were left out. */
function boundedLog(log: Pick<FastifyBaseLogger, 'warn'>): (fields: object, message: string) => void {
  let since = Number.NEGATIVE_INFINITY
  let lines = 0
  return (fields, message) => {
    const now = performance.now()
    if (now - since >= 60_000) {
      const omitted = lines - MAX_LINES
      if (omitted > 0) log.warn({ omitted }, 'Further log lines about wrong API keys were left out.')
      since = now
      lines = 0
    }
    lines++
    if (lines <= MAX_LINES) log.warn(fields, message)
  }
}
