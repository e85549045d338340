import { connect, type Socket } from 'node:net'
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import t from 'tap'
import { activeRequests, CAPITAL_ANSWER, capital, DEMO, endless, startCorral, until } from '../support/corral.ts'

// HTTP features that the usual clients do not use.

const CONFIG = 'body_limit: 1MiB\nmodels:\n  corral/tiny-chat:\n    options:\n      num_parallel: 1\n'
const corral = await startCorral(t, { config: CONFIG })
const question = JSON.stringify(capital())

/** Sends text over a new connection. @returns the connection, and all that was received when the server ended it */
function raw(text: string, url = corral.url): { socket: Socket; reply: Promise<string> } {
  const { hostname, port } = new URL(url)
  const socket = connect({ host: hostname, port: Number(port), allowHalfOpen: true })
  let received = ''
  socket.setEncoding('utf8').on('data', part => {
    received += part
  })
  const reply = new Promise<string>((resolve, reject) => {
    socket.once('end', () => resolve(received))
    socket.once('error', reject)
  })
  socket.write(text)
  return { socket, reply }
}

const post = (path: string, body: string, headers = '') =>
  `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${Buffer.byteLength(body)}\r\n${headers}\r\n${body}`

t.test('repeated slashes count as one before the path is checked', async t => {
  for (const path of ['//v1/models', '/v1//models', '///v1///models//']) {
    const { status, body } = await corral.json(path)
    t.equal(status, 200, path)
    t.equal(body.object, 'list', path)
  }
  const chat = await corral.json('//api//chat?x=a//b', question)
  t.equal(chat.body.message?.content, CAPITAL_ANSWER)
  const tags = await corral.json('/ollama//api/tags')
  t.equal(tags.status, 200)
})

t.test('a base address that repeats the path of an API gets an error that says so', async t => {
  const table = [
    ['/v1/v1/chat/completions', '/v1/chat/completions', '/v1'],
    ['/v1/api/chat', '/api/chat', '/v1'],
    ['/api/v1/chat/completions', '/v1/chat/completions', '/api'],
    ['/v1/v1/messages', '/v1/messages', '/v1']
  ] as const
  for (const [path, route, extra] of table) {
    const { status, body } = await corral.json(path, question)
    t.equal(status, 404, path)
    const message = body.error.message ?? body.error
    t.match(message, `The route is ${route}: remove ${extra} from the end of the base address`, path)
  }
  const nothing = await corral.json('/v1/v2/nothing', question)
  t.equal(nothing.status, 404)
  t.notMatch(JSON.stringify(nothing.body), 'base address')
})

t.test('a WebSocket upgrade is refused immediately on every API', async t => {
  const upgrade = 'Connection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n'
  const ask = (path: string, more = '') => raw(`GET ${path} HTTP/1.1\r\nHost: localhost\r\n${upgrade}${more}\r\n`).reply
  for (const path of [
    '/v1/responses',
    '/responses',
    '/ollama/v1/responses',
    '/v1/realtime',
    '/anthropic/x',
    '/api/v0/x'
  ]) {
    const [head, body] = (await ask(path)).split('\r\n\r\n')
    t.match(head, /^HTTP\/1.1 426 .*\r\nupgrade: HTTP\/1.1\r\n/s, path)
    t.match(body, /"(?:code|corral_code)":"websocket_refused"/, path)
  }
  t.match(await ask('/v1/models', 'Connection: close\r\n'), /^HTTP\/1.1 200 /, 'existing routes ignore it')
})

t.test('bodies are decoded from each registered encoding, within the body limit', async t => {
  const send = (path: string, body: Uint8Array<ArrayBuffer>, encoding: string) =>
    fetch(corral.url + path, { method: 'POST', body, headers: { 'content-encoding': encoding } })
  for (const [encoding, encode] of [
    ['gzip', gzipSync],
    ['X-GZIP', gzipSync],
    ['deflate', deflateSync],
    ['br', brotliCompressSync]
  ] as const) {
    const reply = await send('/api/chat', encode(question), encoding)
    t.equal(reply.status, 200, encoding)
    t.equal(((await reply.json()) as any).message.content, CAPITAL_ANSWER, encoding)
  }
  const plain = await send('/api/chat', Buffer.from(question), 'identity')
  t.equal(plain.status, 200)
  await plain.text()

  for (const encoding of ['compress', 'gzip, gzip', '__proto__', 'constructor']) {
    const reply = await send('/v1/chat/completions', gzipSync(question), encoding)
    t.equal(reply.status, 415, encoding)
    t.match(reply.headers.get('accept-encoding'), /^gzip, deflate, br/)
    t.equal(((await reply.json()) as any).error.code, 'unsupported_encoding')
  }
  const wrong: [string, Uint8Array<ArrayBuffer>][] = [
    ['no gzip', Buffer.from(question)],
    ['half of it', gzipSync(question).subarray(0, 40)],
    ['nothing', Buffer.alloc(0)]
  ]
  for (const [what, body] of wrong) {
    const reply = await send('/api/chat', body, 'gzip')
    t.equal(reply.status, 400, what)
    t.match(await reply.json(), { code: /invalid_request|missing_body/ }, what)
  }
  const bomb = await send('/api/chat', gzipSync(Buffer.alloc(2 ** 28, ' ')), 'gzip')
  t.equal(bomb.status, 413, 'a body that grows beyond the limit is refused while it is decoded')
  t.equal(((await bomb.json()) as any).code, 'body_too_large')
})

t.test('OPTIONS is answered on routes that no page asks for', async t => {
  const ask = (path: string) => fetch(corral.url + path, { method: 'OPTIONS' })
  const tags = await ask('/api/tags')
  t.equal(tags.status, 204)
  t.equal(tags.headers.get('allow'), 'GET, HEAD, OPTIONS')
  t.equal((await ask('/v1/chat/completions')).headers.get('allow'), 'POST, OPTIONS')
  t.equal((await ask('/ollama/api/chat')).status, 204)
  t.equal((await ask('/nothing/here')).status, 404)
  const { socket, reply } = raw('OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n')
  socket.end()
  t.match(await reply, /^HTTP\/1\.1 204 /)
})

t.test('a client that has ended its side of the connection still gets its answer', async t => {
  for (const stream of [false, true]) {
    const body = JSON.stringify({ ...JSON.parse(question), stream })
    const { socket, reply } = raw(post('/api/chat', body))
    socket.end()
    const text = await reply
    t.match(text, /HTTP\/1\.1 200 OK/)
    t.match(text, 'Paris')
    t.match(text, stream ? /"done_reason":"stop"/ : CAPITAL_ANSWER)
  }
  t.match(await raw('GET /api/tags HTTP/1.0\r\n\r\n').reply, 'corral/tiny-chat')
})

t.test('a client that disconnects frees its place in the queue and its slot', async t => {
  const stay = new AbortController()
  const first = await corral.send('/api/chat', endless(DEMO), { signal: stay.signal })
  await until('the slot is taken', async () => (await activeRequests(corral)) === 1)
  const waiting = [question, JSON.stringify({ ...endless(DEMO), stream: false })].map(body =>
    raw(post('/api/chat', body))
  )
  await until('two wait', async () => (await activeRequests(corral)) === 3)
  for (const { socket, reply } of waiting) {
    reply.catch(() => undefined)
    socket.end()
    socket.destroy()
  }
  await until('nobody waits', async () => (await activeRequests(corral)) === 1, 5000)
  stay.abort()
  first.body?.cancel().catch(() => undefined)
  await until('the slot is free', async () => (await activeRequests(corral)) === 0, 5000)
  const { status } = await corral.json('/api/chat', question)
  t.equal(status, 200, 'the next one gets it')
})

t.test('requests on open connections during a shutdown are refused in the format of their API', async t => {
  const ending = await startCorral(t, { config: 'shutdown_grace: 60s\n' })
  const stay = new AbortController()
  const running = await ending.send('/api/chat', endless(DEMO), { signal: stay.signal })
  // Connections with an unfinished request stay open.
  const begun = (line: string) => raw(`${line} HTTP/1.1\r\nHost: localhost\r\n`, ending.url)
  const table = [
    { request: begun('GET /api/tags'), words: /{"error":"corral is shutting down/ },
    { request: begun('GET /v1/models'), words: /{"error":{.*"type":"server_error"/ },
    { request: begun('GET /anthropic/v1/models'), words: /{"type":"error"/ },
    { request: begun('GET /ollama/api/tags'), words: /{"error":"corral is shutting down/ },
    { request: begun('GET /nothing/here'), words: /{"error":"corral is shutting down/ }
  ]
  // This answer shows that the server has handled the earlier requests.
  await ending.json('/api/health')
  const ended = ending.end('SIGTERM')
  const refusesConnections = () =>
    new Promise<boolean>(resolve => {
      const { hostname, port } = new URL(ending.url)
      const socket = connect({ host: hostname, port: Number(port) })
      socket.once('connect', () => resolve(false)).once('error', () => resolve(true))
      socket.once('connect', () => socket.destroy())
    })
  await until('it accepts no connections', refusesConnections)
  for (const { request, words } of table) {
    request.socket.write('\r\n')
    const reply = await request.reply
    t.match(reply, /^HTTP\/1\.1 503 /)
    t.match(reply, words)
    t.match(reply, '"code":"shutting_down"')
    t.match(reply, /\r\nretry-after: 1\r\n/i)
    t.match(reply, /\r\nconnection: close\r\n/i)
    t.notMatch(reply, /x-should-retry/i, 'clients may retry automatically')
  }
  stay.abort()
  running.body?.cancel().catch(() => undefined)
  t.equal(await ended, 0)
})

t.test('a path with repeated slashes needs a key', async t => {
  await corral.reload(`${CONFIG}security: { api_keys: [a-key-that-is-long-enough-for-it] }`)
  for (const path of ['//api/tags', '/api//tags', '/api/health//../tags']) {
    t.match(await corral.json(path), { status: /40[14]/ }, path)
  }
})
