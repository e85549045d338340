import { readFileSync } from 'node:fs'
import { rootCertificates } from 'node:tls'
import type { Agent, Dispatcher } from 'undici'
import type { KnownMember } from '../../../../core/contracts/services.ts'
import { errorMessage } from '../../../../core/errors.ts'
import FAULTS from './connection-faults.json' with { type: 'json' }

export interface ConnectionSettings {
  connectTimeout: number
  /** File with certificates of authorities, in addition to the system's. Empty means none. */
  ca: string
}

/** A node's answer before its body is read. */
export type NodeReply = Pick<Dispatcher.ResponseData, 'statusCode' | 'headers' | 'body' | 'trailers'>

/** Milliseconds of silence after which the system checks a connection. It then ends a dead one within 10 s. */
const KEEP_ALIVE_MS = 10_000

/** The connections to one node. Answers have no time limit: only the client or a lost node ends them. */
export class NodeConnection {
  readonly url: string
  readonly #options: Agent.Options
  #agent: Promise<Agent> | undefined
  readonly #key: string | undefined

  constructor({ url, key, tlsName, pinned }: KnownMember, { connectTimeout, ca }: ConnectionSettings) {
    this.url = new URL(url).origin
    this.#key = key === '' ? undefined : key
    this.#options = {
      headersTimeout: 0,
      bodyTimeout: 0,
      pipelining: 1,
      connect: {
        timeout: connectTimeout,
        keepAlive: true,
        keepAliveInitialDelay: KEEP_ALIVE_MS,
        ...(tlsName !== undefined && { servername: tlsName }),
        ...(ca !== '' && { ca: [...rootCertificates, readFileSync(ca, 'utf8')] }),
        ...pinned
      }
    }
  }

  /** Imported with the first request, since most servers have no nodes. */
  #connect(): Promise<Agent> {
    this.#agent ??= import('undici').then(({ Agent }) => new Agent(this.#options))
    return this.#agent
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
      dispatcher: await this.#connect(),
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
    await (await this.#agent)?.destroy()
  }
}

const causeOf = (error: unknown) =>
  ((error instanceof Error && error.cause instanceof Error ? error.cause : error) ?? {}) as {
    code?: string
    name?: string
  }

/** Whether nothing at all has come back, not even a refusal. */
export const isUnreachable = (error: unknown): boolean =>
  /^(UND_ERR_CONNECT_TIMEOUT|ETIMEDOUT|EHOSTUNREACH|EHOSTDOWN|ENETUNREACH|ENETDOWN|EINVAL)$/.test(
    causeOf(error).code ?? ''
  )

/** Explains why a connection failed, and what to check. Never contains a key. */
export function connectionFault(error: unknown): string {
  const { code = '', name } = causeOf(error)
  if (name === 'HTTPParserError') return 'what listens at its address does not speak HTTP'
  return (FAULTS as Record<string, string>)[code] ?? errorMessage(causeOf(error))
}
