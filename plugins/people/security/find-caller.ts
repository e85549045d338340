import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { isIP } from 'node:net'
import proxyAddress from '@fastify/proxy-addr'
import type { FastifyBaseLogger, FastifyRequest } from 'fastify'
import { type Caller, keylessCaller } from '../../../core/contracts/callers.ts'
import { CorralError } from '../../../core/errors.ts'
import { merged } from '../../../core/system/merged.ts'
import { FailedAttempts } from './failed-attempts.ts'
import { isLoopbackHost } from './host-and-origin.ts'
import type { KeyStore, KnownCredential } from './key-store.ts'
import { endedSession, isSessionText, type SessionStore } from './session-store.ts'

/** Tells whether an address is one of a proxy whose word for the client's address counts. */
export type TrustedProxies = (address: string, hop: number) => boolean

interface CallerRules {
  keys: KeyStore
  sessions: Pick<SessionStore, 'find'>
  guesses: Guesses
  /** Requests that need no key where they come from this machine. */
  keyless: Pick<WeakSet<IncomingMessage>, 'has'>
  /** Callers of other machines need no key, as long as there is none. */
  insecure(): boolean
  proxies: TrustedProxies
}

/** Who sends a request, and the key or session that shows it. */
export interface Found {
  caller: Caller
  key?: KnownCredential
}

type Pending<Value> = Value | Promise<Value>

/** Wrong keys and links by the addresses that sent them. */
export interface Guesses {
  attempts: FailedAttempts
  /**
   * Counts one.
   * @returns what it is refused for: that, or `rate_limited` where there were too many
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
        if (first) say({ address, code: refusal.code }, 'A request had a wrong API key, or a link that was used up.')
        return refusal
      }
      if (first) say({ address }, 'Too many wrong API keys from one address: its wrong ones are refused for a while.')
      return new CorralError(
        'rate_limited',
        `Too many requests with wrong API keys came from ${address}. Wait ${wait} s, and send a key that this server knows; with one, requests are answered all the time.`,
        { retryAfter: wait }
      )
    }
  }
}

/**
 * Finds out who sends a request.
 * @throws CorralError `unauthorized` without a key where one is needed; `rate_limited` after too many wrong ones
 */
export function callerFinder({ keys, sessions, guesses, keyless, insecure, proxies }: CallerRules) {
  const { attempts, refuse } = guesses

  /** The first of the keys that were sent that is right. */
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
    // Whether a guess was right must not show while an address guesses.
    const { owner } = key.caller
    if (attempts.isGuessing(address) && !attempts.wasGood(address, owner)) return false
    attempts.succeed(address, owner)
    return true
  }

  // Nothing is waited for but a key that may have been made a moment ago: this comes before every request.
  return (request: FastifyRequest): Pending<Found> => {
    // Core knows its private socket; whoever can open it could read the key file as well.
    if (request.caller.isLocal) return { caller: { ...request.caller, role: 'admin' } }
    const { raw } = request
    const peer = raw.socket.remoteAddress ?? ''
    const isProxied = proxies(peer, 0)
    const address = isProxied ? forwardedAddress(raw, proxies, peer) : peer
    // For the logs, where it is refused.
    if (isProxied) request.caller = keylessCaller(address)
    // These look at no key: they have nothing to protect, and are asked by programs that have none.
    if (request.routeOptions.config?.role === 'anyone') return { caller: { ...keylessCaller(address), role: 'user' } }

    const sent = sentKeys(raw.headers)
    // Also where no key is required yet: the first one may have been made a moment ago.
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
    // Whoever had one is told that it ended, rather than taken for somebody else.
    if (sent.some(isSessionText)) throw refuse(address, sent[0]!, endedSession())
    // Behind a proxy nobody counts as this machine, whatever address is forwarded: clients can write that header too.
    const isNear = isLoopbackHost(peer) && !isProxied
    if (isNear && sent.length === 0 && keyless.has(raw)) return { caller: keylessCaller(address) }
    if (keys.required) {
      if (sent.length > 0) throw refuse(address, sent[0]!, wrongKey())
      throw new CorralError('unauthorized', `This server needs an API key, and the request has none. ${HOW_TO_SEND}`)
    }
    if (insecure() || isNear) return { caller: keylessCaller(address) }
    throw new CorralError(
      'unauthorized',
      `Without an API key only programs on the server's own machine may use it${isProxied ? ', not those behind a proxy' : ''}. Ask its admin for a key (corral key create <name>). ${HOW_TO_SEND}`
    )
  }
}

/** What callers are, by their keys and sessions, at the address that these were used from last: mostly it is the same. */
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
    `The API key of the request is none that this server knows: it may be mistyped, revoked or expired. ${HOW_TO_SEND}`
  )
}

const HOW_TO_SEND = 'Send "Authorization: Bearer <key>" or "x-api-key: <key>".'

/** The address that the nearest proxy which is not trusted, or the client itself, called from. */
function forwardedAddress(raw: IncomingMessage, proxies: TrustedProxies, peer: string): string {
  const address = proxyAddress(raw, proxies)
  return isIP(address) === 0 ? peer : address
}

/** The keys in a request: `Authorization: Bearer <key>` and `x-api-key: <key>`. */
export function sentKeys({ authorization, 'x-api-key': header }: IncomingHttpHeaders): string[] {
  const bearer = /^Bearer +(\S+) *$/i.exec(authorization ?? '')?.[1]
  return [bearer, [header].flat()[0]].filter(key => key !== undefined && key !== '') as string[]
}

/** Lines about refusals a minute, from all addresses together. */
const MAX_LINES = 60

/** Logs no more than so many lines a minute; the first line of the next minute says how many were left out. */
function boundedLog(log: Pick<FastifyBaseLogger, 'warn'>): (fields: object, message: string) => void {
  let since = Number.NEGATIVE_INFINITY
  let lines = 0
  return (fields, message) => {
    const now = performance.now()
    if (now - since >= 60_000) {
      const omitted = lines - MAX_LINES
      if (omitted > 0) log.warn({ omitted }, 'More lines about wrong API keys were left out.')
      since = now
      lines = 0
    }
    lines++
    if (lines <= MAX_LINES) log.warn(fields, message)
  }
}
