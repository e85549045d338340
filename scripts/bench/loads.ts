import type { EngineKind } from './benched-engines.ts'
import { type Contender, ENGINE_ITSELF } from './benched-servers.ts'
import type { Request } from './client.ts'
import { MODEL } from './corral-server.ts'

/** Names of loads for `--only`. */
export const LOAD_GROUPS = ['short', 'streams', 'many', 'bodies', 'turns', 'open'] as const

export interface Load {
  group: (typeof LOAD_GROUPS)[number]
  /** Engines that run this load by default. */
  engines: readonly EngineKind[]
  stream: boolean
  /** Number of concurrent requests. Unlimited if there is a rate. */
  concurrent: number
  /** Requests started per second, whether or not earlier ones have finished (an open loop). */
  rate?: number
  requests: number
  tokens: number
  /** Size of a long question in bytes. */
  bytes?: number
  turns?: number
}

const short = (concurrent: number, requests: number, engines: readonly EngineKind[]): Load => ({
  ...{ group: 'short', engines, stream: false, concurrent, requests, tokens: 8 }
})
const streams = (concurrent: number, requests: number, tokens: number): Load => ({
  ...{ group: 'streams', engines: ['real', 'burst'], stream: true, concurrent, requests, tokens }
})
const burst = (group: Load['group'], requests: number, more: Partial<Load>): Load => ({
  ...{ group, engines: ['burst'], stream: false, concurrent: 4, requests, tokens: 8, ...more }
})

export const LOADS: readonly Load[] = [
  short(1, 60, ['real', 'burst']),
  short(4, 120, ['real']),
  short(16, 240, ['real', 'burst']),
  streams(1, 8, 256),
  streams(4, 16, 256),
  streams(16, 48, 128),
  ...[1, 4, 16, 64, 256].map(
    (concurrent): Load => ({
      ...{ group: 'many', engines: ['paced'], stream: true, concurrent, requests: concurrent, tokens: 40 }
    })
  ),
  ...[1000, 10_000, 100_000, 1_000_000].map(bytes => burst('bodies', bytes > 500_000 ? 20 : 60, { bytes })),
  ...[2, 20, 200].map(turns => burst('turns', 60, { turns })),
  ...[50, 100, 200].map(rate => burst('open', rate * 2, { rate, concurrent: 1 }))
]

const thousands = (value: number) => value.toLocaleString('en')

export function formatTitle({ stream, concurrent, rate, tokens, bytes, turns }: Load): string {
  const parts = [
    rate === undefined ? `${concurrent} concurrent` : `${rate} per second`,
    `${tokens} tokens each`,
    ...(bytes === undefined ? [] : [`questions of ${thousands(bytes)} bytes`]),
    ...(turns === undefined ? [] : [`conversations of ${turns} messages`])
  ]
  return `${stream ? 'Streams' : 'Short answers'}: ${parts.join(', ')}`
}

const QUESTION = 'What is the capital of France?'
const ANSWER = 'The capital of France is Paris, which lies on the river Seine in the north of the country.'

function createMessages({ bytes, turns = 1 }: Load): { role: string; content: string }[] {
  const question = bytes === undefined ? QUESTION : QUESTION.padEnd(bytes, ' And that of Spain?')
  // The last message is the user's.
  return Array.from({ length: turns }, (_, index) =>
    (turns - index) % 2 === 1 ? { role: 'user', content: question } : { role: 'assistant', content: ANSWER }
  )
}

/** A way to get an answer: a contender, and one of its APIs. */
export interface Way {
  name: string
  contender: Contender
  request: Request
}

/** Everything that affects the engine's work is explicit, so that all ways give it the same work. */
const SAMPLING = { temperature: 0, top_p: 0.9, top_k: 40, seed: -1, ignore_eos: true }

const OPTION_FIELDS: Record<string, (sampling: typeof SAMPLING & { max_tokens: number }) => object> = {
  '/v1/chat/completions': sampling => sampling,
  '/api/chat': options => ({ options }),
  '/v1/messages': ({ max_tokens, ...options }) => ({ max_tokens, options })
}

/** The ways to send a load to a contender. All have the OpenAI API. corral has others too. */
export function listWays(contender: Contender, load: Load): Way[] {
  const { stream } = load
  const messages = createMessages(load)
  const way = (name: string, path: string, headers: Record<string, string> = {}): Way => {
    const sampling = { ...SAMPLING, max_tokens: load.tokens }
    const body = JSON.stringify({ model: MODEL, messages, stream, ...OPTION_FIELDS[path]!(sampling) })
    const all = { 'content-type': 'application/json', ...contender.headers, ...headers }
    return { name, contender, request: { method: 'POST', path, headers: all, body, stream } }
  }
  const hosted = '/v1/chat/completions'
  if (contender.name !== 'corral') return [way(contender.name, hosted)]
  return [
    way('corral /v1', hosted),
    way(stream ? 'corral /api sse' : 'corral /api', '/api/chat'),
    ...(stream
      ? [
          way('corral /api ndjson', '/api/chat', { accept: 'application/x-ndjson' }),
          way('corral /v1/messages', '/v1/messages')
        ]
      : [])
  ]
}

export const isDirect = ({ contender }: Way) => contender.name === ENGINE_ITSELF
