import { once } from 'node:events'
import { request as httpRequest } from 'node:http'
import { brotliCompressSync, constants, gzipSync } from 'node:zlib'
import t, { type Test } from 'tap'
import { BodyMemory, bodyMemoryLimits, routeBodyLimit } from '../../core/http/body-memory.ts'
import { residentMemory } from '../../scripts/bench/measuring.ts'
import { CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../support/corral.ts'
import { readCases } from '../support/fixture.ts'
import { openSocket } from '../support/raw-requests.ts'
import { sample, thorough } from '../support/thorough.ts'

const MIB = 2 ** 20
const ATTACKER = 'key-of-the-attacker'
const HONEST = 'key-of-an-honest-one'
const config = `body_limit: 16MiB
limits: { body_memory: 64MiB, body_memory_per_client: 32MiB }
security: { api_keys: [${ATTACKER}, ${HONEST}] }`

t.test('memory for bodies is limited per client and in total, beyond the first 128 KiB of each body', async t => {
  const memory = new BodyMemory(() => ({ total: 5 * MIB, perClient: 2 * MIB }))
  const request = (turn: string) => ({ record: {}, caller: { turn } }) as any
  const take = (from: any, mib: number) => {
    try {
      memory.take(from, mib * MIB)
      return 'taken'
    } catch (error) {
      return (error as { code: string }).code
    }
  }
  const [a1, a2, b, c] = ['a', 'a', 'b', 'c'].map(request)
  t.equal(take(a1, 1.5), 'taken')
  t.equal(take(a2, 1), 'too_busy', 'the client has its share')
  t.equal(take(a2, 0.125), 'taken', 'a short body is never refused')
  t.equal(take(b, 2.5), 'body_too_large', 'more than any client may have')
  t.equal(take(b, 1), 'taken')
  t.equal(take(b, 1), 'taken', 'it grows')
  t.equal(take(c, 2), 'too_busy', 'all clients together use all of it')
  t.equal(memory.total, (1.375 + 1.875) * MIB)
  for (const { record } of [a1, a1, a2, b, c]) memory.release(record)
  t.equal(memory.total, 0, 'refused bodies are not counted, and nothing is released twice')
  t.equal(take(c, 2), 'taken')
  c.caller = { turn: 'd' }
  memory.takeAgain(c)
  t.equal(take(request('c'), 2), 'taken', 'the memory is available to another client')
  t.equal(take(request('d'), 1), 'too_busy')
})

t.test("the body memory limits default to shares of the machine's memory", async t => {
  const GIB = 2 ** 30
  const cases: [object, number, number, number, [number, number]][] = [
    [{ body_memory: 0, body_memory_per_client: 0 }, 64 * MIB, 8 * GIB, 4 * GIB, [512 * MIB, 128 * MIB]],
    [{}, 64 * MIB, 64 * GIB, 4 * GIB, [GIB, 256 * MIB]],
    [{}, 64 * MIB, GIB, GIB, [128 * MIB, 128 * MIB]],
    [{}, 64 * MIB, GIB / 4, GIB / 4, [128 * MIB, 128 * MIB]],
    [{ body_memory: '100MiB', body_memory_per_client: '200MiB' }, MIB, GIB, GIB, [100 * MIB, 100 * MIB]]
  ]
  for (const [settings, bodyLimit, machine, heap, [total, perClient]] of cases) {
    t.same(bodyMemoryLimits(settings, bodyLimit, machine, heap), { total, perClient })
  }
  t.equal(routeBodyLimit({ config: { role: 'anyone' } }, MIB), 4096)
  t.equal(routeBodyLimit({ config: { bodySize: 'small' } }, MIB), MIB / 4)
  t.equal(routeBodyLimit({ config: { bodySize: 'small' } }, 1000), 1000)
  t.equal(routeBodyLimit({}, MIB), MIB)
  t.equal(routeBodyLimit({ bodyLimit: 2 * MIB }, MIB), MIB)
})

/** A chat of this many bytes, which compresses to a twentieth. */
function longChat(bytes: number): Buffer {
  const words = Array.from({ length: bytes / 150 }, (_, at) => String(at * at * 7919).padEnd(150, '- '))
  return Buffer.from(`{"model":"${DEMO}","messages":[{"role":"user","content":"${words.join('')}"}]}`)
}

const KINDS: Record<string, { header?: string; encode?: (body: Buffer) => Buffer }> = {
  'a length': {},
  chunks: { header: 'Transfer-Encoding: chunked' },
  gzip: { header: 'Content-Encoding: gzip', encode: body => gzipSync(body, { level: 1 }) },
  brotli: {
    header: 'Content-Encoding: br',
    encode: body => brotliCompressSync(body, { params: { [constants.BROTLI_PARAM_QUALITY]: 2 } })
  }
}

/** Opens connections whose requests never send their last byte. */
function hold(t: Test, { url }: Corral, kind: string, count: number, path: string) {
  const { header = '', encode = body => body } = KINDS[kind]!
  const body = encode(longChat(8 * MIB))
  const part = body.subarray(0, -1)
  const length = kind === 'chunks' ? '' : `Content-Length: ${body.length}\r\n`
  const head = `POST ${path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${ATTACKER}\r\n${header}${header && '\r\n'}${length}\r\n`
  return Array.from({ length: count }, () => {
    const socket = openSocket(t, url, kind === 'chunks' ? `${head}${part.length.toString(16)}\r\n` : head)
    socket.write(part)
    return socket
  })
}

/** Everyday tests share this server. */
const shared = startCorral(t, { config })

t.test("unfinished bodies take only one client's share, and other clients are answered", async t => {
  const corral = await shared
  const as = (key: string) => ({ headers: { authorization: `Bearer ${key}` } })
  const ask = (key: string, bytes: number) =>
    corral.json(
      '/api/chat',
      { model: DEMO, messages: [CAPITAL_QUESTION], stream: false, ignored: 'x'.repeat(bytes) },
      as(key)
    )
  t.equal((await ask(HONEST, 0)).status, 200)
  const pid = corral.process.pid!
  const before = residentMemory(pid)
  const paths: [string, RegExp][] = [
    ['/api/chat', /"errorCode":503,"code":"too_busy"/],
    ['/v1/chat/completions', /"type":"rate_limit_error","param":null,"code":"too_busy"/],
    ['/v1/messages', /"type":"error","error":\{"type":"overloaded_error",.*"code":"too_busy"/],
    ['/completion', /"code":503,.*"corral_code":"too_busy"/]
  ]
  for (const [at, kind] of sample([...Object.keys(KINDS).entries()], 2)) {
    const [path, words] = paths[at]!
    const sockets = hold(t, corral, kind, 24, path)
    const refused = () => sockets.filter(({ got }) => got.startsWith('HTTP/1.1 503'))
    await until(`bodies that do not fit are refused: ${kind}`, () => refused().length >= 20)
    for (const { got } of refused()) {
      t.match(got, /\r\nretry-after: 2\r\n/i, kind)
      t.match(got, words, kind)
    }
    t.equal((await ask(HONEST, 8 * MIB)).status, 200, 'another client is answered')
    t.equal((await ask(ATTACKER, 1000)).status, 200, 'a short request of the same client is answered')
    t.equal((await ask(ATTACKER, 15 * MIB)).status, 503, 'a long request of the same client is refused')
    const grown = residentMemory(pid) - before
    // Each of the 24 decoders of Brotli has a window of up to 4 MiB. Without limits they would take 288 MiB in all.
    t.ok(
      grown < (kind === 'brotli' ? 220 : 120),
      `${kind}: of 192 MiB, only a share of 32 MiB and the overhead of reading it are used: ${grown}`
    )
    for (const socket of sockets) socket.destroy()
    await until('its share is free again', async () => (await ask(ATTACKER, 15 * MIB)).status === 200)
  }
})

t.test('body memory is released when clients disconnect', thorough, async t => {
  const corral = await startCorral(t, {
    config: `body_limit: 16MiB\nlimits: { body_memory: 180MiB, body_memory_per_client: 180MiB }\nsecurity: { api_keys: [${ATTACKER}] }`
  })
  const pid = corral.process.pid!
  const before = residentMemory(pid)
  for (const kind of Object.keys(KINDS)) {
    const sockets = hold(t, corral, kind, 24, '/api/chat')
    const more = () => residentMemory(pid) - before
    await until(`${kind}: bodies are held`, () => more() > 100 && sockets.some(({ got }) => got !== ''), 60_000)
    const held = more()
    for (const socket of sockets) socket.destroy()
    await until(`${kind}: most of the memory is released`, () => residentMemory(pid) < before + held / 2)
  }
})

t.test('a body that is too large or expands too much is refused before it has arrived', async t => {
  const corral = await shared
  await corral.reload(config.replace('32MiB', '4MiB'))
  const send = async (path: string, body: string | Buffer<ArrayBuffer>, headers: Record<string, string> = {}) => {
    const authorization = `Bearer ${HONEST}`
    const reply = await fetch(corral.url + path, { method: 'POST', body, headers: { authorization, ...headers } })
    return { status: reply.status, text: await reply.text() }
  }
  const explosive = Buffer.alloc(16 * MIB, ' ')
  const cases: [string, string | Buffer, Record<string, string>, RegExp][] = [
    [
      '/api/cluster/tickets/redeem',
      `{"ticket":"${'x'.repeat(5000)}"}`,
      {},
      /larger than 4\.1 kB, the maximum of this route/
    ],
    ['/api/sessions', `{"token":"${'x'.repeat(5000)}"}`, {}, /larger than 4\.1 kB/],
    ['/api/show', `{"model":"${'x'.repeat(300_000)}"}`, {}, /larger than 262 kB/],
    ['/api/cluster/tickets/redeem', gzipSync(explosive), { 'content-encoding': 'gzip' }, /larger than 4\.1 kB/],
    ['/v1/chat/completions', gzipSync(explosive), { 'content-encoding': 'gzip' }, /more than 100 times/],
    ['/v1/messages', brotliCompressSync(explosive), { 'content-encoding': 'br' }, /more than 100 times/],
    ['/api/chat', `{"model":"${'x'.repeat(5 * MIB)}"}`, {}, /limits\.body_memory_per_client/],
    ['/api/chat', `{"x":[${'{},'.repeat(100_000)}{}]}`, {}, /limits\.body_memory_per_client/]
  ]
  for (const [path, body, headers, words] of cases) {
    const { status, text } = await send(path, body as Buffer<ArrayBuffer>, headers)
    t.equal(status, 413, path)
    t.match(text, words, path)
  }
  const upload = await send('/v1/files', gzipSync('x'), {
    'content-encoding': 'gzip',
    'content-type': 'multipart/form-data; boundary=x'
  })
  t.equal(upload.status, 415, 'uploads are read as they are')
  t.equal((await corral.json('/api/health')).status, 200, 'the server keeps working')
})

t.test('a client that waits for 100 Continue gets its refusal instead', async t => {
  const corral = await shared
  const { hostname, port } = new URL(corral.url)
  const body = JSON.stringify({ model: DEMO, messages: [CAPITAL_QUESTION], stream: false, max_tokens: 2 })
  const ask = async (path: string, headers: Record<string, string | number>) => {
    const asked = httpRequest({ hostname, port, method: 'POST', path, headers: { expect: '100-continue', ...headers } })
    let continued = false
    asked.once('continue', () => {
      continued = true
      asked.end(body)
    })
    asked.flushHeaders()
    const [response] = await once(asked, 'response')
    response.resume()
    asked.destroy()
    return [continued, response.statusCode]
  }
  const authorization = `Bearer ${HONEST}`
  const length = { 'content-length': body.length }
  const cases: [string, Record<string, string | number>, boolean, number][] = [
    ['/api/chat', { authorization, ...length }, true, 200],
    ['/v1/files', { authorization, ...length, 'content-type': 'multipart/form-data; boundary=x' }, true, 400],
    ['/api/chat', length, false, 401],
    ['/api/nothing', { authorization, ...length }, false, 404],
    ['/v1/files', { authorization, ...length }, false, 400],
    ['/api/chat', { authorization, 'content-length': 17 * MIB }, false, 413],
    ['/api/chat', { authorization, ...length, 'content-encoding': 'what' }, false, 415],
    ['/api/chat', { authorization, ...length, origin: 'https://example.org' }, false, 403]
  ]
  for (const [path, headers, continued, status] of cases) {
    t.same(await ask(path, headers), [continued, status], `${path} ${JSON.stringify(headers)}`)
  }
})

t.test('a request with contradictory headers is refused', async t => {
  const corral = await shared
  const cases: [string, string][] = readCases('attack-cases.yaml', 'oddHeaders')
  for (const [line, headers] of cases) {
    const socket = openSocket(t, corral.url, `${line} HTTP/1.1\r\n${headers}\r\n\r\n{}`)
    const [reply] = await once(socket, 'data')
    t.match(String(reply), /^HTTP\/1\.1 400 [\s\S]*"invalid_request"/, headers)
    socket.destroy()
  }
})
