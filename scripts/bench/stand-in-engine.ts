/**
 * Speaks llama-server's protocol but computes nothing. corral starts it as its engine, so that the processor time of a
 * gateway can be measured without a busy engine. The first argument is the pace, followed by llama-server's own
 * arguments:
 *
 *     stand-in-engine.js burst --host engine.sock --parallel 16 … an answer in one write
 *     stand-in-engine.js 20 --host engine.sock --parallel 16 … 20 tokens per second per stream
 *
 * llama-server computes the next token of all slots in one batch, so the tokens of all streams are sent at the same
 * time.
 */
import { createServer, type Socket } from 'node:net'
import { parseArgs } from 'node:util'

const [pace = 'burst', ...given] = process.argv.slice(2)
const { values } = parseArgs({
  args: given,
  strict: false,
  options: {
    host: { type: 'string' },
    port: { type: 'string' },
    parallel: { type: 'string' },
    'ctx-size': { type: 'string' },
    alias: { type: 'string' }
  }
})
const slots = Number(values.parallel ?? 1)
const contextSize = Math.floor(Number(values['ctx-size'] ?? 4096) / slots)
const DEFAULT_TOKENS = 16

const EVENT = `"created":1700000000,"id":"chatcmpl-StandInStandInStandInStandInStan","model":${JSON.stringify(values.alias ?? '')},"system_fingerprint":"b1-standin","object":"chat.completion.chunk"`
const TIMINGS = (tokens: number) =>
  `"timings":{"cache_n":0,"prompt_n":19,"prompt_ms":2.967,"prompt_per_token_ms":0.156,"prompt_per_second":6403.77,"predicted_n":${tokens},"predicted_ms":${tokens},"predicted_per_token_ms":1,"predicted_per_second":1000}`
const STREAM_HEAD = Buffer.from(
  'HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: \r\nX-Accel-Buffering: no\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n'
)
/** llama-server sends each event as its own HTTP chunk. */
const httpChunk = (text: string) => `${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`
const event = (choice: string, more = '') => httpChunk(`data: {"choices":[{${choice}}],${EVENT}${more}}\n\n`)
const role = '"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}'
const progress = (processed: number) =>
  event(role, `,"prompt_progress":{"total":19,"cache":0,"processed":${processed},"time_ms":2}`)
const PROGRESS = Buffer.from(progress(0) + progress(19))
const ROLE = Buffer.from(event(role))
const TOKEN = Buffer.from(event('"finish_reason":null,"index":0,"delta":{"content":" word"}'))
const END = Buffer.from(`${httpChunk('data: [DONE]\n\n')}0\r\n\r\n`)
const finish = (tokens: number) =>
  Buffer.from(event('"finish_reason":"length","index":0,"delta":{}', `,${TIMINGS(tokens)}`))

function reply(value: string): Buffer {
  const head = `HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: ${Buffer.byteLength(value)}\r\nKeep-Alive: timeout=5, max=100\r\n\r\n`
  return Buffer.from(head + value)
}

const wholeAnswer = (tokens: number) =>
  reply(
    `{"choices":[{"finish_reason":"length","index":0,"message":{"role":"assistant","content":"${' word'.repeat(tokens)}"}}],${EVENT.replace('.chunk', '')},"usage":{"completion_tokens":${tokens},"prompt_tokens":19,"total_tokens":${tokens + 19},"prompt_tokens_details":{"cached_tokens":0}},${TIMINGS(tokens)}}`
  )

/** Caches the body for each answer length, so that building it is not measured. */
function remembered<T>(make: (tokens: number) => T): (tokens: number) => T {
  const known = new Map<number, T>()
  return tokens => {
    let value = known.get(tokens)
    if (value === undefined) {
      value = make(tokens)
      known.set(tokens, value)
    }
    return value
  }
}
const cachedWhole = remembered(wholeAnswer)
const cachedEnd = remembered(tokens => Buffer.concat([finish(tokens), END]))
const cachedBurst = remembered(tokens => Buffer.concat([ROLE, ...Array(tokens).fill(TOKEN), finish(tokens), END]))

const PROPS = reply(JSON.stringify({ default_generation_settings: { n_ctx: contextSize }, total_slots: slots }))
const HEALTH = reply('{"status":"ok"}')
let busy = 0
const slotStates = () =>
  reply(
    JSON.stringify(Array.from({ length: slots }, (_, id) => ({ id, n_ctx: contextSize, is_processing: id < busy })))
  )

/** Receiver of an answer. llama-server closes the connection afterwards if the client asked for it. */
interface Client {
  socket: Socket
  close: boolean
}

const send = ({ socket, close }: Client, bytes: Buffer) => void (close ? socket.end(bytes) : socket.write(bytes))

/** Answers that get a token at each tick. */
const running = new Set<{ left: number; tokens: number; to: Client; streamed: boolean }>()
if (pace !== 'burst') {
  setInterval(() => {
    for (const answer of running) {
      const { to, streamed, tokens } = answer
      answer.left--
      if (answer.left > 0 && !to.socket.destroyed) {
        if (streamed) to.socket.write(TOKEN)
        continue
      }
      running.delete(answer)
      if (streamed) to.socket.end(Buffer.concat([TOKEN, cachedEnd(tokens)]))
      else send(to, cachedWhole(tokens))
    }
    busy = running.size
  }, 1000 / Number(pace))
}

const numberAfter = (body: Buffer, name: string): number | undefined => {
  const at = body.indexOf(name)
  return at === -1 ? undefined : Number.parseInt(body.toString('latin1', at + name.length, at + name.length + 10), 10)
}

function answer(to: Client, body: Buffer): void {
  const tokens = numberAfter(body, '"max_tokens":') ?? DEFAULT_TOKENS
  const streamed = body.includes('"stream":true')
  const head = body.includes('"return_progress":true') ? [STREAM_HEAD, PROGRESS] : [STREAM_HEAD]
  if (pace !== 'burst') {
    if (streamed) to.socket.write(Buffer.concat([...head, ROLE]))
    running.add({ left: tokens, tokens, to, streamed })
  } else if (streamed) {
    // llama-server closes the connection after every stream.
    to.socket.end(Buffer.concat([...head, cachedBurst(tokens)]))
  } else send(to, cachedWhole(tokens))
}

function handle(to: Client, path: string, body: Buffer): void {
  if (path === '/v1/chat/completions' || path === '/v1/completions') answer(to, body)
  else if (path === '/props') send(to, PROPS)
  else if (path === '/health') send(to, HEALTH)
  else if (path.startsWith('/slots')) send(to, slotStates())
  else to.socket.end('HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}')
}

createServer(socket => {
  let received: Buffer = Buffer.alloc(0)
  socket.on('error', () => {
    // The gateway has gone. Its requests end with the socket.
  })
  socket.on('data', chunk => {
    received = received.length === 0 ? chunk : Buffer.concat([received, chunk])
    const end = received.indexOf('\r\n\r\n')
    if (end === -1) return
    const head = received.toString('latin1', 0, end)
    const length = Number(/\r\ncontent-length: *(\d+)/i.exec(head)?.[1] ?? 0)
    if (received.length < end + 4 + length) return
    const body = received.subarray(end + 4, end + 4 + length)
    received = received.subarray(end + 4 + length)
    handle({ socket, close: /\r\nconnection: *close/i.test(head) }, head.split(' ', 2)[1] ?? '', body)
  })
}).listen(values.port ? { port: Number(values.port), host: values.host } : { path: values.host }, () =>
  process.stdout.write('cmd_child_to_router:state:{"state":"ready","payload":{}}\n')
)

// As a router's child, llama-server exits when its standard input closes, or on request.
process.stdin.on('data', () => process.exit(0)).on('end', () => process.exit(1))
process.on('SIGTERM', () => process.exit(0))
