import { Agent } from 'undici'

/** Where a request goes: a server of TCP, or an engine's own Unix socket. All are asked by the same code. */
export interface Place {
  origin: string
  socketPath?: string
}

export interface Request {
  method: 'GET' | 'POST'
  path: string
  headers: Record<string, string>
  body?: string
  /** A streamed reply: times of its chunks are taken. Its connection serves no other request. */
  stream: boolean
}

/** What came back. Times are milliseconds since the request was begun. */
export interface Outcome {
  status: number
  /** Time of the first chunk with text of the answer. */
  firstText: number
  /** Times of the chunks with text, the first one included; one for each event, also where several came at once. */
  times: number[]
  /** Events and comments, of whatever kind. */
  events: number
  total: number
  /** The reply, where it is not streamed. */
  text: string
}

export interface Client {
  send(request: Request): Promise<Outcome>
  close(): Promise<void>
}

const LINE_FEED = 10
/** Text of an answer; Anthropic's API begins with an empty one. */
const TEXT = /"(?:content|text)":"[^"]/
/** With it begin the lines that name events of SSE. */
const NAME_OF_EVENT = 'e'.charCodeAt(0)

/** Lines of a stream that say something: each event of NDJSON is one, and each of SSE has one besides its name. */
function eventsIn(chunk: Buffer): number {
  let events = 0
  let start = 0
  for (let end = chunk.indexOf(LINE_FEED); end !== -1; end = chunk.indexOf(LINE_FEED, start)) {
    if (end > start && chunk[start] !== NAME_OF_EVENT) events++
    start = end + 1
  }
  return events
}

/** A small HTTP client that costs little processor time itself: it parses nothing but looks for the text of answers. */
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
