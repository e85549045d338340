import type { Corral } from '../../../support/corral.ts'

/* Answers of a gateway and of a node without what differs. */

/** Fields that differ between answers, or that show the place of a model. */
const OWN =
  /^(id|request_?id|created(_at)?|(completed|in_progress|finalizing|expires|started)_at|timings?|.*_duration|item_id|obfuscation|cached_tokens|cache_(read|creation).*|tokens_cached|reused|response_?id|call_id|load_.*|stats|id_slot|format|runtime|source|files|can_remove|compatibility_type|kind|from|time_ms|member|running|loaded_at|reserved|budget|free)$/i

/** An answer without them. */
function plain(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(plain)
  if (typeof value === 'number') return Math.round(value * 1e4) / 1e4
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value).flatMap(([name, field]) => (OWN.test(name) ? [] : [[name, plain(field)]]))
  )
}

/** The heartbeat of a transcript. */
const SILENCE = 'data: {"type":"transcript.text.delta","delta":""}'

/** The events, lines or the whole of a reply. Text is joined, since it comes in any chunks. */
export function parsed(text: string, type: string): unknown {
  if (type.includes('event-stream')) {
    return text
      .split('\n')
      .filter(line => line !== '' && !line.startsWith(':') && line !== SILENCE)
      .map(line => (line.startsWith('data: {') ? plain(JSON.parse(line.slice(6))) : line))
  }
  if (type.includes('ndjson')) return text.split('\n').flatMap(line => (line ? [plain(JSON.parse(line))] : []))
  return type.includes('json') ? plain(JSON.parse(text)) : text
}

const HEADERS = ['content-type', 'x-corral-clamped', 'x-corral-unenforced-schema', 'x-should-retry', 'retry-after']

export async function ask(server: Corral, path: string, body?: object | string | FormData) {
  const reply =
    body instanceof FormData ? await fetch(server.url + path, { method: 'POST', body }) : await server.send(path, body)
  const type = reply.headers.get('content-type') ?? ''
  return {
    status: reply.status,
    headers: HEADERS.map(name => `${name}: ${reply.headers.get(name)}`),
    body: parsed(await reply.text(), type)
  }
}
