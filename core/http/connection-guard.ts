import { readFileSync } from 'node:fs'
import type { IncomingMessage, Server } from 'node:http'
import type { Socket } from 'node:net'
import type { FastifyBaseLogger } from 'fastify'
import type { CoreConfig } from '../config/core-schema.ts'
import { CorralError } from '../errors.ts'
import { clientNetwork } from '../system/client-network.ts'
import { parseDuration } from '../system/duration.ts'
import { addTo, OpenMap, OpenSet } from '../system/open-tables.ts'
import type { ServerCertificate } from './certificate.ts'
import { hasNoUploadTimeout, holdContinue } from './long-upload.ts'
import { refusalText } from './unreadable-request.ts'

declare module 'fastify' {
  interface FastifyInstance {
    connectionGuard: ConnectionGuard
  }
}

/** Encrypts a connection, and passes the encrypted one on after the handshake. */
export type Encryption = Pick<ServerCertificate, 'encrypt'>

type ConnectionLimits = Pick<CoreConfig['limits'], 'connections' | 'connections_per_address' | 'reader_stall'>

interface Connection {
  readonly socket: Socket
  /** The socket of requests: the same, or the TLS socket around it after the handshake. */
  inner: Socket
  readonly address: string
  /** Network of its client, for the limits per client. */
  readonly network: string
  /** Whether it counts: connections of the private socket do not. */
  readonly counted: boolean
  readonly isEncrypted: boolean
  request?: IncomingMessage | undefined
  client?: string | undefined
  /** Bytes that the client had read at the last check. */
  taken: number
  /** Time of the last change, or when there was something to read for the first time. */
  since: number
  /** Whether its request was already ended because nobody read the answer. */
  stalled: boolean
  /** Called when the client has read nothing for too long. */
  readonly listeners: OpenSet<(error: CorralError) => void>
}

/** Node.js internals: there is no public API for how many outgoing bytes of a connection are still queued. */
type Handle = { bytesWritten: number; writeQueueSize: number }

const connections = new WeakMap<object, Connection>()

/** Calls `listener` once the client of a connection has read nothing for `limits.reader_stall`. @returns stops that */
export function onReaderStall(socket: object | null | undefined, listener: (error: CorralError) => void): () => void {
  const connection = socket ? connections.get(socket) : undefined
  connection?.listeners.add(listener)
  return () => void connection?.listeners.delete(listener)
}

/** Files that are left for engines, models, downloads and logs when every connection has a request with an engine. */
const RESERVED_FILES = 128
const MAX_GATEWAYS = 1000
/** Milliseconds in which a refused client can read why. */
const REFUSAL_LINGER = 1000

/**
 * Limits the connections of the application's servers, in total and per address, and ends connections whose clients do
 * not read. It checks all connections at intervals, which costs a request nothing.
 */
export class ConnectionGuard {
  #most = 0
  #mostPerAddress = 0
  #stall = 0
  #asked = ''
  readonly #openFiles: number
  readonly #log: FastifyBaseLogger
  readonly #certificate: ServerCertificate | undefined
  readonly #open = new Set<Connection>()
  readonly #counts = new Map<string, number>()
  /** Connections without a request, the longest waiting first. */
  readonly #waiting = new OpenSet<Connection>()
  /** Connections with a request, in the order of their requests. */
  readonly #asking = new OpenSet<Connection>()
  /** The number of connections with requests of each client. */
  readonly #busy = new OpenMap<string, number>()
  #counted = 0
  #timer: NodeJS.Timeout | undefined
  #warnedAt = Number.NEGATIVE_INFINITY
  #exempt: (address: string) => boolean = () => false
  /** Addresses of gateways, the latest last. */
  readonly #gateways = new OpenSet<string>()

  /** @param certificate encrypts all connections except those of the private socket */
  constructor(
    limits: ConnectionLimits,
    log: FastifyBaseLogger,
    certificate?: ServerCertificate,
    openFiles = mostOpenFiles()
  ) {
    this.#log = log
    this.#certificate = certificate
    this.#openFiles = openFiles
    this.setLimits(limits)
  }

  /** Changes the limits. Open connections are not affected. */
  setLimits(limits: ConnectionLimits): void {
    const { connections, connections_per_address, reader_stall } = limits
    const asked = JSON.stringify([connections, connections_per_address, reader_stall])
    if (asked === this.#asked) return
    this.#asked = asked
    this.#stall = parseDuration(reader_stall)!
    // A request takes two files: its client's connection and that to the engine.
    const room = Math.max(8, Math.floor((this.#openFiles - RESERVED_FILES) / 2))
    this.#most = Math.min(connections, room)
    this.#mostPerAddress = Math.max(1, Math.ceil((connections_per_address * this.#most) / connections))
    if (room < connections) {
      this.#log.warn(
        `This process may open ${this.#openFiles} files, so it accepts only ${room} connections instead of ${connections} (limits.connections). To accept more, raise the limit (ulimit -n, LimitNOFILE of systemd).`
      )
    }
    clearInterval(this.#timer)
    if (this.#stall > 0) this.#timer = setInterval(() => this.#sweep(), Math.min(this.#stall / 4, 15_000)).unref()
  }

  get encrypts(): boolean {
    return this.#certificate !== undefined
  }

  close(): void {
    clearInterval(this.#timer)
    this.#certificate?.close()
  }

  /** Ends connections in the TLS handshake, for whose end their servers would wait. */
  endHandshakes(): void {
    for (const { socket, inner, isEncrypted } of this.#open) if (isEncrypted && inner === socket) socket.destroy()
  }

  /** Does not count connections of these addresses: proxies, behind which are many clients. */
  exempt(isExempt: (address: string) => boolean): void {
    this.#exempt = isExempt
  }

  /** Does not count connections of a gateway, which has many clients too. */
  exemptGateway(address = ''): void {
    this.#gateways.delete(address)
    this.#gateways.add(address)
    const [oldest] = this.#gateways
    if (this.#gateways.size > MAX_GATEWAYS) this.#gateways.delete(oldest!)
  }

  /**
   * Limits the connections of a server.
   * @param counted whether it is for the network: connections may be refused, and are encrypted
   * @param own encrypts its connections in place of the server's certificate
   */
  attach(server: Server, counted: boolean, own?: Encryption): void {
    // Answers clients that close their side of a connection after the request, as HTTP allows (see `probeHalfClosed`).
    // Node.js has this property since 2011, and its types lack it.
    Object.assign(server, { httpAllowHalfOpen: true })
    holdContinue(server)
    const accept = server.listeners('connection') as ((socket: Socket) => void)[]
    server.removeAllListeners('connection')
    server.on('connection', (socket: Socket) => {
      const certificate = counted ? (own ?? this.#certificate) : undefined
      const connection = this.#admit(socket, counted, certificate !== undefined)
      // A client could not read a refusal that is not encrypted.
      if (!connection) return certificate ? void socket.destroy() : refuse(socket)
      const take = (inner: Socket) => {
        connection.inner = inner
        connections.set(inner, connection)
        for (const listener of accept) listener.call(server, inner)
      }
      if (certificate) certificate.encrypt(socket, take)
      else take(socket)
    })
    server.prependListener('request', (request, response) => {
      const connection = connections.get(request.socket)
      if (!counted || !connection || !this.#open.has(connection)) return
      this.#waiting.delete(connection)
      this.#asking.add(connection)
      connection.request = request
      response.once('close', () => {
        // The next request on this connection may already have begun.
        if (!this.#open.has(connection) || connection.request !== request) return
        this.#asking.delete(connection)
        connection.request = undefined
        this.#leave(connection)
        this.#waiting.add(connection)
      })
    })
  }

  /**
   * Assigns a connection's current request to a client.
   * @throws CorralError `queue_full` if this client already has requests on half of all connections. The other half is
   * reserved for other clients.
   */
  takeFor(client: string, socket: Socket): void {
    const connection = connections.get(socket)
    if (!connection?.counted || connection.client === client) return
    const busy = this.#busy.get(client) ?? 0
    const most = Math.ceil(this.#most / 2)
    if (busy >= most) {
      const message = `You have ${busy} open requests, and one client may have ${most}: half of all connections (limits.connections). Wait until some have been answered.`
      throw new CorralError('queue_full', message, { retryAfter: 1 })
    }
    this.#leave(connection)
    connection.client = client
    addTo(this.#busy, client, 1)
  }

  #leave(connection: Connection): void {
    const { client } = connection
    if (client === undefined) return
    connection.client = undefined
    addTo(this.#busy, client, -1)
  }

  /** @returns undefined if there is no room for it */
  #admit(socket: Socket, counted: boolean, isEncrypted: boolean): Connection | undefined {
    const address = socket.remoteAddress ?? ''
    const network = clientNetwork(address)
    const ofAddress = this.#counts.get(network) ?? 0
    if (counted) {
      const isExempt = isLoopback(address) || this.#gateways.has(address) || this.#exempt(address)
      const few = isExempt || ofAddress < this.#mostPerAddress
      // Idle connections make room for new ones.
      if (few && this.#counted >= this.#most) this.#closeWaiting()
      if (!few || this.#counted >= this.#most) {
        this.#warnFull(few ? undefined : address)
        return undefined
      }
      this.#counted++
      addTo(this.#counts, network, 1)
    }
    const seen = { taken: -1, since: 0, stalled: false, listeners: new OpenSet<(error: CorralError) => void>() }
    const connection = { socket, inner: socket, address, network, counted, isEncrypted, ...seen }
    this.#open.add(connection)
    if (counted) this.#waiting.add(connection)
    socket.once('close', () => this.#forget(connection))
    return connection
  }

  #forget(connection: Connection): void {
    const { network, counted } = connection
    if (!this.#open.delete(connection)) return
    this.#waiting.delete(connection)
    this.#asking.delete(connection)
    this.#leave(connection)
    if (!counted) return
    this.#counted--
    addTo(this.#counts, network, -1)
  }

  #closeWaiting(): void {
    const [oldest = this.#slowest()] = this.#waiting
    if (!oldest) return
    // The end of the connection is reported later, but its place is needed now.
    this.#forget(oldest)
    oldest.socket.destroy()
  }

  /** The connection that has taken longest to send its request. Uploads have their own minimum pace. */
  #slowest(): Connection | undefined {
    for (const connection of this.#asking) {
      if (!connection.request!.complete && !hasNoUploadTimeout(connection.inner)) return connection
    }
    return undefined
  }

  #warnFull(address: string | undefined): void {
    const now = performance.now()
    if (now - this.#warnedAt < 60_000) return
    this.#warnedAt = now
    this.#log.warn(
      { address },
      address === undefined
        ? `Connections are refused: ${this.#most} are open (limits.connections).`
        : `Connections of one address are refused: it has ${this.#mostPerAddress} (limits.connections_per_address).`
    )
  }

  /** Ends answers that nobody reads: first the request, with an error for the client, then the connection. */
  #sweep(): void {
    const now = performance.now()
    for (const connection of this.#open) {
      const { socket, inner } = connection
      const handle = (socket as { _handle?: Handle | null })._handle
      if (!handle || (handle.writeQueueSize === 0 && inner.writableLength === 0)) {
        connection.taken = -1
        continue
      }
      const taken = handle.bytesWritten - handle.writeQueueSize
      if (taken !== connection.taken) {
        Object.assign(connection, { taken, since: now, stalled: false })
      } else if (now - connection.since >= this.#stall) {
        this.#end(connection)
        connection.since = now
      }
    }
  }

  #end(connection: Connection): void {
    const { socket, address, listeners, stalled } = connection
    if (stalled || listeners.size === 0) {
      socket.destroy()
      return
    }
    connection.stalled = true
    const seconds = Math.round(this.#stall / 1000)
    this.#log.info({ address }, `A client did not read its answer for ${seconds} s, so the answer was ended.`)
    const message = `The answer was ended because the client did not read it for ${seconds} s (limits.reader_stall). Send the request again, and read its answer as it arrives.`
    const error = new CorralError('reader_stalled', message)
    for (const listener of [...listeners]) listener(error)
  }
}

const FULL = refusalText(
  '503 Service Unavailable',
  'queue_full',
  'This server has too many open connections. Close some, or try again in a moment.',
  'retry-after: 1\r\n'
)

/** Refuses a connection before reading anything. */
function refuse(socket: Socket): void {
  socket.on('error', () => {
    // The client may already have disconnected.
  })
  socket.resume().end(FULL)
  setTimeout(() => socket.destroy(), REFUSAL_LINGER).unref()
}

const isLoopback = (address: string) => address === '::1' || /^(::ffff:)?127\./i.test(address)

/** Returns how many files this process may open, or infinity if unknown. */
function mostOpenFiles(): number {
  try {
    const [, soft = ''] = /^Max open files\s+(\S+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
    return /^\d+$/.test(soft) ? Number(soft) : Number.POSITIVE_INFINITY
  } catch {
    // Systems other than Linux.
    const { userLimits } = process.report.getReport() as { userLimits?: { open_files?: { soft: unknown } } }
    const soft = userLimits?.open_files?.soft
    return typeof soft === 'number' ? soft : Number.POSITIVE_INFINITY
  }
}
