import type { Ask, Client } from './client.ts'

/** One way to get the same answer. */
export interface Target {
  name: string
  client: Client
  ask(tokens: number, stream: boolean): Ask
}

export const MODEL = 'corral/tiny-chat'
const MESSAGES = [{ role: 'user', content: 'What is the capital of France?' }]
/** All that decides the engine's work is said outright, so that each way gives it the same. */
const SAMPLING = { temperature: 0, top_p: 0.9, top_k: 40, seed: -1, ignore_eos: true }

const hosted = (max_tokens: number) => ({ ...SAMPLING, max_tokens })
const native = (max_tokens: number) => ({ options: { ...SAMPLING, max_tokens } })

function target(
  name: string,
  client: Client,
  path: string,
  sampling: (tokens: number) => object,
  headers: Record<string, string> = {}
): Target {
  return {
    name,
    client,
    ask: (tokens, stream) => ({
      method: 'POST',
      path,
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify({ model: MODEL, messages: MESSAGES, stream, ...sampling(tokens) }),
      stream
    })
  }
}

/** The engine itself first: the others are measured against it. */
export function targets(engine: Client, key: string, gateway: Client, streamed: boolean): Target[] {
  return [
    target('direct', engine, '/v1/chat/completions', hosted, { authorization: `Bearer ${key}` }),
    target('/v1', gateway, '/v1/chat/completions', hosted),
    target(streamed ? '/api sse' : '/api', gateway, '/api/chat', native),
    ...(streamed ? [target('/api ndjson', gateway, '/api/chat', native, { accept: 'application/x-ndjson' })] : [])
  ]
}
