import { connect as connectPlain, isIP, type Socket } from 'node:net'
import type { ConnectionOptions } from 'node:tls'
import { isLoopback } from '../../../../core/system/private-address.ts'
import { HEAD_LIMIT } from './http-response.ts'

export type FailureKind = 'connect' | 'cut' | 'stall' | 'protocol'

/** A connection could not be made, or broke before the end of an exchange. */
export class ConnectionFailure extends Error {
  override readonly name = 'ConnectionFailure'
  readonly kind: FailureKind

  constructor(kind: FailureKind, message: string, cause?: unknown) {
    super(message, { cause })
    this.kind = kind
  }
}

/** Node's `onread`: the socket is read straight into the reader's memory. */
export interface OnRead {
  buffer(): Buffer
  callback(length: number, from: Uint8Array): boolean
}

/**
 * Connects to the server of `target`.
 * @returns the socket, and whether it uses `onread`; otherwise it emits `data`
 * @throws ConnectionFailure, the signal's reason
 */
export async function openSocket(
  target: URL,
  proxy: URL | undefined,
  onread: OnRead,
  timeout: number,
  signal: AbortSignal
): Promise<{ socket: Socket; direct: boolean }> {
  signal.throwIfAborted()
  const first = proxy ?? target
  const firstSecure = first.protocol === 'https:'
  const tls = target.protocol === 'https:' || firstSecure ? await import('node:tls') : undefined
  const place = { host: hostOf(first), port: Number(first.port || (firstSecure ? 443 : 80)), noDelay: true }
  const open = (more: object): Socket =>
    firstSecure ? tls!.connect({ ...place, ...secure(first), ...more }) : connectPlain({ ...place, ...more })
  const event = firstSecure ? 'secureConnect' : 'connect'
  if (!proxy || target.protocol === 'http:') {
    const socket = open({ onread })
    await connected(socket, event, timeout, signal)
    return { socket, direct: true }
  }
  const outer = open({})
  await connected(outer, event, timeout, signal)
  await tunnelled(outer, target, proxy, timeout, signal)
  // TLS inside another socket does not support `onread`.
  const socket = tls!.connect({ socket: outer, ...secure(target) })
  await connected(socket, 'secureConnect', timeout, signal)
  return { socket, direct: false }
}

function secure(url: URL): ConnectionOptions {
  return { ...(isIP(hostOf(url)) ? {} : { servername: hostOf(url) }), ALPNProtocols: ['http/1.1'] }
}

function hostOf(url: URL): string {
  return url.hostname.replace(/^\[|\]$/g, '')
}

function connected(
  socket: Socket,
  event: 'connect' | 'secureConnect',
  timeout: number,
  signal: AbortSignal
): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = (error?: unknown) => {
      clearTimeout(timer)
      signal.removeEventListener('abort', abort)
      socket.off('error', fail).off('close', closed)
      if (error === undefined) return resolve()
      socket.on('error', () => {
        // The connection has been given up already.
      })
      socket.destroy()
      reject(error)
    }
    const fail = (error: Error & { errors?: Error[] }) =>
      end(new ConnectionFailure('connect', error.message || error.errors?.[0]?.message || 'it failed', error))
    const closed = () => end(new ConnectionFailure('connect', 'the connection was closed'))
    const abort = () => end(signal.reason)
    const timer = setTimeout(
      () => end(new ConnectionFailure('connect', `no connection within ${timeout / 1000} s`)),
      timeout
    )
    signal.addEventListener('abort', abort, { once: true })
    socket.once(event, () => end())
    socket.on('error', fail).on('close', closed)
    if (signal.aborted) abort()
  })
}

/** Opens a tunnel through a proxy. */
function tunnelled(socket: Socket, target: URL, proxy: URL, timeout: number, signal: AbortSignal): Promise<void> {
  const authority = `${target.hostname}:${target.port || 443}`
  const authorization = proxyAuthorization(proxy)
  return new Promise((resolve, reject) => {
    let text = ''
    const end = (error?: unknown) => {
      clearTimeout(timer)
      signal.removeEventListener('abort', abort)
      socket.off('data', read).off('close', closed)
      socket.pause()
      if (error === undefined) return resolve()
      socket.destroy()
      reject(error)
    }
    const refused = (why: string) => end(new ConnectionFailure('connect', `the proxy ${why}`))
    const read = (bytes: Buffer) => {
      text += bytes.toString('latin1')
      if (text.length > HEAD_LIMIT) return refused('does not answer like a proxy')
      if (!text.includes('\r\n\r\n')) return
      const status = /^HTTP\/1\.[01] (\d{3})/.exec(text)?.[1]
      if (status?.startsWith('2')) end()
      else if (status === '407') refused('wants other credentials (407)')
      else refused(`refuses to connect (${status ?? 'no HTTP answer'})`)
    }
    const closed = () => refused('closed the connection')
    const abort = () => end(signal.reason)
    const timer = setTimeout(() => refused(`did not answer within ${timeout / 1000} s`), timeout)
    signal.addEventListener('abort', abort, { once: true })
    socket.on('error', closed)
    socket.on('data', read).on('close', closed)
    const credentials = authorization === undefined ? '' : `Proxy-Authorization: ${authorization}\r\n`
    socket.write(`CONNECT ${authority} HTTP/1.1\r\nHost: ${authority}\r\n${credentials}\r\n`)
    if (signal.aborted) abort()
  })
}

/**
 * The proxy for an address: the configured one, else that of HTTPS_PROXY, HTTP_PROXY and NO_PROXY (lower case first, as
 * curl does); those are not used for this machine itself. Undefined means no proxy.
 * @throws Error when it is not an http or https address
 */
export function proxyFor(target: URL, configured: string | undefined, env: NodeJS.ProcessEnv): URL | undefined {
  const value = configured ?? fromEnvironment(target, env)
  if (!value) return undefined
  let proxy: URL | undefined
  try {
    proxy = new URL(/^[a-z][a-z0-9+.-]*:\/\//i.test(value) ? value : `http://${value}`)
  } catch {
    // Reported below, without the value: it may hold a password.
  }
  if (proxy?.protocol !== 'http:' && proxy?.protocol !== 'https:') {
    throw new Error('the proxy setting is not an address that starts with http:// or https://')
  }
  return proxy
}

function fromEnvironment(target: URL, env: NodeJS.ProcessEnv): string | undefined {
  if (isLoopback(target.hostname) || isExempt(target, env.no_proxy ?? env.NO_PROXY ?? '')) return undefined
  const plain = env.http_proxy || env.HTTP_PROXY
  return target.protocol === 'https:' ? env.https_proxy || env.HTTPS_PROXY || plain : plain
}

function isExempt(target: URL, list: string): boolean {
  const host = target.hostname.replace(/^\[|\]$/g, '').toLowerCase()
  const port = target.port || (target.protocol === 'https:' ? '443' : '80')
  for (const entry of list.toLowerCase().split(/[\s,]+/)) {
    if (entry === '') continue
    if (entry === '*') return true
    const parts = /^\[?(.+?)\]?(?::(\d+))?$/.exec(entry)!
    const bare = entry.split(':').length > 2 && !entry.startsWith('[') ? entry : parts[1]!
    const entryPort = bare === entry ? undefined : parts[2]
    if (entryPort !== undefined && entryPort !== port) continue
    const name = bare.replace(/^\*?\./, '')
    if (host === name || host.endsWith(`.${name}`)) return true
  }
  return false
}

/** The `Proxy-Authorization` header for a proxy. */
export function proxyAuthorization(proxy: URL): string | undefined {
  if (proxy.username === '') return undefined
  const credentials = `${decodeURIComponent(proxy.username)}:${decodeURIComponent(proxy.password)}`
  return `Basic ${Buffer.from(credentials).toString('base64')}`
}
