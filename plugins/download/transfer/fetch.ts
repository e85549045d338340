import { type Answer, readAnswer } from './answer.ts'
import type { Receiver } from './http/connection.ts'
import type { AskOptions, Connections, PlaceToAsk } from './http/connections.ts'
import { type ResponseHead, strongTag } from './http/response-head.ts'

/** Characters of a refusal that are shown. */
const SHOWN = 300

/** Takes the body of an answer that is what was asked for. */
export interface Sink {
  room(): Buffer
  took(length: number): boolean
}

export interface FetchRequest {
  /** First byte, and the one before which it ends; undefined is the file's end. */
  start: number
  end: number | undefined
  /** The file's size as far as it is known. */
  size: number | undefined
  /** Gives the sink for a body that is wanted; undefined when it is not, after all. */
  onAnswer(answer: Answer, tag: string | undefined): Sink | undefined
}

export interface FetchResult {
  answer: Answer
  head: ResponseHead
  /** The first characters of a body that is not the file. */
  text: string
}

/**
 * Asks a place for bytes of a file and gives them to a sink.
 * @throws ConnectionFailure, the signal's reason, what the sink throws
 */
export async function fetchBytes(
  connections: Connections,
  place: PlaceToAsk,
  request: FetchRequest,
  options: Omit<AskOptions, 'receiver'>
): Promise<FetchResult> {
  const reader = new AnswerReader(request)
  const last = request.end === undefined ? '' : request.end - 1
  const headers = { ...place.headers, Range: `bytes=${request.start}-${last}`, 'Accept-Encoding': 'identity' }
  await connections.get({ ...place, headers }, { ...options, receiver: reader })
  return { answer: reader.answer!, head: reader.head!, text: reader.text }
}

class AnswerReader implements Receiver {
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
    this.answer = readAnswer(head, start, end, size)
    this.#sink = onAnswer(this.answer, strongTag(head.headers.get('etag')))
    if (this.#sink) return true
    const explains = ['refused', 'busy', 'unusable'].includes(this.answer.kind) && head.status >= 400
    if (explains) this.#note = Buffer.alloc(SHOWN * 8)
    return explains
  }

  room(): Buffer {
    return this.#sink?.room() ?? this.#note!.subarray(this.#noted)
  }

  onBytes(length: number): boolean {
    if (this.#sink) return this.#sink.took(length)
    this.#noted += length
    return this.#noted < this.#note!.length
  }
}

/** Addresses in a text keep their paths only: queries may hold signatures. */
export function withoutQueries(text: string): string {
  return text.replace(/(https?:\/\/[^\s?"'<>#]+)\?[^\s"'<>]*/gi, '$1')
}
