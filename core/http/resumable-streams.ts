import { randomBytes } from 'node:crypto'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { type Static, Type } from 'typebox'
import { CorralError } from '../errors.ts'
import { parseDuration } from '../system/duration.ts'
import { ChunkedResponse } from './chunked-response.ts'
import { ClientDisconnected, probeHalfClosed } from './client-disconnect.ts'
import { onReaderStall } from './connection-guard.ts'
import { Heartbeats, type ReplyStream, type ReplyStreamOptions } from './reply-stream.ts'
import { Loose } from './request-fields.ts'
import { json, type routerWith } from './response-schemas.ts'

declare module 'fastify' {
  interface FastifyInstance {
    resumable: ResumableStreams
  }
}

const WISH = 'x-corral-resumable'
/** The header by which llama-server's clients ask for a stream of this name. The latest is used. */
const CONVERSATION = 'x-conversation-id'
const MAX_CONVERSATION = 512
const STREAM_ID = 'x-corral-stream-id'
/** Maximum stored bytes of one stream; earlier bytes cannot be sent again. */
const MAX_BYTES = 4 * 2 ** 20
/** Maximum stored bytes of all streams. */
const MAX_TOTAL_BYTES = 64 * 2 ** 20
/** Maximum answers of one client that continue without a reader. */
const MAX_DETACHED = 8

/** The position to resume from: after the event with this number (the first event is 1), or at this byte. */
type StreamPosition = { after: number } | { from: number }

/** By id, oldest first. */
type Streams = Map<string, ResumableStream>

/** The resumable streams: active streams, and streams that ended a moment ago. */
export class ResumableStreams {
  readonly #linger: () => string | number
  readonly #streams: Streams = new Map()

  /** @param linger returns `limits.resume`: how long a stream stays without a reader */
  constructor(linger: () => string | number) {
    this.#linger = linger
  }

  /** The stream for a request that asks for a resumable one, unless the configuration does not allow them. */
  begin(reply: FastifyReply): ResumableStream | undefined {
    const { headers } = reply.request
    const wish = [headers[WISH]].flat()[0]?.trim().toLowerCase()
    const named = [headers[CONVERSATION]].flat()[0]?.trim()
    const conversation = named && named.length <= MAX_CONVERSATION ? named : undefined
    const linger = parseDuration(this.#linger())!
    if ((wish !== 'true' && conversation === undefined) || linger <= 0) return undefined
    return new ResumableStream(reply, conversation, linger, this.#streams)
  }

  /** @throws CorralError `stream_not_found`, also for a stream of another owner */
  get({ caller }: FastifyRequest, id: string): ResumableStream {
    const stream = this.#streams.get(id)
    if (stream && stream.owner === caller.owner) return stream
    const message = `There is no stream with this id that can be resumed: it has ended, had no reader for longer than limits.resume (${this.#linger()}), or never existed. Send the request again.`
    throw new CorralError('stream_not_found', message)
  }

  /** The latest stream that a request of this caller's owner named with `X-Conversation-Id`. */
  ofConversation({ caller }: FastifyRequest, conversation: string): ResumableStream | undefined {
    return this.#ofOwner(caller.owner).findLast(stream => stream.conversation === conversation)
  }

  /** The streams with one of these names, or with one of these names followed by a model (`<name>::<model>`). */
  ofConversations({ caller }: FastifyRequest, conversations: readonly string[]): ResumableStream[] {
    const asked = new Set(conversations)
    const latest = new Map<string, ResumableStream>()
    for (const stream of this.#ofOwner(caller.owner)) {
      const { conversation } = stream
      if (conversation === undefined) continue
      if (asked.has(conversation) || asked.has(conversation.split('::')[0]!)) latest.set(conversation, stream)
    }
    return [...latest.values()]
  }

  #ofOwner(owner: string): ResumableStream[] {
    return [...this.#streams.values()].filter(stream => stream.owner === owner)
  }
}

/** Drops the oldest streams that have ended, then those without a reader, until the others have room. */
function makeRoom(streams: Streams): void {
  let bytes = 0
  for (const stream of streams.values()) bytes += stream.bytes
  for (const isFree of [(stream: ResumableStream) => stream.ended, (stream: ResumableStream) => !stream.hasReader]) {
    for (const stream of streams.values()) {
      if (bytes <= MAX_TOTAL_BYTES) return
      if (!isFree(stream)) continue
      bytes -= stream.bytes
      stream.forget()
    }
  }
}

interface Reader {
  readonly raw: FastifyReply['raw']
  /** Undefined until its headers are sent. */
  response: ChunkedResponse | undefined
  /** Next byte of the stream to send to it. */
  at: number
  /** Whether it must read what was written before it gets more. */
  full: boolean
}

/**
 * The stream of one answer. It continues for a while when its client's connection is lost, and stores its output, so
 * that another connection gets the rest byte for byte. Server-Sent Events are numbered (`id:`), and lines of NDJSON
 * count as events without a number. Comments are stored too, since a client may count bytes.
 */
class ResumableStream implements ReplyStream {
  readonly id = `stream_${randomBytes(16).toString('hex')}`
  readonly owner: string
  readonly turn: string
  readonly conversation: string | undefined
  readonly startedAt = new Date()
  /** Aborted when the answer must end: nobody resumed it in time, or it was cancelled. */
  readonly signal: AbortSignal
  committed = false
  written = false
  status = 'waiting'
  endedAt: Date | undefined
  readonly #controller = new AbortController()
  /** The reply to the original request, until its headers are sent, because it keeps the request's body in memory. */
  #reply: FastifyReply | undefined
  readonly #linger: number
  readonly #streams: Streams
  #options: ReplyStreamOptions | undefined
  /** The stored events and comments from byte `#start` on, each with its end and its event's number. */
  #kept: { bytes: Buffer; end: number; number: number | undefined }[] = []
  #start = 0
  #end = 0
  #lastEvent = 0
  /** The number of the last event before byte `#start`. */
  #lastDropped = 0
  /** The beginning of an incomplete event. */
  #unfinished = ''
  #decoder = new TextDecoder()
  #over = false
  #reader: Reader | undefined
  #waiting: (() => void)[] = []
  #heartbeats: Heartbeats | undefined
  #expiry: NodeJS.Timeout | undefined

  constructor(reply: FastifyReply, conversation: string | undefined, linger: number, streams: Streams) {
    const { caller } = reply.request
    this.owner = caller.owner
    this.turn = caller.turn
    this.conversation = conversation
    this.signal = this.#controller.signal
    this.#reply = reply
    this.#linger = linger
    this.#streams = streams
    const { revoked } = caller
    const refuse = () => this.#cancel(revoked!.reason)
    if (revoked?.aborted) refuse()
    revoked?.addEventListener('abort', refuse)
    this.signal.addEventListener('abort', () => revoked?.removeEventListener('abort', refuse))
    this.#follow(reply, 0)
  }

  get ended(): boolean {
    return this.endedAt !== undefined
  }

  get length(): number {
    return this.#end
  }

  get hasReader(): boolean {
    return this.#reader !== undefined
  }

  get bytes(): number {
    return this.#end - this.#start
  }

  /** Begins to stream, like `openReplyStream`. */
  open(options: ReplyStreamOptions): this {
    this.#options = options
    this.#heartbeats = new Heartbeats(options, () => this.#beat())
    if (this.#over) this.#heartbeats.stop()
    return this
  }

  write(chunk: string | Uint8Array): Promise<void> | undefined {
    if (this.#over) return undefined
    this.#commit()
    this.written = true
    this.#heartbeats?.postpone()
    this.#unfinished += typeof chunk === 'string' ? chunk : this.#decoder.decode(chunk, { stream: true })
    this.#keepEvents()
    this.#send()
    // Without a reader, the answer continues as long as its whole output can be stored.
    const mayGoOn = this.#reader ? !this.#reader.full : this.bytes < MAX_BYTES
    if (mayGoOn) return undefined
    return new Promise(resolve => this.#waiting.push(resolve))
  }

  end(lastChunk?: string): void {
    if (this.ended) return
    if (this.#over) {
      // A reader of a cancelled stream gets the reason, and its stream ends.
      if (!this.committed || !this.#reader) return
      this.#unfinished = lastChunk ?? ''
      this.#keepEvents()
    } else if (lastChunk) void this.write(lastChunk)
    else this.#commit()
    if (this.#unfinished !== '') this.#keep(this.#unfinished, undefined)
    this.endedAt = new Date()
    this.#heartbeats?.stop()
    this.#send()
    if (!this.#reader) this.#expire()
  }

  /**
   * Sends the rest of the stream to another connection, which replaces the previous one.
   * @throws CorralError `invalid_request` for a position that has not been reached, `stream_not_found` for a position
   * that is no longer stored
   */
  resume(reply: FastifyReply, position: StreamPosition): void {
    const at = this.#byteOf(position)
    this.#reader?.raw.destroy()
    this.#detach()
    this.#follow(reply, at, new ChunkedResponse(reply, this.#headers))
    this.#send()
  }

  /** Ends the answer and forgets it. A reader gets the reason. */
  cancel(): void {
    this.#cancel(
      new CorralError('stream_cancelled', 'The answer was cancelled. To get a new answer, send the request again.')
    )
  }

  /** Ends the answer and forgets it, because nobody reads it or its memory is needed. */
  forget(): void {
    this.#cancel(new ClientDisconnected())
  }

  #byteOf(position: StreamPosition): number {
    const [what, asked, reached, dropped] =
      'after' in position
        ? ['event', position.after, this.#lastEvent, this.#lastDropped]
        : ['byte', position.from, this.#end, this.#start]
    if (asked > reached) {
      const message = `The stream has not reached ${what} ${asked} yet; its last one is ${reached}.`
      throw new CorralError('invalid_request', message)
    }
    if (asked < dropped) {
      const message = `The stream after ${what} ${asked} is no longer stored. Send the request again.`
      throw new CorralError('stream_not_found', message)
    }
    if ('from' in position) return position.from
    return asked === dropped ? this.#start : this.#kept.find(({ number }) => number === asked)!.end
  }

  #commit(): void {
    if (this.committed) return
    this.committed = true
    const reply = this.#reply!
    this.#reply = undefined
    const response = new ChunkedResponse(reply, this.#headers)
    if (this.#reader) this.#reader.response = response
    this.#streams.set(this.id, this)
  }

  get #headers(): Record<string, string> {
    return { 'content-type': this.#options!.contentType, [STREAM_ID]: this.id }
  }

  #beat(): void {
    // The request was answered with a status code instead.
    if (this.#reply?.raw.headersSent) this.#heartbeats?.stop()
    if (this.#reply?.raw.headersSent || !this.#reader || this.#reader.full || this.ended) return
    this.#commit()
    // Nothing may come between the parts of an event.
    if (this.#unfinished === '') {
      this.#unfinished = this.#options!.heartbeat(this.status)
      this.#keepEvents()
      this.#send()
    }
  }

  /** Stores all complete events. */
  #keepEvents(): void {
    const isLines = this.#options!.contentType.includes('ndjson')
    const separator = isLines ? '\n' : '\n\n'
    const text = this.#unfinished
    let from = 0
    for (let at = text.indexOf(separator); at !== -1; at = text.indexOf(separator, from)) {
      const event = text.slice(from, at + separator.length)
      from = at + separator.length
      const number = event.startsWith(':') ? undefined : ++this.#lastEvent
      this.#keep(isLines || number === undefined ? event : `id: ${number}\n${event}`, number)
    }
    this.#unfinished = text.slice(from)
  }

  /** Stores a piece, and drops the oldest pieces that the reader has if there are too many. */
  #keep(text: string, number: number | undefined): void {
    const bytes = Buffer.from(text)
    this.#end += bytes.length
    this.#kept.push({ bytes, end: this.#end, number })
    const sent = this.#reader?.at ?? this.#start
    while (this.bytes > MAX_BYTES && this.#kept[0]!.end <= sent) {
      const dropped = this.#kept.shift()!
      this.#start = dropped.end
      this.#lastDropped = dropped.number ?? this.#lastDropped
    }
    makeRoom(this.#streams)
  }

  /** Sends the reader everything that it has not received yet. */
  #send(): void {
    const reader = this.#reader
    const response = reader?.response
    if (!response || reader.full) return
    if (reader.at < this.#end) {
      const missing = this.#from(reader.at)
      reader.at = this.#end
      if (!response.write(missing)) {
        reader.full = true
        response.whenDrained(() => {
          reader.full = false
          this.#goOn()
          this.#send()
        })
      }
    }
    if (this.ended) response.end()
  }

  #from(at: number): Buffer {
    const last = this.#kept.findLastIndex(({ end }) => end <= at)
    const missing = Buffer.concat(this.#kept.slice(last + 1).map(({ bytes }) => bytes))
    return missing.subarray(at - (this.#kept[last]?.end ?? this.#start))
  }

  #follow(reply: FastifyReply, at: number, response?: ChunkedResponse): void {
    const { raw } = reply
    const reader: Reader = { raw, response, at, full: false }
    clearTimeout(this.#expiry)
    this.#reader = reader
    // A reader that does not read is treated as disconnected.
    const forget = onReaderStall(raw.socket, () => raw.destroy())
    const leave = () => {
      forget()
      if (this.#reader !== reader) return
      this.#detach()
      // Nobody can resume a stream whose id was never sent.
      if (!this.committed) this.#cancel(new ClientDisconnected())
      else this.#expire()
      // Prevents one client from occupying all slots with answers that nobody reads.
      const detached = [...this.#streams.values()].filter(
        stream => stream.turn === this.turn && !stream.hasReader && !stream.ended
      )
      for (const stream of detached.slice(0, Math.max(0, detached.length - MAX_DETACHED))) stream.forget()
    }
    if (raw.destroyed) {
      leave()
      return
    }
    raw.once('close', leave)
    probeHalfClosed(reply, () => {
      if (raw.headersSent) this.#beat()
      else raw.writeProcessing()
    })
    this.#goOn()
  }

  #detach(): void {
    this.#reader = undefined
    this.#goOn()
  }

  #goOn(): void {
    for (const resolve of this.#waiting.splice(0)) resolve()
  }

  #expire(): void {
    clearTimeout(this.#expiry)
    if (!this.#over) this.#expiry = setTimeout(() => this.forget(), this.#linger).unref()
  }

  #cancel(reason: unknown): void {
    if (this.#over) return
    this.#over = true
    this.#heartbeats?.stop()
    clearTimeout(this.#expiry)
    this.#streams.delete(this.id)
    this.#controller.abort(reason)
    this.#goOn()
    // If the stream survives, the reader gets everything so far, the reason (from `end`), and the end of its stream.
    if (this.committed && reason instanceof ClientDisconnected) this.#reader?.raw.destroy()
  }
}

const NUMBER = '^[0-9]{1,15}$'
const StreamPath = Type.Object({ id: Type.String({ description: 'From the header X-Corral-Stream-Id' }) })
const Position = Type.Object({
  after: Type.Optional(
    Type.String({ pattern: NUMBER, description: 'Number of the last event that was received; 0 is none' })
  ),
  from: Type.Optional(Type.String({ pattern: NUMBER, description: 'Instead: bytes of the body that were received' }))
})

/**
 * Adds the routes of resumable streams to an API whose requests can ask for them.
 * @param name suffix of the routes' ids
 */
export function streamRoutes(app: FastifyInstance, route: ReturnType<ReturnType<typeof routerWith>>, name: string) {
  route('GET /streams/:id', `resume${name}`, 'Continue a stream whose connection was lost', {
    description:
      'For answers that were requested with the header `X-Corral-Resumable: true`: they continue for `limits.resume` after their connection was lost, and are stored for as long after their end. The reply is byte for byte what the original connection would have received, from the event after `after` (or the header `Last-Event-ID`) on, or from a byte on. If another connection still reads the stream, it is closed.',
    params: StreamPath,
    querystring: Position,
    response: {
      description: 'The rest of the stream',
      content: {
        'text/event-stream': { schema: Type.String() },
        'application/x-ndjson': { schema: Type.String() }
      }
    },
    errors: ['stream_not_found', 'invalid_request'],
    handler: (request, reply) => {
      const stream = app.resumable.get(request, request.params.id)
      stream.resume(reply, positionOf(request.query, [request.headers['last-event-id']].flat()[0]))
    }
  })
  route('DELETE /streams/:id', `cancel${name}`, 'End a resumable answer', {
    params: StreamPath,
    response: json('It was ended, and its stored part was removed', Loose({ status: Type.Literal('cancelled') })),
    errors: ['stream_not_found'],
    handler: async request => {
      app.resumable.get(request, request.params.id).cancel()
      return { status: 'cancelled' }
    }
  })
}

/** @throws CorralError `invalid_request` for a `Last-Event-ID` that is not the number of an event */
function positionOf({ after, from }: Static<typeof Position>, lastEventId: string | undefined): StreamPosition {
  if (after === undefined && from !== undefined) return { from: Number(from) }
  const last = after ?? lastEventId ?? '0'
  if (new RegExp(NUMBER).test(last)) return { after: Number(last) }
  throw new CorralError('invalid_request', 'Last-Event-ID must be the number of an event of this stream.')
}
