import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral, until } from '../support/corral.ts'
import { readFixture } from '../support/fixture.ts'
import { openSocket } from '../support/raw-requests.ts'

t.setTimeout(1_200_000)
// Pulls and installations must fail immediately instead of contacting the network.
const corral = await startCorral(t, {
  env: { HF_HUB_OFFLINE: '1' },
  config: 'defaults: { max_tokens: 8 }\nbody_limit: 64MiB'
})

/** Every operation with a body in the server's API document. */
async function operations(): Promise<{ method: string; path: string }[]> {
  const { paths } = (await corral.json('/openapi.json')).body
  return Object.entries<object>(paths).flatMap(([path, methods]) =>
    Object.entries<any>(methods)
      .filter(([, operation]) => operation.requestBody)
      .map(([method]) => ({ method: method.toUpperCase(), path: path.replaceAll(/\{\w+\}/g, 'x') }))
      // Mounted copies are the same operations.
      .filter(({ path }) => !path.startsWith('/anthropic/') && !(path.startsWith('/ollama/') && paths[path.slice(7)]))
  )
}

const deep = (depth: number, open: string, close: string) => open.repeat(depth) + close.repeat(depth)
const model = JSON.stringify(DEMO)
const chat = `"model":${model},"messages":[{"role":"user","content":"Hi"}]`

/** Bodies that are not JSON, or JSON that makes no sense. */
const bodies: Record<string, string | Buffer> = {
  ...Object.fromEntries(
    Object.entries(readFixture<Record<string, string>>('hostile-bodies.yaml')).map(([name, body]) => [
      name,
      body.replaceAll('CHAT', chat).replaceAll('MODEL', model)
    ])
  ),
  blanks: ' \n\t ',
  'a byte order mark': `\uFEFF{${chat}}`,
  'UTF-16': Buffer.from(`{${chat}}`, 'utf16le'),
  'bytes that are not UTF-8': Buffer.concat([
    Buffer.from('{"model":"'),
    Buffer.from([0xff, 0xfe, 0x80]),
    Buffer.from('"}')
  ]),
  'control characters': '{"model":"a/\u0001b"}',
  'many lists': deep(100_000, '[', ']'),
  'many objects': `${'{"a":'.repeat(50_000)}1${'}'.repeat(50_000)}`,
  'deep options': `{${chat},"options":${'{"a":'.repeat(5000)}1${'}'.repeat(5000)}}`,
  'deep content': `{"model":${model},"messages":[{"role":"user","content":${deep(5000, '[', ']')}}],"input":${deep(5000, '[', ']')},"prompt":${deep(5000, '[', ']')}}`,
  'a deep schema': `{${chat},"format":${'{"properties":{"a":'.repeat(2000)}{}${'}}'.repeat(2000)},"response_format":{"type":"json_schema","json_schema":{"schema":${'{"items":'.repeat(2000)}{}${'}'.repeat(2000)}}}}`,
  'deep tools': `{${chat},"tools":[{"type":"function","name":"f","input_schema":{},"function":{"name":"f","parameters":${'{"properties":{"a":'.repeat(1000)}{}${'}}'.repeat(1000)}}}]}`,
  'a number of many digits': `{${chat},"seed":${'9'.repeat(100_000)}}`,
  'many keys': `{${chat},${Array.from({ length: 50_000 }, (_, i) => `"k${i}":${i}`).join(',')}}`,
  'many messages': `{"model":${model},"messages":[${Array(2000).fill('{"role":"user","content":"a"}').join(',')}]}`,
  'many inputs': `{"model":${model},"input":[${Array(2000).fill('""').join(',')}],"documents":[${Array(2000).fill('"a"').join(',')}],"query":"a"}`
}

/** 60 MB of valid content. */
const large: Record<string, () => string> = {
  'a long text': () =>
    `{"model":${model},"max_tokens":2,"messages":[{"role":"user","content":"${'word '.repeat(12_000_000)}"}]}`,
  'a long image': () =>
    `{"model":${model},"max_tokens":2,"messages":[{"role":"user","content":"x","images":["${'A'.repeat(60_000_000)}"]}]}`,
  blanks: () => `{"model":${model}${' '.repeat(60_000_000)}}`,
  lists: () => `{"model":${model},"messages":[${'[],'.repeat(20_000_000)}[]]}`
}

/** Long work that a malicious body could really start. */
const LONG_WORK = /\/(install|upgrade)$/

async function stillWell(t: Test, after: string): Promise<void> {
  const { status, body } = await corral.json('/api/chat', {
    model: DEMO,
    messages: [CAPITAL_QUESTION],
    options: { temperature: 0, max_tokens: 40 },
    stream: false
  })
  t.match({ status, answer: body.message?.content }, { status: 200, answer: CAPITAL_ANSWER }, `well after ${after}`)
}

function getCode(body: any): unknown {
  return body?.code ?? body?.error?.code ?? body?.error?.type
}

/** The reply, or the error. Streams are read to their end. */
async function ask(method: string, path: string, body: string | Buffer, type = 'application/json') {
  const signal = AbortSignal.timeout(120_000)
  const response = await corral.send(path, body as string, { method, headers: { 'content-type': type }, signal })
  const text = await response.text()
  let json: unknown
  try {
    json = JSON.parse(text)
  } catch {
    // A stream, or the page.
  }
  return { status: response.status, text: text.slice(0, 300), json }
}

t.test('malicious bodies on every route are refused or answered, and never crash the server', async t => {
  const all = (await operations()).filter(({ path }) => !LONG_WORK.test(path))
  t.ok(all.length > 25, `${all.length} operations`)
  for (const [name, body] of Object.entries(bodies)) {
    // Operations that remove the model run last.
    const harmless = all.filter(
      ({ path }) => !(String(body).includes(DEMO) && /\/(delete|default|stop|copy|create)$/.test(path))
    )
    for (const { method, path } of harmless) {
      const reply = await ask(method, path, body)
      const place = `${method} ${path} with ${name}: ${reply.status} ${reply.text}`
      if (reply.status >= 400) t.ok(getCode(reply.json), place)
      // Cards come from a hub, which is not reachable.
      const isHub = reply.status === 502 && path === '/api/card'
      t.ok(reply.status < 500 || reply.status === 501 || (reply.status === 503 && path !== '/api/chat') || isHub, place)
      t.notMatch(reply.text, /\bat .*\.(js|ts):\d+|root:x:0/, place)
    }
  }
  await stillWell(t, 'all of them')
  t.notMatch(corral.log(), /"level":60|Unhandled|FATAL/i)
})

t.test('bodies of 60 MB are answered or refused', async t => {
  for (const [name, make] of Object.entries(large)) {
    const body = make()
    for (const path of ['/api/chat', '/v1/chat/completions']) {
      const reply = await ask('POST', path, body)
      t.ok(reply.status < 500, `${path} with ${name}: ${reply.status} ${reply.text}`)
      if (reply.status >= 400) t.ok(getCode(reply.json), reply.text)
    }
    await stillWell(t, name)
  }
  const many = await ask('POST', '/v1/chat/completions', large.lists!())
  t.match(many, { status: 413, json: { error: { code: 'body_too_large', message: /has more than/ } } })
  // The server answers before the whole body has arrived, and some clients report only the broken connection.
  const more = await ask('POST', '/v1/chat/completions', Buffer.alloc(65 * 2 ** 20, 32)).catch(error => error)
  if (more instanceof Error) t.match(String(more.cause), /EPIPE|ECONNRESET|closed/)
  else t.match(more, { status: 413, json: { error: { code: 'body_too_large' } } })
})

/** Sends raw bytes piece by piece and returns what was received. */
async function raw(pieces: readonly string[], pause = 0): Promise<string> {
  const socket = openSocket(t, corral.url)
  socket.setTimeout(120_000, () => socket.destroy())
  for (const piece of pieces) {
    if (socket.destroyed) break
    socket.write(piece)
    if (pause) await sleep(pause)
  }
  await until('the server ends the connection', () => socket.destroyed, 120_000)
  return socket.got
}

t.test('malformed HTTP requests are refused, and the server keeps answering', async t => {
  const host = `Host: ${new URL(corral.url).host}\r\n`
  const post = `POST /api/chat HTTP/1.1\r\n${host}Connection: close\r\n`
  const body = `{${chat},"stream":false}`
  const cases: [string, string[], RegExp][] = [
    ['text that is not HTTP', ['\x16\x03\x01 hello\r\n\r\n'], /^HTTP\/1\.1 400/],
    ['two lengths', [`${post}Content-Length: 5\r\nContent-Length: 6\r\n\r\n{"a":1}`], /^HTTP\/1\.1 400/],
    ['an invalid length', [`${post}Content-Length: -1\r\n\r\n`], /^HTTP\/1\.1 400/],
    [
      'both length headers',
      [`${post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`],
      /^HTTP\/1\.1 400/
    ],
    ['invalid chunks', [`${post}Transfer-Encoding: chunked\r\n\r\nZZ\r\n`], /^HTTP\/1\.1 400|^$/],
    ['huge headers', [`${post}X-Long: ${'a'.repeat(100_000)}\r\n\r\n`], /^HTTP\/1\.1 431/],
    ['no host', ['POST /api/chat HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n'], /^HTTP\/1\.1 4\d\d/],
    [
      'an undecodable path',
      [`GET /api/%ff%zz HTTP/1.1\r\n${host}Connection: close\r\n\r\n`],
      /^HTTP\/1\.1 400[\s\S]*"code":"invalid_request"/
    ],
    [
      'a compressed body',
      [`${post}Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\n\x1f\x8b\x08\x00\x00`],
      /^HTTP\/1\.1 4\d\d/
    ]
  ]
  for (const [name, pieces, expected] of cases) t.match(await raw(pieces), expected, name)
  // Byte by byte is slow but valid.
  const slow = [`${post}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n`, ...body]
  t.match(await raw(slow, 5), /^HTTP\/1\.1 200[\s\S]*"done":true/, 'a body in single bytes')
  // A client that disconnects within a body or never ends it blocks nothing.
  const unfinished = `${post}Content-Length: 1000000\r\n\r\n{"model":`
  const idle = Array.from({ length: 50 }, () => openSocket(t, corral.url, unfinished))
  await stillWell(t, 'unfinished bodies')
  for (const socket of idle) socket.destroy()
  await stillWell(t, 'clients that disconnected within a body')
  t.notMatch(corral.log(), /Something went wrong inside corral/, 'this is not a failure of corral')
  t.match((await corral.json('/api/ps')).body.models[0], { running: 0, queued: 0 })
})
