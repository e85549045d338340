import type { AnswerSink, Delta, EngineFields } from '../contracts/engines.ts'

/* Detects answers that repeat the same passage without end. Answers of usual length are only counted. */

type Piece = readonly Delta[] | Buffer

/** Events after which an answer is watched, and between two checks. Most contain one token. */
const INTERVAL = 1024
/** Usual length of an event. Counting events in bytes would take longer. */
const EVENT_BYTES = 220
/** Characters of an answer that are remembered. A passage can be as long as its part of them. */
const WINDOW = 65_536
/** Minimum characters of all repetitions together, so that a text that a user wanted many times is not a loop. */
const MIN_LENGTH = 8192
/** The same for passages with few letters: rows of zeros, rules of tables, drawings. */
const MIN_PLAIN_LENGTH = 60_000
const MIN_LETTERS = 8
/** Characters at the end of the text whose earlier places are possible lengths of the passage, and how many to try. */
const PROBE = 256
const MAX_TRIES = 64

export function mayLoop({ max_tokens: most }: EngineFields): boolean {
  return typeof most !== 'number' || most < 0 || most >= INTERVAL
}

export function endsInLoop(text: string, repeats: number): boolean {
  const probe = text.slice(-PROBE)
  let at = text.length - probe.length
  for (let tries = 0; tries < MAX_TRIES && at > 0; tries++) {
    at = text.lastIndexOf(probe, at - 1)
    if (at < 0) return false
    const passage = text.slice(at + probe.length)
    const letters = new Set(passage.match(/\p{L}/gu)).size
    const length = letters < MIN_LETTERS ? MIN_PLAIN_LENGTH : MIN_LENGTH
    const count = Math.max(repeats, Math.ceil(length / passage.length))
    if (count * passage.length <= text.length && text.endsWith(passage.repeat(count))) return true
  }
  return false
}

const TEXTS = /"(?:content|reasoning_content|arguments|text)":"((?:[^"\\]|\\.)*)"/g

class RepeatWatch {
  readonly #repeats: number
  #events = 0
  #ended = false
  #next = INTERVAL
  #text = ''
  #held: Piece[] = []

  constructor(repeats: number) {
    this.#repeats = repeats
  }

  /** @returns whether the answer repeats itself */
  add(piece: Piece): boolean {
    this.#events += Buffer.isBuffer(piece) ? piece.length / EVENT_BYTES : piece.length
    if (this.#ended || this.#events < INTERVAL) return false
    this.#held.push(piece)
    this.#ended = hasEnd(piece)
    if (this.#ended || this.#events < this.#next) return false
    this.#next = this.#events + INTERVAL
    this.#text = (this.#text + this.#held.splice(0).map(textOf).join('')).slice(-WINDOW)
    return endsInLoop(this.#text, this.#repeats)
  }
}

function hasEnd(piece: Piece): boolean {
  return Buffer.isBuffer(piece) ? piece.includes('"finish_reason":"') : piece.some(({ finish }) => finish)
}

function textOf(piece: Piece): string {
  if (Buffer.isBuffer(piece)) return [...piece.toString('latin1').matchAll(TEXTS)].map(([, text]) => text).join('')
  return piece
    .flatMap(({ content = '', thinking = '', toolCalls = [] }) => [
      thinking,
      content,
      ...toolCalls.map(call => call.arguments)
    ])
    .join('')
}

type Call<Of extends Piece> = (request: EngineFields, sink: AnswerSink<Of>) => Promise<void>

/** Ends an engine's answer when it repeats itself. @param ending returns the last piece of the answer */
export function endingLoops<Of extends Piece>(call: Call<Of>, repeats: number, ending: () => Promise<Of>): Call<Of> {
  return async (request, sink) => {
    const watch = new RepeatWatch(repeats)
    const stop = new AbortController()
    const leave = () => stop.abort(sink.signal.reason)
    sink.signal.addEventListener('abort', leave)
    if (sink.signal.aborted) leave()
    let isLoop = false
    let taken: Promise<void> | undefined
    const take = (piece: Of) => {
      if (isLoop) return undefined
      taken = sink.take(piece)
      isLoop = watch.add(piece)
      if (isLoop) stop.abort()
      return taken
    }
    try {
      await call(request, { ...sink, signal: stop.signal, take })
    } catch (error) {
      if (!isLoop) throw error
    } finally {
      sink.signal.removeEventListener('abort', leave)
    }
    if (!isLoop) return
    sink.signal.throwIfAborted()
    await taken
    await sink.take(await ending())
  }
}

/** Number of equal calls with equal results in a row from which the model is told. */
const MIN_CALLS = 5

/** Tool calls and their results. The ids and the text beside the calls may differ between equal turns. */
interface Turn {
  calls: string
  results: unknown[]
}

/**
 * Tells the model if the conversation repeats the same tool calls with the same results. The note is part of the fifth
 * result and of each further one, also in later turns, so that the prompt of the next turn begins with this one.
 */
export function noteRepeatedCalls<Body extends EngineFields>(body: Body): Body {
  const { messages } = body
  if (!Array.isArray(messages) || messages.length < 2 * MIN_CALLS) return body
  const noted = new Map<number, number>()
  let last: Turn | undefined
  let count = 0
  for (let at = 0, next = 1; at < messages.length; at = next++) {
    while (messages[next]?.role === 'tool') next++
    const turn = readTurn(messages.slice(at, next))
    count = turn && last && areEqual(turn, last) ? count + 1 : 1
    last = turn
    if (count >= MIN_CALLS) noted.set(next - 1, count)
  }
  if (noted.size === 0) return body
  const withNotes = messages.map((message, at) => (noted.has(at) ? withNote(message, noted.get(at)!) : message))
  return { ...body, messages: withNotes }
}

function readTurn([first, ...results]: EngineFields[]): Turn | undefined {
  const calls = first?.role === 'assistant' ? first.tool_calls : undefined
  if (!Array.isArray(calls) || results.length === 0) return undefined
  return { calls: JSON.stringify(calls.map(call => call?.function)), results: results.map(({ content }) => content) }
}

function areEqual(one: Turn, other: Turn): boolean {
  const isSame = (result: unknown, at: number) =>
    result === other.results[at] || JSON.stringify(result) === JSON.stringify(other.results[at])
  return one.calls === other.calls && one.results.length === other.results.length && one.results.every(isSame)
}

function withNote(message: EngineFields, count: number): EngineFields {
  const text = `[Note from the server: the last ${count} tool calls and their results were identical. Unless you are waiting for a change, do something else, or say what is in the way.]`
  const { content } = message
  if (Array.isArray(content)) return { ...message, content: [...content, { type: 'text', text }] }
  return { ...message, content: content ? `${content}\n\n${text}` : text }
}
