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

const JSON_BODY = { 'content-type': 'application/json' }

function hosted(name: string, client: Client, headers: Record<string, string>): Target {
  return {
    name,
    client,
    ask: (tokens, stream) => ({
      method: 'POST',
      path: '/v1/chat/completions',
      headers: { ...JSON_BODY, ...headers },
      body: JSON.stringify({ model: MODEL, messages: MESSAGES, stream, max_tokens: tokens, ...SAMPLING }),
      stream
    })
  }
}

function native(name: string, client: Client, headers: Record<string, string>): Target {
  return {
    name,
    client,
    ask: (tokens, stream) => ({
      method: 'POST',
      path: '/api/chat',
      headers: { ...JSON_BODY, ...headers },
      body: JSON.stringify({ model: MODEL, messages: MESSAGES, stream, options: { ...SAMPLING, max_tokens: tokens } }),
      stream
    })
  }
}

/** The engine itself first: the others are measured against it. */
export function targets(engine: Client, key: string, gateway: Client, streamed: boolean): Target[] {
  return [
    hosted('direct', engine, { authorization: `Bearer ${key}` }),
    hosted('/v1', gateway, {}),
    native(streamed ? '/api sse' : '/api', gateway, {}),
    ...(streamed ? [native('/api ndjson', gateway, { accept: 'application/x-ndjson' })] : [])
  ]
}
