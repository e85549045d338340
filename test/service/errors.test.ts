import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text as readAll } from 'node:stream/consumers'
import t from 'tap'
import { CAPITAL_QUESTION, DEMO, startCorral } from '../support/corral.ts'
import { readCases } from '../support/fixture.ts'

const corral = await startCorral(t, {
  // The test contacts no real hub.
  env: { HF_HUB_OFFLINE: '1' },
  config:
    'body_limit: 1MiB\nscheduler:\n  max_queue: 1\nmodels:\n  corral/tiny-chat:\n    options:\n      num_parallel: 1\n'
})
const chat = { model: DEMO, messages: [CAPITAL_QUESTION] }

t.test('every request error of the native API has its status and code', async t => {
  const table: [path: string, body: unknown, status: number, code: string][] = [
    ...readCases<[string, unknown, number, string][]>('service-cases.yaml', 'errors'),
    ['/api/import', { model: 'x/y', path: join(tmpdir(), 'not/there.gguf') }, 400, 'invalid_request'],
    ['/api/chat', 'x'.repeat(2 ** 21), 413, 'body_too_large']
  ]
  for (const [path, sent, status, code] of table) {
    const shown = `${path} ${(typeof sent === 'string' ? sent : JSON.stringify(sent)).slice(0, 80)}`
    const isAdded = path === '/api/chat' && typeof sent === 'object' && Object.keys(sent!).length > 0
    const { status: got, body } = await corral.json(path, isAdded ? { ...chat, ...sent } : sent)
    t.equal(got, status, shown)
    t.match(body, { error: /\w{3,}.*\./s, errorCode: status, code, requestId: /^[0-9a-f-]{36}$/ }, shown)
    t.notMatch(JSON.stringify(body), /node_modules|\.[jt]s:\d+| {4}at /, 'no stack trace')
  }
  await corral.json('/api/stop', { model: DEMO })
  t.equal((await corral.json('/api/stop', { model: DEMO })).body.code, 'model_not_loaded')
})

t.test('malformed HTTP is refused without quoting it', async t => {
  const answered = async (text: string) => {
    const { hostname, port } = new URL(corral.url)
    const socket = connect(Number(port), hostname)
    t.teardown(() => socket.destroy())
    socket.write(text)
    const [head, body] = (await readAll(socket)).split('\r\n\r\n')
    return { status: Number(head!.split(' ')[1]), body: JSON.parse(body!) }
  }
  const attack = '\x1b[31mFORGED'
  for (const [what, text, status, words] of [
    ['a header with control characters', `GET / HTTP/1.1\r\nhost: x\r\nx-a: ${attack}\r\n\r\n`, 400, /Invalid header/],
    ['a path with them', `GET /${attack} HTTP/1.1\r\nhost: x\r\n\r\n`, 400, /not a valid HTTP request/],
    ['another protocol', 'SSH-2.0-OpenSSH_9.6\r\n\r\n', 400, /not a valid HTTP request/],
    ['long headers', `GET / HTTP/1.1\r\nhost: x\r\nx-a: ${'a'.repeat(20_000)}\r\n\r\n`, 431, /16 kB/]
  ] as const) {
    const { status: got, body } = await answered(text)
    t.match({ got, body }, { got: status, body: { code: 'invalid_request', errorCode: status, error: words } }, what)
    t.notMatch(JSON.stringify(body), /FORGED/)
  }
  t.notMatch(corral.log(), /FORGED/)
})

t.test('method_not_allowed lists the allowed methods', async t => {
  const response = await corral.send('/api/chat')
  t.equal(response.status, 405)
  t.equal(response.headers.get('allow'), 'POST')
  t.match(await response.json(), { code: 'method_not_allowed' })
  t.equal((await corral.send('/api/tags', {}, { method: 'PUT' })).headers.get('allow'), 'GET, HEAD')
})

t.test('deep nesting, prototype names, odd encodings and huge numbers do no harm', async t => {
  const deep = '['.repeat(200_000) + ']'.repeat(200_000)
  const bodies = [
    `{"model":"${DEMO}","messages":${deep}}`,
    `{"model":"${DEMO}","messages":[{"content":"Hi"}],"tools":[{"a":${deep}}]}`,
    `{"model":"${DEMO}","messages":[{"content":"Hi"}],"options":{"seed":1e400}}`,
    `{"model":"${DEMO}","messages":[{"content":"Hi"}],"options":{"top_k":99999999999999999999}}`,
    '{"__proto__":{"model":"x/y"},"constructor":{"prototype":{}}}',
    '\u0000\u0001',
    '{"model":"\ud800/x"}'
  ]
  for (const body of bodies) {
    const { status } = await corral.json('/api/chat', body)
    t.equal(status, 400, body.slice(0, 60))
  }
  t.match((await corral.json('/api/health')).body, { status: 'ok' })
})

t.test('a full queue answers 503 with Retry-After on both APIs', async t => {
  const story = { content: 'Count to 30.' }
  const native = { model: DEMO, messages: [story], options: { temperature: 0 }, stream: false }
  const hosted = { model: DEMO, messages: [{ role: 'user', ...story }], temperature: 0 }
  for (const [path, body] of [
    ['/api/chat', native],
    ['/v1/chat/completions', hosted]
  ] as const) {
    const replies = await Promise.all(Array.from({ length: 12 }, () => corral.send(path, body)))
    const full = replies.filter(reply => reply.status === 503)
    t.ok(full.length > 0, 'some were refused')
    const answered = replies.filter(reply => reply.status === 200)
    t.ok(answered.length > 0, 'some were answered')
    t.equal(full[0]!.headers.get('retry-after'), '1')
    t.equal(full[0]!.headers.get('x-should-retry'), null)
    const refused = (await full[0]!.json()) as any
    t.equal(refused.code ?? refused.error.code, 'queue_full')
    for (const reply of replies) if (!reply.bodyUsed) await reply.text()
  }
})
