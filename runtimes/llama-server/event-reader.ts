import { type OpenAiEvent, toDelta, toFinishReason } from '../../core/answers/openai-events.ts'
import type { Delta, TokenUsage } from '../../core/contracts/engines.ts'

/** llama-server's additions to the events of the OpenAI chat format. `/infill` has a format of its own. */
interface StreamEvent extends OpenAiEvent {
  timings?: { cache_n?: number; prompt_n: number; prompt_ms: number; predicted_n: number; predicted_ms: number }
  prompt_progress?: { total: number; cache?: number; processed: number }
  system_fingerprint?: string
  error?: unknown
  // Only in `/infill`.
  index?: number
  content?: string
  stop?: boolean
  stop_type?: string
  completion_probabilities?: Delta['logprobs']
  __verbose?: { stopping_word?: string; [field: string]: unknown }
}

export class EventReader {
  /** The text that ended each choice. It comes with the first of the final events, the reason with the last. */
  readonly #stopWords: string[] = []
  readonly #native: boolean
  finished = 0

  constructor(native = false) {
    this.#native = native
  }

  read(event: StreamEvent): Delta {
    const delta = event.choices ? toDelta(event) : infillDelta(event)
    const index = delta.choice ?? 0
    if (event.prompt_progress) {
      const { processed, total, cache = 0 } = event.prompt_progress
      delta.reading = { tokens: processed, total, cached: cache }
    }
    if (event.timings) {
      const { prompt_ms, predicted_ms } = event.timings
      delta.usage = usageOf(event.timings)
      delta.timing = { prompt: prompt_ms, generation: predicted_ms }
      delta.extra = { system_fingerprint: event.system_fingerprint, timings: event.timings }
    }
    // The events of /infill already have this form.
    if (this.#native) delta.native = { ...(event.choices ? event.__verbose : event) }
    if (event.__verbose?.stopping_word) this.#stopWords[index] = event.__verbose.stopping_word
    if (delta.finish) {
      const word = this.#stopWords[index]
      if (word) delta.stopSequence = word
      this.finished++
    }
    return delta
  }
}

function usageOf({ cache_n = 0, prompt_n, predicted_n }: NonNullable<StreamEvent['timings']>): TokenUsage {
  return { promptTokens: cache_n + prompt_n, cachedTokens: cache_n, completionTokens: predicted_n }
}

function infillDelta({ index, content, completion_probabilities, stop, stop_type }: StreamEvent): Delta {
  return {
    ...(index && { choice: index }),
    ...(content && { content }),
    ...(completion_probabilities && { logprobs: completion_probabilities }),
    ...(stop && stop_type && { finish: toFinishReason(stop_type === 'limit' ? 'length' : stop_type) })
  }
}

const NOTHING = Buffer.alloc(0)
const LINE_FEED = 10
const END_OF_EVENT = '\n\n'
const DONE = 'data: [DONE]\n'
const ERROR = 'data: {"error":'
const TIMINGS = '"timings":'
const NULL = 'data: null\n\n'

/** The meaning of a part of a stream whose events are not parsed. */
export interface EventBlock {
  /** Whole events, as they can be passed on. Empty if there are none. */
  bytes: Buffer
  done: boolean
  /** The JSON of the error with which the stream ends. */
  error?: string
}

/** Splits a stream at the ends of events without parsing them. Nearly all chunks are passed on unchanged. */
export class EventBlocks {
  #rest: Buffer = NOTHING
  /** Number of events so far. Nearly every event is one token. */
  events = 0
  readonly usages: TokenUsage[] = []

  /** Returns the events that this chunk completes, or undefined if there are none to pass on. */
  push(chunk: Buffer): EventBlock | undefined {
    const data = this.#rest.length ? Buffer.concat([this.#rest, chunk]) : chunk
    const end = endOfEvents(data)
    this.#rest = end === data.length ? NOTHING : data.subarray(end)
    if (end === 0) return undefined
    let bytes = end === data.length ? data : data.subarray(0, end)
    // One character per byte.
    let text = bytes.toString('latin1')
    // A comment that only keeps the connection open. corral sends its own.
    if (text.startsWith(':') && !text.includes('data:')) return undefined
    // llama-server starts each further choice of one request with an event that is not a chunk.
    if (text.includes(NULL)) {
      text = text.replaceAll(NULL, '')
      bytes = Buffer.from(text, 'latin1')
    }
    for (let at = 0; at < text.length; this.events++) at = text.indexOf(END_OF_EVENT, at) + END_OF_EVENT.length
    if (text.includes(TIMINGS)) this.#readUsage(bytes)
    const at = findLineStart(text, ERROR)
    if (at === -1) return { bytes, done: findLineStart(text, DONE) !== -1 }
    const error = bytes.toString('utf8', at + 'data: '.length, bytes.indexOf(LINE_FEED, at))
    return { bytes: bytes.subarray(0, at), done: false, error }
  }

  /** Only the events that end choices have timings, unless the client asks for more. */
  #readUsage(bytes: Buffer): void {
    for (const line of bytes.toString().split('\n')) {
      if (!line.startsWith('data: {') || !line.includes(TIMINGS)) continue
      const { choices, timings } = JSON.parse(line.slice('data: '.length)) as StreamEvent
      // If the request asks for usage, a separate event has the timings, which belongs to no choice.
      if (timings) this.usages[choices?.[0]?.index ?? 0] = usageOf(timings)
    }
  }
}

function endOfEvents(data: Buffer): number {
  const { length } = data
  if (length > 1 && data[length - 1] === LINE_FEED && data[length - 2] === LINE_FEED) return length
  const at = data.lastIndexOf(END_OF_EVENT)
  return at === -1 ? 0 : at + END_OF_EVENT.length
}

/** Finds where a line with this beginning starts. Line feeds within JSON are escaped. */
function findLineStart(text: string, line: string): number {
  if (text.startsWith(line)) return 0
  const feed = text.indexOf(`\n${line}`)
  return feed === -1 ? -1 : feed + 1
}
