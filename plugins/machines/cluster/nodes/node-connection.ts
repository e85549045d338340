import { readFileSync } from 'node:fs'
import { rootCertificates } from 'node:tls'
import type { Agent, Dispatcher } from 'undici'
import type { KnownMember } from '../../../../core/contracts/cluster.ts'
import { errorMessage, isSystemError } from '../../../../core/errors.ts'

export interface ConnectionSettings {
  /** Milliseconds that connecting may take. */
  connectTimeout: number
  /** File with certificates of authorities, in addition to the system's. Empty means none. */
  ca: string
}

/** A node's answer before its body is read. */
export type NodeReply = Pick<Dispatcher.ResponseData, 'statusCode' | 'headers' | 'body' | 'trailers'>

/** The connections to one node. Answers have no time limit: only the client or a lost node ends them. */
export class NodeConnection {
  readonly url: string
  readonly #agent: () => Promise<Agent>
  readonly #key: string | undefined

  constructor({ url, key, tlsName }: KnownMember, { connectTimeout, ca }: ConnectionSettings) {
    this.url = new URL(url).origin
    this.#key = key === '' ? undefined : key
    const options: Agent.Options = {
      headersTimeout: 0,
      bodyTimeout: 0,
      pipelining: 1,
      connect: {
        timeout: connectTimeout,
        keepAlive: true,
        ...(tlsName !== undefined && { servername: tlsName }),
        ...(ca !== '' && { ca: [...rootCertificates, readFileSync(ca, 'utf8')] })
      }
    }
    // Imported with the first request, since most servers have no nodes.
    let agent: Promise<Agent> | undefined
    this.#agent = () => {
      agent ??= import('undici').then(({ Agent }) => new Agent(options))
      return agent
    }
  }

  /** @param body sent as JSON unless it is text already */
  async send(
    method: 'GET' | 'HEAD' | 'POST' | 'DELETE',
    path: string,
    { body, signal, headers }: { body?: object | string; signal: AbortSignal; headers?: Record<string, string> }
  ): Promise<NodeReply> {
    const { request } = await import('undici')
    return await request(this.url + path, {
      method,
      dispatcher: await this.#agent(),
      signal,
      headers: {
        ...headers,
        ...(this.#key !== undefined && { authorization: `Bearer ${this.#key}` }),
        ...(body !== undefined && { 'content-type': 'application/json' })
      },
      ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) })
    })
  }

  async close(): Promise<void> {
    await (await this.#agent()).destroy()
  }
}

/** Explains why a connection failed, and what to check. Never contains a key. */
export function connectionFault(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error
  if (isSystemError(cause, 'ECONNREFUSED')) return 'nothing listens at its address'
  if (isSystemError(cause, 'ENOTFOUND', 'EAI_AGAIN')) return 'its host name is unknown'
  if (isSystemError(cause, 'EHOSTUNREACH', 'ENETUNREACH')) return 'there is no route to its address'
  if (isSystemError(cause, 'UND_ERR_CONNECT_TIMEOUT', 'ETIMEDOUT')) return 'its address does not answer'
  if (isSystemError(cause, 'ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET')) return 'it closed the connection'
  if (isSystemError(cause, 'ERR_TLS_CERT_ALTNAME_INVALID')) return 'its certificate is for another name'
  if (isSystemError(cause, 'CERT_HAS_EXPIRED')) return 'its certificate has expired'
  if (
    isSystemError(
      cause,
      'DEPTH_ZERO_SELF_SIGNED_CERT',
      'SELF_SIGNED_CERT_IN_CHAIN',
      'UNABLE_TO_VERIFY_LEAF_SIGNATURE'
    ) ||
    isSystemError(cause, 'UNABLE_TO_GET_ISSUER_CERT_LOCALLY', 'UNABLE_TO_GET_ISSUER_CERT')
  ) {
    return 'its certificate is not trusted here. Set cluster.ca to the certificate of its authority'
  }
  if (isSystemError(cause, 'ERR_SSL_WRONG_VERSION_NUMBER', 'EPROTO')) {
    return 'it does not speak TLS at this address. Write http:// instead of https://, or set tls there'
  }
  if (cause instanceof Error && cause.name === 'HTTPParserError')
    return 'what listens at its address does not speak HTTP'
  return errorMessage(cause)
}
