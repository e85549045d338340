import { Agent } from 'undici'

/** Target of a request: a TCP server, or an engine's Unix socket. */
export interface Place {
  origin: string
  socketPath?: string
}

export interface Request {
  method: 'GET' | 'POST'
  path: string
  headers: Record<string, string>
  body?: string
  /** Streams the reply and records the time of each chunk. The connection is not reused. */
  stream: boolean
}

/** The result of a request. Times are milliseconds since the request was sent. */
export interface Outcome {
  status: number
  /** Time of the first chunk that contains text. */
  firstText: number
  /** Times of all events with text, including the first. Several events may arrive at the same time. */
  times: number[]
  /** Number of events and comments of any kind. */
  events: number
  total: number
  text: string
}

export interface Client {
  send(request: Request): Promise<Outcome>
  close(): Promise<void>
}

const LINE_FEED = 10
/** Text of an answer. Anthropic's API starts with an empty text. */
const TEXT = /"(?:content|text)":"[^"]/
/** First character of the lines that name SSE events. */
const NAME_OF_EVENT = 'e'.charCodeAt(0)

/** Counts the lines with content. NDJSON has one per event, and SSE one besides the event name. */
function eventsIn(chunk: Buffer): number {
  let events = 0
  let start = 0
  for (let end = chunk.indexOf(LINE_FEED); end !== -1; end = chunk.indexOf(LINE_FEED, start)) {
    if (end > start && chunk[start] !== NAME_OF_EVENT) events++
    start = end + 1
  }
  return events
}

/** A minimal HTTP client that uses little processor time. It only searches replies for text instead of parsing them. */
export function createClient({ origin, socketPath }: Place): Client {
  const agent = new Agent({ connect: { socketPath }, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 })
  return {
    send: ({ method, path, headers, body, stream }) =>
      new Promise((resolve, reject) => {
        const began = performance.now()
        const outcome: Outcome = { status: 0, firstText: Number.NaN, times: [], events: 0, total: 0, text: '' }
        const chunks: Buffer[] = []
        agent.dispatch(
          { origin, method, path, headers, body, reset: stream },
          {
            onRequestStart() {},
            onResponseStart(_, status) {
              outcome.status = status
            },
            onResponseData(_, chunk) {
              if (!stream) {
                chunks.push(chunk)
                return
              }
              const now = performance.now() - began
              const events = eventsIn(chunk)
              outcome.events += events
              if (Number.isNaN(outcome.firstText)) {
                if (!TEXT.test(chunk.toString('latin1'))) return
                outcome.firstText = now
              }
              for (let event = 0; event < events; event++) outcome.times.push(now)
            },
            onResponseEnd() {
              outcome.total = performance.now() - began
              outcome.text = Buffer.concat(chunks).toString('utf8')
              resolve(outcome)
            },
            onResponseError: (_, error) => reject(error)
          }
        )
      }),
    close: () => agent.close()
  }
}
