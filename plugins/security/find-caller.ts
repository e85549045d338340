import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { isIP } from 'node:net'
import proxyAddress from '@fastify/proxy-addr'
import type { FastifyBaseLogger, FastifyRequest } from 'fastify'
import { type Caller, keylessCaller } from '../../core/contracts/callers.ts'
import { CorralError } from '../../core/errors.ts'
import { FailedAttempts } from './failed-attempts.ts'
import { isLoopbackHost } from './host-and-origin.ts'
import type { KeyStore, KnownKey } from './key-store.ts'

/** Tells whether an address is one of a proxy whose word for the client's address counts. */
export type TrustedProxies = (address: string, hop: number) => boolean

interface CallerRules {
  keys: KeyStore
  /** Requests that need no key where they come from this machine. */
  keyless: Pick<WeakSet<IncomingMessage>, 'has'>
  /** Callers of other machines need no key, as long as there is none. */
  insecure(): boolean
  proxies: TrustedProxies
  log: Pick<FastifyBaseLogger, 'warn'>
}

/**
 * Finds out who sends a request.
 * @throws CorralError `unauthorized` without a key where one is needed; `rate_limited` after too many wrong ones
 */
export function callerFinder({ keys, keyless, insecure, proxies, log }: CallerRules) {
  const attempts = new FailedAttempts()
  const say = boundedLog(log)

  /** The first of the keys that were sent that is right. */
  async function rightKey(sent: readonly string[], address: string): Promise<KnownKey | undefined> {
    for (const text of sent) {
      const found = keys.find(text)
      const key = found instanceof Promise ? await found : found
      if (!key) continue
      if (key.isLong) return key
      // Whether a guess was right must not show while an address guesses.
      const { owner } = key.caller
      if (attempts.isGuessing(address) && !attempts.wasGood(address, owner)) continue
      attempts.succeed(address, owner)
      return key
    }
    return undefined
  }

  function refuseWrongKey(sent: readonly string[], address: string): CorralError {
    const { wait, first } = attempts.fail(address, sent[0]!)
    if (wait === 0) {
      if (first) say({ address }, 'A request had a wrong API key.')
      return new CorralError(
        'unauthorized',
        `The API key of the request is none that this server knows: it may be mistyped, revoked or expired. ${HOW_TO_SEND}`
      )
    }
    if (first) say({ address }, 'Too many wrong API keys from one address: its wrong ones are refused for a while.')
    return new CorralError(
      'rate_limited',
      `Too many requests with wrong API keys came from ${address}. Wait ${wait} s, and send a key that this server knows; with one, requests are answered all the time.`,
      { retryAfter: wait }
    )
  }

  return async (request: FastifyRequest): Promise<{ caller: Caller; key?: KnownKey }> => {
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
    const key = sent.length > 0 ? await rightKey(sent, address) : undefined
    if (key) return { caller: { ...key.caller, turn: key.caller.owner, address }, key }
    // Behind a proxy nobody counts as this machine, whatever address is forwarded: clients can write that header too.
    const isNear = isLoopbackHost(peer) && !isProxied
    if (isNear && sent.length === 0 && keyless.has(raw)) return { caller: keylessCaller(address) }
    if (keys.required) {
      if (sent.length > 0) throw refuseWrongKey(sent, address)
      throw new CorralError('unauthorized', `This server needs an API key, and the request has none. ${HOW_TO_SEND}`)
    }
    if (insecure() || isNear) return { caller: keylessCaller(address) }
    throw new CorralError(
      'unauthorized',
      `Without an API key only programs on the server's own machine may use it${isProxied ? ', not those behind a proxy' : ''}. Ask its admin for a key (corral key create <name>). ${HOW_TO_SEND}`
    )
  }
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
const MOST_LINES = 60

/** Logs no more than so many lines a minute; the first line of the next minute says how many were left out. */
function boundedLog(log: Pick<FastifyBaseLogger, 'warn'>): (fields: object, message: string) => void {
  let since = Number.NEGATIVE_INFINITY
  let lines = 0
  return (fields, message) => {
    const now = performance.now()
    if (now - since >= 60_000) {
      const omitted = lines - MOST_LINES
      if (omitted > 0) log.warn({ omitted }, 'More lines about wrong API keys were left out.')
      since = now
      lines = 0
    }
    lines++
    if (lines <= MOST_LINES) log.warn(fields, message)
  }
}
