import { readFileSync } from 'node:fs'
import { isIP, connect as openTcp } from 'node:net'
import type { Readable } from 'node:stream'
import { createSecureContext, connect as openTls, rootCertificates } from 'node:tls'
import type { KnownMember } from '../../../../core/contracts/services.ts'
import { errorMessage } from '../../../../core/errors.ts'
import {
  createHttpClient,
  type HttpAnswer,
  type HttpClient,
  type HttpRequest,
  type HttpServer,
  headerLines
} from '../../../../core/system/http-client.ts'
import { InvalidResponse } from '../../../../core/system/http-response.ts'
import { toStream } from '../../../../core/system/response-body.ts'
import FAULTS from './connection-faults.json' with { type: 'json' }

export interface ConnectionSettings {
  connectTimeout: number
  /** File with certificates of authorities, in addition to the system's. Empty means none. */
  ca: string
}

/** A node's answer before its body is read. */
export type NodeAnswer = HttpAnswer

/** A node's reply with its body as a stream. */
export interface NodeReply extends Omit<NodeAnswer, 'body'> {
  body: Readable
}

/** Milliseconds of silence after which the system checks a connection. It then ends a dead one within 10 s. */
const KEEP_ALIVE_MS = 10_000
/** Milliseconds until an unused connection is closed. A node closes it after 72 s. */
const IDLE_MS = 60_000

interface Sent {
  /** Sent as JSON unless it is text already. */
  body?: object | string
  headers?: Record<string, string> | undefined
}

/** The connections to one node. Answers have no time limit: only the client or a lost node ends them. */
export class NodeConnection {
  readonly url: string
  readonly #known: KnownMember
  readonly #settings: ConnectionSettings
  readonly #connect: HttpServer['connect']
  #client: HttpClient | undefined

  constructor(known: KnownMember, settings: ConnectionSettings) {
    this.url = new URL(known.url).origin
    this.#known = known
    this.#settings = settings
    this.#connect = this.#connector()
  }

  /** Asks with a signal that ends the request and its answer. */
  async send(
    method: HttpRequest['method'],
    path: string,
    { signal, ...sent }: Sent & { signal: AbortSignal }
  ): Promise<NodeReply> {
    const answer = await this.#request(method, path, sent, signal)
    return { ...answer, body: toStream(answer.body) }
  }

  /** Posts a request. Ends it and its answer when one of the signals is aborted. */
  ask(path: string, sent: Sent, signals: readonly AbortSignal[]): Promise<NodeAnswer> {
    return this.#request('POST', path, sent, signals)
  }

  async #request(method: HttpRequest['method'], path: string, { body, headers }: Sent, signal: HttpRequest['signal']) {
    const { key = '' } = this.#known
    this.#client ??= createHttpClient(
      {
        connect: this.#connect,
        head: headerLines({ host: new URL(this.url).host, ...(key !== '' && { authorization: `Bearer ${key}` }) }),
        maxWithIdle: Number.POSITIVE_INFINITY,
        idleMs: IDLE_MS
      },
      // The node may close an idle connection just as it is reused. That is not a failure of the request.
      { mayRepeat: isStale => isStale, explain: async error => error }
    )
    return await this.#client.request({
      ...{ method, path, signal, keep: true },
      ...(headers && { headers: headerLines(headers) }),
      body: typeof body === 'object' ? JSON.stringify(body) : body
    })
  }

  #connector(): HttpServer['connect'] {
    const { protocol, port, hostname } = new URL(this.url)
    const { connectTimeout, ca } = this.#settings
    const { tlsName, pinned } = this.#known
    const isSecure = protocol === 'https:'
    const host = hostname.replace(/^\[|\]$/g, '')
    const tcp = {
      ...{ host, port: Number(port) || (isSecure ? 443 : 80), noDelay: true, allowHalfOpen: true },
      ...{ keepAlive: true, keepAliveInitialDelay: KEEP_ALIVE_MS }
    }
    const servername = tlsName ?? (isIP(host) ? '' : host)
    const authorities = ca === '' ? {} : { ca: [...rootCertificates, readFileSync(ca, 'utf8')] }
    const trust = isSecure ? { secureContext: createSecureContext({ ...authorities, ...pinned }) } : {}
    const tls = { ...tcp, servername: pinned?.servername ?? servername, ALPNProtocols: ['http/1.1'], ...trust }
    /** Shortens the handshake of the next connection. */
    let session: Buffer | undefined
    return onread => {
      // Node's types omit that TLS has it too.
      const read: object = { onread }
      const socket = isSecure ? openTls({ ...tls, ...(session && { session }), ...read }) : openTcp({ ...tcp, ...read })
      socket.on('session', (given: Buffer) => {
        session = given
      })
      const timer = setTimeout(() => {
        socket.destroy(Object.assign(new Error('no connection in time'), { code: 'ETIMEDOUT' }))
      }, connectTimeout)
      const settle = () => clearTimeout(timer)
      socket.once(isSecure ? 'secureConnect' : 'connect', settle).once('close', settle)
      return socket
    }
  }

  close(): void {
    this.#client?.cut(new Error('the connection was closed'))
  }
}

const causeOf = (error: unknown) =>
  ((error instanceof Error && error.cause instanceof Error ? error.cause : error) ?? {}) as { code?: string }

/** Whether nothing at all has come back, not even a refusal. */
export const isUnreachable = (error: unknown): boolean =>
  /^(ETIMEDOUT|EHOSTUNREACH|EHOSTDOWN|ENETUNREACH|ENETDOWN|EINVAL)$/.test(causeOf(error).code ?? '')

/** Explains why a connection failed, and what to check. Never contains a key. */
export function connectionFault(error: unknown): string {
  const { code = '' } = causeOf(error)
  if (error instanceof InvalidResponse) return 'what listens at its address does not speak HTTP'
  return (FAULTS as Record<string, string>)[code] ?? errorMessage(causeOf(error))
}
