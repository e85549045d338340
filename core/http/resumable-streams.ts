import { randomBytes } from 'node:crypto'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { CorralError } from '../errors.ts'
import { parseDuration } from '../system/duration.ts'
import { ChunkedResponse } from './chunked-response.ts'
import { ClientDisconnected, probeHalfClosed } from './client-disconnect.ts'
import { onReaderStall } from './connection-guard.ts'
import { Heartbeats, type ReplyStream, type ReplyStreamOptions } from './reply-stream.ts'
import { Loose } from './request-fields.ts'
import { json, type routesWith } from './response-schemas.ts'

declare module 'fastify' {
  interface FastifyInstance {
    resumable: ResumableStreams
  }
}

/** The request header that asks for a resumable stream. */
const WISH = 'x-corral-resumable'
/**
 * The request header by which llama-server's clients ask for one, and name it themselves. The latest stream under a
 * name is used.
 */
const CONVERSATION = 'x-conversation-id'
const MAX_CONVERSATION = 512
/** The reply header with the stream's id. */
export const STREAM_ID = 'x-corral-stream-id'
/** Maximum stored bytes of one stream; earlier bytes cannot be sent again. */
const MAX_BYTES = 4 * 2 ** 20
/** Maximum stored bytes of all streams. */
const MAX_TOTAL_BYTES = 64 * 2 ** 20
/** Maximum answers of one client that continue without a reader. */
const MAX_DETACHED = 8

/** The position to resume from: after the event with this number (the first event is 1), or at this byte. */
export type StreamPosition = { after: number } | { from: number }

/** The resumable streams: active streams, and streams that ended a moment ago. */
export class ResumableStreams {
  readonly #linger: () => string | number
  /** By id, oldest first. */
  readonly #streams = new Map<string, ResumableStream>()

  /** @param linger returns `limits.resume`: how long a stream stays without a reader */
  constructor(linger: () => string | number) {
    this.#linger = linger
  }

  /**
   * The stream for a request that asks for a resumable one; undefined if it does not, or if the configuration does not
   * allow them.
   */
  begin(reply: FastifyReply): ResumableStream | undefined {
    const { headers } = reply.request
    const wish = [headers[WISH]].flat()[0]?.trim().toLowerCase()
    const named = [headers[CONVERSATION]].flat()[0]?.trim()
    const conversation = named && named.length <= MAX_CONVERSATION ? named : undefined
    const linger = parseDuration(this.#linger())!
    if ((wish !== 'true' && conversation === undefined) || linger <= 0) return undefined
    return new ResumableStream(reply, conversation, linger, this)
  }

  add(stream: ResumableStream): void {
    this.#streams.set(stream.id, stream)
  }

  remove(stream: ResumableStream): void {
    this.#streams.delete(stream.id)
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

  /** Drops the oldest streams that have ended, then those without a reader, until the others have room. */
  makeRoom(): void {
    let bytes = 0
    for (const stream of this.#streams.values()) bytes += stream.bytes
    for (const isFree of [(stream: ResumableStream) => stream.ended, (stream: ResumableStream) => !stream.hasReader]) {
      for (const stream of this.#streams.values()) {
        if (bytes <= MAX_TOTAL_BYTES) return
        if (!isFree(stream)) continue
        bytes -= stream.bytes
        stream.forget()
      }
    }
  }

  /** Prevents one client from occupying all slots with answers that nobody reads. */
  boundDetached({ turn }: ResumableStream): void {
    const detached = [...this.#streams.values()].filter(
      stream => stream.turn === turn && !stream.hasReader && !stream.ended
    )
    for (const stream of detached.slice(0, Math.max(0, detached.length - MAX_DETACHED))) stream.forget()
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
export class ResumableStream implements ReplyStream {
  readonly id = `stream_${randomBytes(16).toString('hex')}`
  readonly owner: string
  readonly turn: string
  /** The name from the client. */
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
  readonly #streams: ResumableStreams
  #options: ReplyStreamOptions | undefined
  /** The stored bytes, from byte `#start` on, and the end of each stored event, from event `#firstEvent` on. */
  #kept: Buffer[] = []
  #start = 0
  #end = 0
  #eventEnds: number[] = []
  #firstEvent = 1
  /** The beginning of an incomplete event. */
  #unfinished = ''
  #decoder = new TextDecoder()
  #over = false
  #reader: Reader | undefined
  #waiting: (() => void)[] = []
  #heartbeats: Heartbeats | undefined
  #expiry: NodeJS.Timeout | undefined

  constructor(reply: FastifyReply, conversation: string | undefined, linger: number, streams: ResumableStreams) {
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
    if (this.#unfinished !== '') this.#keep(this.#unfinished)
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
    const last = this.#firstEvent + this.#eventEnds.length - 1
    const [what, asked, reached] =
      'after' in position ? ['event', position.after, last] : ['byte', position.from, this.#end]
    if (asked > reached) {
      const message = `The stream has not reached ${what} ${asked} yet; its last one is ${reached}.`
      throw new CorralError('invalid_request', message)
    }
    const isKept = 'after' in position ? asked >= this.#firstEvent - 1 : asked >= this.#start
    if (!isKept) {
      const message = `The stream after ${what} ${asked} is no longer stored. Send the request again.`
      throw new CorralError('stream_not_found', message)
    }
    if ('from' in position) return position.from
    return asked === this.#firstEvent - 1 ? this.#start : this.#eventEnds[asked - this.#firstEvent]!
  }

  #commit(): void {
    if (this.committed) return
    this.committed = true
    const reply = this.#reply!
    this.#reply = undefined
    const response = new ChunkedResponse(reply, this.#headers)
    if (this.#reader) this.#reader.response = response
    this.#streams.add(this)
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
      if (event.startsWith(':')) this.#keep(event)
      else {
        const number = this.#firstEvent + this.#eventEnds.length
        this.#keep(isLines ? event : `id: ${number}\n${event}`)
        this.#eventEnds.push(this.#end)
      }
    }
    this.#unfinished = text.slice(from)
  }

  #keep(text: string): void {
    const bytes = Buffer.from(text)
    this.#kept.push(bytes)
    this.#end += bytes.length
    this.#drop()
    this.#streams.makeRoom()
  }

  /** Drops the oldest stored bytes that the reader has, if there are too many. */
  #drop(): void {
    const sent = this.#reader?.at ?? this.#start
    while (this.bytes > MAX_BYTES && this.#start + this.#kept[0]!.length <= sent) {
      this.#start += this.#kept.shift()!.length
      while (this.#eventEnds.length > 0 && this.#eventEnds[0]! <= this.#start) {
        this.#eventEnds.shift()
        this.#firstEvent++
      }
    }
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
    const missing: Buffer[] = []
    let end = this.#end
    for (let index = this.#kept.length - 1; end > at; index--) {
      const piece = this.#kept[index]!
      const start = end - piece.length
      missing.push(start < at ? piece.subarray(at - start) : piece)
      end = start
    }
    return missing.length === 1 ? missing[0]! : Buffer.concat(missing.reverse())
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
      this.#streams.boundDetached(this)
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
    this.#streams.remove(this)
    this.#controller.abort(reason)
    this.#goOn()
    // If the stream survives, the reader gets everything so far, the reason (from `end`), and the end of its stream.
    if (this.committed && reason instanceof ClientDisconnected) this.#reader?.raw.destroy()
  }
}

const StreamPath = Type.Object({ id: Type.String({ description: 'From the header X-Corral-Stream-Id' }) })
const Position = Type.Object({
  after: Type.Optional(
    Type.String({ pattern: '^[0-9]{1,15}$', description: 'Number of the last event that was received; 0 is none' })
  ),
  from: Type.Optional(
    Type.String({ pattern: '^[0-9]{1,15}$', description: 'Instead: bytes of the body that were received' })
  )
})
const CancelledSchema = Loose({ status: Type.Literal('cancelled') })

/**
 * The routes of resumable streams, for APIs whose requests can ask for them.
 * @param route creates the API's route options with its error format
 * @param tag its group in the API document
 * @param name suffix of the routes' ids
 */
export function streamRoutes(route: ReturnType<typeof routesWith>, tag: string, name: string): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    app.get(
      '/streams/:id',
      route(tag, `resume${name}`, 'Continue a stream whose connection was lost', {
        description:
          'For answers that were requested with the header `X-Corral-Resumable: true`: they continue for `limits.resume` after their connection was lost, and are stored for as long after their end. The reply is byte for byte what the original connection would have received, from the event after `after` (or the header `Last-Event-ID`) on, or from a byte on. If another connection still reads the stream, it is closed.',
        params: StreamPath,
        querystring: Position,
        response: {
          200: {
            description: 'The rest of the stream',
            content: {
              'text/event-stream': { schema: Type.String() },
              'application/x-ndjson': { schema: Type.String() }
            }
          }
        },
        errors: ['stream_not_found', 'invalid_request']
      }),
      (request, reply) => {
        const stream = app.resumable.get(request, request.params.id)
        stream.resume(reply, positionOf(request.query, [request.headers['last-event-id']].flat()[0]))
      }
    )
    app.delete(
      '/streams/:id',
      route(tag, `cancel${name}`, 'End a resumable answer', {
        params: StreamPath,
        response: { 200: json('It was ended, and its stored part was removed', CancelledSchema) },
        errors: ['stream_not_found']
      }),
      async request => {
        app.resumable.get(request, request.params.id).cancel()
        return { status: 'cancelled' as const }
      }
    )
  }
}

/** @throws CorralError `invalid_request` for a `Last-Event-ID` that is not the number of an event */
function positionOf(
  { after, from }: { after?: string; from?: string },
  lastEventId: string | undefined
): StreamPosition {
  if (after === undefined && from !== undefined) return { from: Number(from) }
  const last = after ?? lastEventId ?? '0'
  if (/^[0-9]{1,15}$/.test(last)) return { after: Number(last) }
  throw new CorralError('invalid_request', 'Last-Event-ID must be the number of an event of this stream.')
}
