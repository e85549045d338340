import { setMaxListeners } from 'node:events'
import { readFileSync } from 'node:fs'
import { rootCertificates } from 'node:tls'
import type { Agent, Dispatcher } from 'undici'
import type { KnownMember } from '../../../../core/contracts/services.ts'
import { errorMessage } from '../../../../core/errors.ts'
import { type EngineBody, ResponseBody } from '../../../../core/system/response-body.ts'
import FAULTS from './connection-faults.json' with { type: 'json' }

export interface ConnectionSettings {
  connectTimeout: number
  /** File with certificates of authorities, in addition to the system's. Empty means none. */
  ca: string
}

/** A node's reply before its body is read. */
export type NodeReply = Pick<Dispatcher.ResponseData, 'statusCode' | 'headers' | 'body' | 'trailers'>

/** Milliseconds of silence after which the system checks a connection. It then ends a dead one within 10 s. */
const KEEP_ALIVE_MS = 10_000

/** A node's answer before its body is read. Its trailers are known when the body has ended. */
export interface NodeAnswer extends Pick<NodeReply, 'statusCode' | 'headers'> {
  readonly body: EngineBody
  readonly trailers: Record<string, string | string[] | undefined>
}

interface Sent {
  /** Sent as JSON unless it is text already. */
  body?: object | string
  headers?: Record<string, string>
}

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

  async send(
    method: 'GET' | 'HEAD' | 'POST' | 'DELETE',
    path: string,
    { signal, ...sent }: Sent & { signal: AbortSignal }
  ): Promise<NodeReply> {
    const [{ request }, dispatcher] = await Promise.all([import('undici'), this.#connect()])
    return await request(this.url + path, { method, dispatcher, signal, ...this.#toRequest(sent) })
  }

  /** Sends a request as `send` does, at half the cost. Ends it and its answer when one of the signals is aborted. */
  async ask(path: string, sent: Sent, signals: readonly AbortSignal[]): Promise<NodeAnswer> {
    const dispatcher = await this.#connect()
    return await new Promise<NodeAnswer>((resolve, reject) => {
      let controller: Dispatcher.DispatchController | undefined
      let failure: Error | undefined
      const trailers: NodeAnswer['trailers'] = {}
      const fail = (error: Error) => {
        failure ??= error
        controller?.abort(failure)
        body.fail(failure)
        reject(failure)
        forget()
      }
      const body = new ResponseBody({
        pause: () => controller!.pause(),
        resume: () => controller!.resume(),
        destroy: () => fail(new Error('The answer was not read to its end.'))
      })
      const onAbort = ({ target }: Pick<Event, 'target'>) => fail((target as AbortSignal).reason)
      const forget = () => {
        for (const signal of signals) signal.removeEventListener('abort', onAbort)
      }
      // A signal may have as many listeners as there are requests.
      setMaxListeners(0, ...signals)
      for (const signal of signals) signal.addEventListener('abort', onAbort)
      const target = signals.find(({ aborted }) => aborted)
      if (target) return onAbort({ target })
      const handler: Dispatcher.DispatchHandler = {
        onRequestStart(started) {
          controller = started
          if (failure) started.abort(failure)
        },
        onResponseStart: (_, statusCode, headers) => resolve({ statusCode, headers, body, trailers }),
        onResponseData: (_, chunk) => body.push(chunk),
        onResponseEnd(_, given) {
          forget()
          Object.assign(trailers, given)
          body.end()
        },
        onResponseError: (_, error) => fail(error)
      }
      dispatcher.dispatch({ origin: this.url, path, method: 'POST', ...this.#toRequest(sent) }, handler)
    })
  }

  #toRequest({ body, headers }: Sent) {
    return {
      headers: {
        ...headers,
        ...(this.#key !== undefined && { authorization: `Bearer ${this.#key}` }),
        ...(body !== undefined && { 'content-type': 'application/json' })
      },
      ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) })
    }
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
