import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { Agent, fetch } from 'undici'
import { CAPITAL_QUESTION, DEMO } from '../support/corral.ts'

/*
 * Malicious clients in a separate process, so that generating their requests costs no measured process any time. The
 * parent names the server to attack, and receives the findings when it ends the attack.
 */

/** The parent's first message. Its second message ends the attack. */
export interface Orders {
  url: string
  /** The API key of each client, by its name in `ATTACKS`. Clients without a key do not take part. */
  keys: Record<string, string>
}

/** The answer to the second message: how often each client met which code or status. */
export type Findings = Record<string, Record<string, number>>

/** One round of a client's attack. Returns the status or code that it met. */
type Attack = (url: string, headers: Record<string, string>, signal: AbortSignal) => Promise<string>

const dispatcher = new Agent({ headersTimeout: 0, bodyTimeout: 0, pipelining: 0 })

async function send(
  address: string,
  body: unknown,
  headers: Record<string, string>,
  signal?: AbortSignal
): Promise<string> {
  const response = await fetch(address, {
    dispatcher,
    method: body === undefined ? 'GET' : 'POST',
    headers: { ...(body !== undefined && { 'content-type': 'application/json' }), ...headers },
    ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    ...(signal && { signal })
  })
  const text = await response.text()
  try {
    const answer = JSON.parse(text)
    return String(answer.code ?? answer.error?.code ?? response.status)
  } catch {
    return String(response.status)
  }
}

const ask =
  (path: string, body: () => unknown): Attack =>
  async (url, headers, signal) =>
    await send(url + path, body(), headers, signal)

const chat = (more: object) => ({ model: DEMO, messages: [CAPITAL_QUESTION], ...more })

const GRAMMAR = 'root ::= a a a a a a a a\na ::= b{0,20}\nb ::= c{0,20}\nc ::= [a-z]? [0-9]?'
/** A grammar with few enough repetitions to be admitted, which still takes the engine long. */
const SLY_GRAMMAR = 'root ::= a a a a a a\na ::= b? b? b? b? b?\nb ::= [a-z]? [0-9]? [a-z]? [0-9]?'

/** Generated once, so that generating it takes no processor time from the server. */
const BRACKETS = '['.repeat(20_000_000)
const COMMAS = `[${'0,'.repeat(10_000_000)}0]`

/** Sends bytes on a new connection and keeps it open for a while. */
async function hold(url: string, text: string, signal: AbortSignal, reads = false): Promise<string> {
  const { hostname, port } = new URL(url)
  const socket: Socket = connect(Number(port), hostname)
  socket.on('error', () => {
    // The server may close it at any time.
  })
  socket.write(text)
  if (!reads) socket.pause()
  await sleep(20_000, undefined, { signal }).catch(() => {})
  socket.destroy()
  return 'held'
}

const post = (path: string, headers: Record<string, string>, body: string, length = Buffer.byteLength(body)) =>
  [
    `POST ${path} HTTP/1.1`,
    'host: localhost',
    'content-type: application/json',
    `content-length: ${length}`,
    ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
    '',
    body
  ].join('\r\n')

export const ATTACKS: Record<string, Attack> = {
  'reads nothing': (url, headers, signal) =>
    hold(
      url,
      post(
        '/v1/chat/completions',
        headers,
        JSON.stringify(chat({ stream: true, max_tokens: 4000, ignore_eos: true, logprobs: true, top_logprobs: 20 }))
      ),
      signal
    ),
  'endless answers': ask('/v1/chat/completions', () => chat({ max_tokens: -1, ignore_eos: true, stream: true })),
  'a hundred at once': async (url, headers, signal) => {
    const body = chat({ max_tokens: 64, ignore_eos: true })
    const codes = await Promise.all(
      Array.from({ length: 100 }, async () => await send(`${url}/v1/chat/completions`, body, headers, signal))
    )
    return codes.includes('200') ? 'some answered' : codes[0]!
  },
  'leaves early': async (url, headers, signal) => {
    const early = AbortSignal.any([signal, AbortSignal.timeout(300)])
    const body = chat({ max_tokens: 3000, ignore_eos: true, stream: true })
    return await send(`${url}/v1/chat/completions`, body, headers, early).catch(() => 'left')
  },
  'explosive grammar': ask('/v1/chat/completions', () => chat({ grammar: GRAMMAR, max_tokens: 200 })),
  'sly grammar': ask('/v1/chat/completions', () => chat({ grammar: SLY_GRAMMAR, max_tokens: 200 })),
  'nested schema': ask('/v1/chat/completions', () =>
    chat({
      max_tokens: 200,
      response_format: {
        type: 'json_schema',
        json_schema: {
          name: 'x',
          schema: {
            type: 'array',
            maxItems: 100,
            items: { type: 'array', maxItems: 100, items: { type: 'string', maxLength: 1000 } }
          }
        }
      }
    })
  ),
  'many prompts': ask('/v1/embeddings', () => ({ model: DEMO, input: Array.from({ length: 20_000 }, () => 'x') })),
  'as many prompts as it may': ask('/v1/embeddings', () => ({
    model: DEMO,
    input: Array.from({ length: 2000 }, (_, index) => `number ${index}`)
  })),
  'changing load options': ask('/api/chat', () => ({
    ...chat({ stream: false }),
    options: { num_ctx: Math.random() < 0.5 ? 1024 : 2048 + 256 * Math.ceil(Math.random() * 8), max_tokens: 4 }
  })),
  'a large context': ask('/api/chat', () => ({
    ...chat({ stream: false }),
    options: { num_ctx: 2_147_483_647, num_parallel: 256 }
  })),
  brackets: ask('/v1/chat/completions', () => BRACKETS),
  commas: ask('/v1/chat/completions', () => COMMAS),
  'wrong keys': async url => {
    const headers = { authorization: `Bearer corral_${Math.random()}` }
    const codes = await Promise.all(
      Array.from({ length: 20 }, async () => await send(`${url}/api/tags`, undefined, headers))
    )
    return codes[0]!
  },
  'half a request': (url, headers, signal) => hold(url, post('/api/chat', headers, '{"model":', 5000), signal),
  'half a head': (url, _, signal) => hold(url, 'GET /api/tags HTTP/1.1\r\nhost: localhost\r\nx-', signal, true),
  'what only others may': async (url, headers, signal) => {
    const codes: string[] = []
    for (const [path, body] of [
      ['/api/stop', { model: DEMO }],
      ['/api/runtimes/install', { archive: '/tmp/none.tar.gz' }],
      ['/api/import', { model: 'a/b', path: '/etc/passwd' }],
      ['/api/pull', { model: 'http://127.0.0.1:1/x.gguf' }]
    ] as const) {
      codes.push(await send(url + path, body, headers, signal))
    }
    return [...new Set(codes)].join(' ')
  }
}

async function attack({ url, keys }: Orders): Promise<void> {
  const end = new AbortController()
  const met: Findings = {}
  const clients = Object.entries(keys).map(async ([name, key]) => {
    const outcomes: Record<string, number> = {}
    met[name] = outcomes
    while (!end.signal.aborted) {
      const signal = AbortSignal.any([end.signal, AbortSignal.timeout(30_000)])
      const outcome = await ATTACKS[name]!(url, { authorization: `Bearer ${key}` }, signal).catch(() => 'cut')
      outcomes[outcome] = (outcomes[outcome] ?? 0) + 1
      await sleep(100)
    }
  })
  process.once('message', async () => {
    end.abort()
    await Promise.all(clients)
    process.send!(met, () => process.disconnect())
  })
}

// The trial imports the names of the attacks from this file.
if (process.send) {
  process.once('message', orders => void attack(orders as Orders))
  process.once('disconnect', () => process.exit())
}
