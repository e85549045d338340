import { once } from 'node:events'
import type { ClientRequest, IncomingMessage } from 'node:http'
import { connect as connectPlain, isIP, type Socket } from 'node:net'
import type { FileLocation } from '../../../../core/contracts/hubs.ts'
import { CorralError } from '../../../../core/errors.ts'
import { abortAfter } from '../../../../core/system/abort-signals.ts'
import { allowedLookup } from '../../../../core/system/allowed-address.ts'
import { isLoopback } from '../../../../core/system/private-address.ts'

/** A connection that could not be made, or broke before the end of an exchange. */
export class ConnectionFailure extends Error {
  override readonly name = 'ConnectionFailure'
  readonly kind: 'connect' | 'cut' | 'stall' | 'protocol'

  constructor(kind: ConnectionFailure['kind'], message: string, cause?: unknown) {
    super(message, { cause })
    this.kind = kind
  }
}

/** Node's `onread`: the socket is read directly into the reader's memory. */
interface OnRead {
  buffer(): Buffer
  callback(length: number, from: Uint8Array): boolean
}

export interface SocketTarget {
  url: URL
  /** Private addresses that a direct connection may contact; absent means any. Does not check IP addresses as host. */
  privateAddresses?: readonly string[] | undefined
  tls?: FileLocation['tls'] | undefined
}

/**
 * Connects to the server of `target`.
 * @returns the socket, and whether it uses `onread`; otherwise it emits `data`
 * @throws ConnectionFailure, CorralError `address_not_allowed`, the signal's reason
 */
export async function openSocket(
  { url: target, privateAddresses, tls: trust }: SocketTarget,
  proxy: URL | undefined,
  onread: OnRead,
  timeout: number,
  signal: AbortSignal
): Promise<{ socket: Socket; direct: boolean }> {
  signal.throwIfAborted()
  const first = proxy ?? target
  const firstSecure = first.protocol === 'https:'
  const tls = target.protocol === 'https:' || firstSecure ? await import('node:tls') : undefined
  const lookup = privateAddresses && !proxy ? { lookup: allowedLookup(privateAddresses) } : {}
  const place = {
    host: bareHostname(first),
    port: Number(first.port || (firstSecure ? 443 : 80)),
    noDelay: true,
    ...lookup
  }
  const open = async (more: object) => {
    const socket = firstSecure
      ? tls!.connect({ ...place, ...secure(first, proxy ? undefined : trust), ...more })
      : connectPlain({ ...place, ...more })
    await happened(socket, firstSecure ? 'secureConnect' : 'connect', timeout, signal)
    return socket
  }
  if (!proxy || target.protocol === 'http:') return { socket: await open({ onread }), direct: true }
  const outer = await tunnel(await open({}), target, proxy, timeout, signal)
  // TLS inside another socket does not support `onread`.
  const socket = tls!.connect({ socket: outer, ...secure(target, trust) })
  await happened(socket, 'secureConnect', timeout, signal)
  return { socket, direct: false }
}

function secure(url: URL, { ca, ...trust }: NonNullable<SocketTarget['tls']> = {}) {
  const name = isIP(bareHostname(url)) ? {} : { servername: bareHostname(url) }
  return { ...name, ...trust, ...(ca && { ca: [...ca] }), ALPNProtocols: ['http/1.1'] }
}

const bareHostname = (url: URL): string => url.hostname.replace(/^\[|\]$/g, '')

/** Waits for an event of a connection that is being made. @throws as `openSocket` */
async function happened(source: Socket | ClientRequest, event: string, timeout: number, signal: AbortSignal) {
  const limit = abortAfter(timeout)
  try {
    return await once(source, event, { signal: AbortSignal.any([signal, limit]) })
  } catch (error) {
    source.on('error', () => {
      // The connection has already been given up.
    })
    source.destroy()
    signal.throwIfAborted()
    if (error instanceof CorralError) throw error
    if (limit.aborted) throw new ConnectionFailure('connect', `no connection within ${timeout / 1000} s`)
    const { message, errors } = error as AggregateError
    throw new ConnectionFailure('connect', message || errors?.[0]?.message || 'it failed', error)
  }
}

async function tunnel(socket: Socket, target: URL, proxy: URL, timeout: number, signal: AbortSignal): Promise<Socket> {
  const { request } = await import('node:http')
  const authority = `${target.hostname}:${target.port || 443}`
  const credentials = proxy.username === '' ? {} : { 'proxy-authorization': basicCredentials(proxy) }
  const connect = request({
    method: 'CONNECT',
    path: authority,
    headers: { host: authority, ...credentials },
    createConnection: () => socket
  })
  connect.end()
  const [response] = (await happened(connect, 'connect', timeout, signal)) as [IncomingMessage]
  const status = response.statusCode!
  if (status >= 200 && status < 300) return socket
  socket.destroy()
  const login =
    proxy.username === '' ? 'requires a user name and password' : 'does not accept the user name and password'
  const why = status === 407 ? `${login} (407)` : `refuses to connect (${status})`
  throw new ConnectionFailure('connect', `the proxy ${why}`)
}

/**
 * Returns the proxy for an address: the configured one, otherwise the proxy in HTTPS_PROXY, HTTP_PROXY and NO_PROXY
 * (lower case first, as in curl). These variables are ignored for this machine itself. Undefined means no proxy.
 * @throws Error if it is not an http or https address
 */
export function proxyFor(target: URL, configured: string | undefined, env: NodeJS.ProcessEnv): URL | undefined {
  const value = configured ?? fromEnvironment(target, env)
  if (!value) return undefined
  let proxy: URL | undefined
  try {
    proxy = new URL(/^[a-z][a-z0-9+.-]*:\/\//i.test(value) ? value : `http://${value}`)
  } catch {
    // Reported below, without the value: it may contain a password.
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

/** Returns whether NO_PROXY lists the server: names (with their subdomains) and addresses, with or without a port. */
function isExempt(target: URL, list: string): boolean {
  const host = bareHostname(target)
  const port = target.port || (target.protocol === 'https:' ? '443' : '80')
  return list
    .toLowerCase()
    .split(/[\s,]+/)
    .filter(Boolean)
    .some(entry => {
      const isBareIpv6 = entry.split(':').length > 2 && !entry.startsWith('[')
      const [, name = '', entryPort = port] = isBareIpv6 ? [entry, entry] : /^\[?(.+?)\]?(?::(\d+))?$/.exec(entry)!
      const suffix = name.replace(/^\*?\./, '')
      return name === '*' || (entryPort === port && (host === suffix || host.endsWith(`.${suffix}`)))
    })
}

/** Returns an address's user name and password in the form of a header. */
export function basicCredentials({ username, password }: URL): string {
  const text = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`
  return `Basic ${Buffer.from(text).toString('base64')}`
}
