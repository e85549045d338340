import { requireAllowedHost } from '../../../../../core/system/allowed-address.ts'
import { printable } from '../../../../../core/system/printable.ts'
import { isWebPage, pageTitle } from '../../../../../core/system/web-page.ts'
import { Connection, type Exchange, type Receiver } from './http-connection.ts'
import { type Answer, type ResponseHead, readResponse, WEB_PAGE } from './http-response.ts'
import { basicCredentials, proxyFor, type SocketTarget } from './http-socket.ts'

/** Maximum characters of an error response to show. */
const MAX_SHOWN_CHARACTERS = 300

/** Receives the requested bytes. */
export interface Sink {
  room(): Buffer
  filled(length: number): boolean
}

export interface FetchRequest {
  /** First byte, and the end (exclusive); undefined means the end of the file. */
  start: number
  end: number | undefined
  /** Size of the file, if known. */
  size: number | undefined
  /** @param wait milliseconds until the answer came @returns the sink for the body; undefined if it is not wanted */
  onAnswer(answer: Answer, tag: string | undefined, wait: number): Sink | undefined
}

export interface FetchResult {
  answer: Answer
  head: ResponseHead
  /** The beginning of an error response's body. Empty for a server that a client chose. */
  text: string
  /** A web page came instead. */
  isPage: boolean
}

/** Requests bytes of a file and passes them to a sink. @throws ConnectionFailure, errors of the sink */
export async function fetchBytes(
  connections: ConnectionPool,
  target: RequestTarget,
  request: FetchRequest,
  options: Omit<GetOptions, 'receiver'>
): Promise<FetchResult> {
  const { start, end, size, onAnswer } = request
  const range = `bytes=${start}-${end === undefined ? '' : end - 1}`
  let result: Pick<FetchResult, 'answer' | 'head'> | undefined
  let sink: Sink | undefined
  /** The beginning of an error response. */
  const errorBody = Buffer.alloc(MAX_SHOWN_CHARACTERS * 8)
  let errorBytes = 0
  const receiver: Receiver = {
    onHead(head, wait) {
      const answer = readResponse(head, start, end, size)
      result = { answer, head }
      // A strong ETag stands for exactly these bytes.
      const { etag } = head.headers
      sink = onAnswer(answer, etag && !etag.startsWith('W/') ? etag : undefined, wait)
      const isFailure = ['refused', 'busy', 'unusable'].includes(answer.kind) && head.status >= 400
      return sink !== undefined || isFailure || isWebPageAnswer(answer)
    },
    room: () => sink?.room() ?? errorBody.subarray(errorBytes),
    onBytes(length) {
      if (sink) return sink.filled(length)
      errorBytes += length
      return errorBytes < errorBody.length
    }
  }
  const headers = { ...target.headers, Range: range, 'Accept-Encoding': 'identity' }
  await connections.get({ ...target, headers }, { ...options, receiver })
  const body = errorBody.toString('utf8', 0, errorBytes)
  const isPage = isWebPageAnswer(result!.answer) || isWebPage(body)
  if (target.privateAddresses) return { ...result!, isPage, text: '' }
  const text = isPage ? `a web page${pageTitle(body)}` : withoutQueries(body.replace(/\s+/g, ' ').trim())
  return { ...result!, isPage, text: printable(text, MAX_SHOWN_CHARACTERS) }
}

const isWebPageAnswer = (answer: Answer) => answer.kind === 'unusable' && answer.why === WEB_PAGE

/** Removes the queries of addresses in a text, since they may contain signatures. */
export function withoutQueries(text: string): string {
  return text.replace(/(https?:\/\/[^\s?"'<>#]+)\?[^\s"'<>]*/gi, '$1')
}

/** Shorter than servers usually keep unused connections. */
const IDLE_MS = 4000

export interface RequestTarget extends SocketTarget {
  headers: Record<string, string>
  proxy: string | undefined
}

export type GetOptions = Omit<Exchange, 'path' | 'headers'>

interface IdleConnection {
  /** Identifies its server and proxy, and the addresses that it was allowed to contact. */
  key: string
  connection: Connection
  timer: NodeJS.Timeout
}

/** Keeps connections open for the next request to the same server. */
export class ConnectionPool {
  readonly #idle = new Set<IdleConnection>()

  /** Sends one GET over an idle connection or a new one. @throws as `Connection.open` */
  async get(target: RequestTarget, options: GetOptions): Promise<'complete' | 'stopped'> {
    const proxy = proxyFor(target.url, target.proxy, process.env)
    const throughProxy = proxy !== undefined && target.url.protocol === 'http:'
    const { privateAddresses: allowed } = target
    if (allowed) requireAllowedHost(target.url.hostname, allowed, proxy === undefined)
    const key = JSON.stringify([proxy?.href, throughProxy ? '' : target.url.origin, allowed, target.tls])
    const exchange: Exchange = {
      ...options,
      path: `${throughProxy ? target.url.origin : ''}${target.url.pathname}${target.url.search}`,
      headers: headersFor(target, throughProxy && proxy.username !== '' ? basicCredentials(proxy) : undefined)
    }
    for (;;) {
      const connection = this.#take(key) ?? (await Connection.open(target, proxy, options.stallTimeout, options.signal))
      const used = connection.exchanges > 0
      try {
        const end = await connection.exchange(exchange)
        if (!connection.closed) this.#keep(key, connection)
        return end
      } catch (error) {
        // A server may close an idle connection just as it is reused. That is not a failure of the request.
        if (!used || connection.answered || options.signal.aborted) throw error
      }
    }
  }

  close(): void {
    for (const idle of this.#idle) this.#remove(idle).close()
  }

  #take(key: string): Connection | undefined {
    for (const idle of this.#idle) {
      if (idle.key === key && !this.#remove(idle).closed) return idle.connection
    }
    return undefined
  }

  #keep(key: string, connection: Connection): void {
    const timer = setTimeout(() => this.#remove(idle).close(), IDLE_MS).unref()
    const idle: IdleConnection = { key, connection, timer }
    this.#idle.add(idle)
  }

  #remove(idle: IdleConnection): Connection {
    clearTimeout(idle.timer)
    this.#idle.delete(idle)
    return idle.connection
  }
}

function headersFor({ url, headers }: RequestTarget, proxyCredentials: string | undefined): Record<string, string> {
  // `Headers` refuses names and values that would break the request.
  const all = new Headers({ host: url.host, 'user-agent': 'corral', accept: '*/*' })
  if (url.username !== '') all.set('authorization', basicCredentials(url))
  if (proxyCredentials !== undefined) all.set('proxy-authorization', proxyCredentials)
  for (const [name, value] of Object.entries(headers)) all.set(name, value)
  return Object.fromEntries(all)
}
