import { Connection, type Exchange, type Receiver } from './http-connection.ts'
import { type Answer, type ResponseHead, readResponse } from './http-response.ts'
import { basicCredentials, proxyFor } from './http-socket.ts'

/** Most characters of an error response that are shown. */
const SHOWN = 300

/** Receives the body of a response with the requested bytes. */
export interface Sink {
  room(): Buffer
  filled(length: number): boolean
}

export interface FetchRequest {
  /** First byte, and the end (exclusive); undefined is the end of the file. */
  start: number
  end: number | undefined
  /** Size of the file, as far as it is known. */
  size: number | undefined
  /** Returns the sink for the body; undefined when it is not wanted. */
  onAnswer(answer: Answer, tag: string | undefined): Sink | undefined
}

export interface FetchResult {
  answer: Answer
  head: ResponseHead
  /** The beginning of the body of an error response. */
  text: string
}

/**
 * Requests bytes of a file and passes them to a sink.
 * @throws ConnectionFailure, the signal's reason, errors of the sink
 */
export async function fetchBytes(
  connections: ConnectionPool,
  target: RequestTarget,
  request: FetchRequest,
  options: Omit<GetOptions, 'receiver'>
): Promise<FetchResult> {
  const reader = new ResponseReader(request)
  const last = request.end === undefined ? '' : request.end - 1
  const headers = { ...target.headers, Range: `bytes=${request.start}-${last}`, 'Accept-Encoding': 'identity' }
  await connections.get({ ...target, headers }, { ...options, receiver: reader })
  return { answer: reader.answer!, head: reader.head!, text: reader.text }
}

class ResponseReader implements Receiver {
  readonly #request: FetchRequest
  #sink: Sink | undefined
  #note: Buffer | undefined
  #noted = 0
  head: ResponseHead | undefined
  answer: Answer | undefined

  constructor(request: FetchRequest) {
    this.#request = request
  }

  get text(): string {
    const text = this.#note?.toString('utf8', 0, this.#noted) ?? ''
    return withoutQueries(text.replace(/\s+/g, ' ').trim()).slice(0, SHOWN)
  }

  onHead(head: ResponseHead): boolean {
    const { start, end, size, onAnswer } = this.#request
    this.head = head
    this.answer = readResponse(head, start, end, size)
    // An ETag that is not weak stands for exactly these bytes.
    const { etag } = head.headers
    this.#sink = onAnswer(this.answer, etag && !etag.startsWith('W/') ? etag : undefined)
    if (this.#sink) return true
    const explains = ['refused', 'busy', 'unusable'].includes(this.answer.kind) && head.status >= 400
    if (explains) this.#note = Buffer.alloc(SHOWN * 8)
    return explains
  }

  room(): Buffer {
    return this.#sink?.room() ?? this.#note!.subarray(this.#noted)
  }

  onBytes(length: number): boolean {
    if (this.#sink) return this.#sink.filled(length)
    this.#noted += length
    return this.#noted < this.#note!.length
  }
}

/** Removes the queries of addresses in a text: they may hold signatures. */
export function withoutQueries(text: string): string {
  return text.replace(/(https?:\/\/[^\s?"'<>#]+)\?[^\s"'<>]*/gi, '$1')
}

/** Milliseconds for which an unused connection is kept: less than servers usually keep theirs. */
const IDLE = 4000

export interface RequestTarget {
  url: URL
  headers: Record<string, string>
  proxy: string | undefined
}

export type GetOptions = Omit<Exchange, 'path' | 'headers'>

/** Keeps connections for the next request to the same server. */
export class ConnectionPool {
  readonly #idle = new Map<string, { connection: Connection; timer: NodeJS.Timeout }[]>()

  /**
   * Sends one GET over an idle connection or a new one.
   * @throws ConnectionFailure, the signal's reason
   */
  async get(target: RequestTarget, options: GetOptions): Promise<'complete' | 'stopped'> {
    const proxy = proxyFor(target.url, target.proxy, process.env)
    const throughProxy = proxy !== undefined && target.url.protocol === 'http:'
    const key = `${proxy?.href ?? ''} ${throughProxy ? '' : target.url.origin}`
    const exchange: Exchange = {
      ...options,
      path: `${throughProxy ? target.url.origin : ''}${target.url.pathname}${target.url.search}`,
      headers: headersFor(target, throughProxy && proxy.username !== '' ? basicCredentials(proxy) : undefined)
    }
    for (;;) {
      const connection =
        this.#take(key) ?? (await Connection.open(target.url, proxy, options.stallTimeout, options.signal))
      const used = connection.exchanges > 0
      try {
        const end = await connection.exchange(exchange)
        if (!connection.closed) this.#keep(key, connection)
        return end
      } catch (error) {
        // A server may close an idle connection just when it is used again: that is no failure of the request.
        if (!used || connection.answered || options.signal.aborted) throw error
      }
    }
  }

  close(): void {
    for (const all of this.#idle.values()) {
      for (const { connection, timer } of all) {
        clearTimeout(timer)
        connection.close()
      }
    }
    this.#idle.clear()
  }

  #take(key: string): Connection | undefined {
    for (let kept = this.#idle.get(key)?.pop(); kept; kept = this.#idle.get(key)?.pop()) {
      clearTimeout(kept.timer)
      if (!kept.connection.closed) return kept.connection
    }
    return undefined
  }

  #keep(key: string, connection: Connection): void {
    const kept = { connection, timer: setTimeout(() => this.#drop(key, connection), IDLE).unref() }
    this.#idle.set(key, [...(this.#idle.get(key) ?? []), kept])
  }

  #drop(key: string, connection: Connection): void {
    connection.close()
    const others = (this.#idle.get(key) ?? []).filter(kept => kept.connection !== connection)
    if (others.length > 0) this.#idle.set(key, others)
    else this.#idle.delete(key)
  }
}

function headersFor({ url, headers }: RequestTarget, proxyCredentials: string | undefined): Record<string, string> {
  // It refuses names and values that would break the request.
  const all = new Headers({ host: url.host, 'user-agent': 'corral', accept: '*/*' })
  if (url.username !== '') all.set('authorization', basicCredentials(url))
  if (proxyCredentials !== undefined) all.set('proxy-authorization', proxyCredentials)
  for (const [name, value] of Object.entries(headers)) all.set(name, value)
  return Object.fromEntries(all)
}
