import { request } from 'node:http'
import { text } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { printable } from '../../core/system/printable.ts'
import { CLIENTS, call, connectMcp } from '../plugins/apis/mcp/mcp-clients.ts'
import { corralWithHub, largeGguf, MIB } from '../plugins/models/download/support.ts'
import { activeRequests, type Corral, DEMO, startCorral, until } from '../support/corral.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import { sendExactly } from '../support/raw-requests.ts'
import { sample } from '../support/thorough.ts'

/** Answers do not end by themselves. */
const ENDLESS = `defaults: { num_parallel: 2 }\nmodels:\n  ${DEMO}: { options: { ignore_eos: true, num_ctx: 32000, max_tokens: 20000 } }`
const ENDLESS_CHAT = { model: DEMO, prompt: 'Count to 30.', temperature: 0 }

const shared = startCorral(t, { config: ENDLESS })

const JSON_RPC = { 'content-type': 'application/json', accept: 'application/json, text/event-stream' }
const message = (method: string, params: object = {}) => ({ jsonrpc: '2.0', id: 1, method, params })
const listTools = JSON.stringify(message('tools/list'))

async function stillAnswers(t: Test, corral: Corral): Promise<void> {
  const client = await connectMcp(t, corral, '2026-07-28')
  t.ok((await client.listTools()).tools.length > 0, 'others are answered')
  await client.close()
}

t.test('other names in Host and pages of other sites are refused', async t => {
  const corral = await shared
  const body = listTools
  const foreign: Record<string, string>[] = [
    { host: 'evil.example' },
    { host: 'localhost.evil.example' },
    { host: 'localhost', origin: 'https://evil.example' },
    { host: 'localhost', origin: 'null' },
    { host: 'localhost', 'sec-fetch-site': 'cross-site' }
  ]
  for (const headers of foreign) {
    const refused = await sendExactly(corral, '/mcp', { method: 'POST', headers: { ...JSON_RPC, ...headers }, body })
    t.match(refused, {
      status: 403,
      body: { jsonrpc: '2.0', id: null, error: { message: String, data: { code: /^(host|origin)_not_allowed$/ } } }
    })
  }
  t.equal(
    (await sendExactly(corral, '/mcp', { method: 'POST', headers: { ...JSON_RPC, host: 'localhost' }, body })).status,
    200
  )
})

t.test('malformed, huge and deep messages are refused in the format of JSON-RPC', async t => {
  const corral = await shared
  const send = async (body: string) => {
    const reply = await corral.send('/mcp', body, { method: 'POST', headers: JSON_RPC })
    return { status: reply.status, text: await reply.text() }
  }
  for (const [body, status, code] of [
    ['{', 400, -32700],
    ['', 400, -32600],
    ['[]', 400, -32600],
    [`[${Array.from({ length: 1000 }, () => listTools)}]`, 400, -32600],
    ['"x"', 400, -32600],
    ['{"jsonrpc":"1.0","id":1,"method":"tools/list"}', 400, -32600],
    ['{"jsonrpc":"2.0","id":{},"method":"tools/list"}', 400, -32600],
    ['{"jsonrpc":"2.0","id":1,"method":7}', 400, -32600],
    ['{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}', 400, -32600],
    [JSON.stringify(message('x', JSON.parse(`${'{"a":'.repeat(500)}1${'}'.repeat(500)}`))), 400, -32600]
  ] as const) {
    const reply = await send(body)
    t.equal(reply.status, status, body.slice(0, 60))
    t.match(
      JSON.parse(reply.text),
      { jsonrpc: '2.0', error: { code: code === -32600 ? /^-32[67]00$/ : code, message: String } },
      reply.text.slice(0, 200)
    )
  }
  const huge = JSON.stringify(
    message('tools/call', { name: 'chat', arguments: { model: DEMO, prompt: 'x'.repeat(70 * MIB) } })
  )
  t.match(await send(huge).catch(() => ({ status: 413 })), { status: 413 })
  for (const method of ['GET', 'DELETE', 'PUT']) {
    const reply = await corral.json('/mcp', undefined, { method })
    t.match(reply, { status: 405, body: { error: { data: { code: 'method_not_allowed', allow: ['POST'] } } } }, method)
  }
  await stillAnswers(t, corral)
})

t.test('arguments of wrong types, and names that are not models, are refused by every tool', async t => {
  const corral = await shared
  const values: unknown[] = [
    7,
    true,
    null,
    [],
    {},
    [[]],
    '',
    '../../etc/passwd',
    'a'.repeat(100_000),
    '\u0000\u001b[2J',
    'a/b\r\nX: y',
    '__proto__',
    'corral/tiny-chat:../x',
    { toString: 1 }
  ]
  for (const kind of sample(CLIENTS, 3)) {
    const client = await connectMcp(t, corral, kind)
    const { tools } = await client.listTools()
    for (const { name, inputSchema } of tools.filter(({ name }) => name !== 'pull_model')) {
      const names = Object.keys(inputSchema.properties!)
      if (names.length === 0) continue
      for (const value of values) {
        const result = await call(client, name, Object.fromEntries(names.map(each => [each, value])))
        if (name !== 'usage' && name !== 'search_models')
          t.ok(result.failed, `${name} ${JSON.stringify(value)?.slice(0, 40)}`)
        t.equal(result.text, printable(result.text))
        t.not(result.data?.code, 'internal')
      }
      t.match(await call(client, name, { __proto__x: 1, constructor: 2 }), {
        failed: true,
        data: { code: 'invalid_request' }
      })
    }
    for (const name of ['__proto__', 'constructor', 'toString', '\u0000']) {
      await t.rejects(client.callTool({ name }), { code: -32602 })
    }
    for (const cursor of ['-1', '1e999', 'x', '9'.repeat(1000)])
      await t.rejects(client.listResources({ cursor }), { code: -32602 })
  }
  t.notMatch(corral.log(), /"level":50/)
  await stillAnswers(t, corral)
})

t.test('thousands of requests leave nothing behind', async t => {
  const corral = await shared
  const post = async (at: number) => {
    const body = JSON.stringify({
      ...message(
        at % 2 ? 'tools/list' : 'initialize',
        at % 2 ? {} : { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'x', version: '1' } }
      ),
      id: at
    })
    const reply = await corral.send('/mcp', body, { headers: { ...JSON_RPC, 'mcp-session-id': `session ${at}` } })
    await reply.text()
    return reply.status
  }
  const statuses = new Map<number, number>()
  for (let at = 0; at < 2000; at += 50) {
    const replies = await Promise.all(Array.from({ length: 50 }, (_, next) => post(at + next)))
    for (const status of replies) statuses.set(status, (statuses.get(status) ?? 0) + 1)
  }
  t.same([...statuses], [[200, 2000]])
  await stillAnswers(t, corral)
})

for (const kind of CLIENTS) {
  for (const stdio of [false, true]) {
    t.test(`${kind} over ${stdio ? 'stdio' : 'HTTP'}: a cancelled chat frees its slot`, async t => {
      const corral = await shared
      const client = await connectMcp(t, corral, kind, { stdio })
      const gone = new AbortController()
      const asked = call(client, 'chat', ENDLESS_CHAT, { signal: gone.signal, timeout: 600_000 })
      asked.catch(() => {})
      await until('it is answered', async () => (await activeRequests(corral)) === 1)
      gone.abort()
      await t.rejects(asked)
      await until('its slot is free', async () => (await activeRequests(corral)) === 0)
      const left = call(client, 'chat', ENDLESS_CHAT, { timeout: 600_000 })
      left.catch(() => {})
      await until('another one is answered', async () => (await activeRequests(corral)) === 1)
      await client.close()
      await until('it ends with its client', async () => (await activeRequests(corral)) === 0)
    })
  }
}

t.test('a client cannot cancel the request of another session or key', async t => {
  const corral = await shared
  const client = await connectMcp(t, corral, '2025-11-25')
  const asked = call(client, 'chat', ENDLESS_CHAT, { timeout: 600_000 })
  asked.catch(() => {})
  await until('it is answered', async () => (await activeRequests(corral)) === 1)
  for (const session of ['', 'x', undefined]) {
    for (let requestId = 0; requestId < 10; requestId++) {
      const body = { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId } }
      const headers = { ...JSON_RPC, ...(session !== undefined && { 'mcp-session-id': session }) }
      t.equal((await corral.send('/mcp', body, { headers })).status, 202)
    }
  }
  t.equal(await activeRequests(corral), 1)
  await client.close()
  await until('its slot is free', async () => (await activeRequests(corral)) === 0)
})

t.test('a client that resets its connection ends its chat', async t => {
  const corral = await shared
  const body = JSON.stringify(message('tools/call', { name: 'chat', arguments: ENDLESS_CHAT }))
  for (const end of ['destroy', 'resetAndDestroy'] as const) {
    const sent = request(new URL('/mcp', corral.url), { method: 'POST', headers: JSON_RPC, agent: false }).end(body)
    sent.on('error', () => {})
    sent.on('response', reply => text(reply).catch(() => {}))
    await until('it is answered', async () => (await activeRequests(corral)) === 1)
    sent.socket![end]()
    await until('its slot is free', async () => (await activeRequests(corral)) === 0)
    t.pass(end)
  }
})

t.test('a pull pauses when its client disconnects', async t => {
  const repositories = { 'some/model-GGUF': { files: { 'model-Q8_0.gguf': largeGguf(64 * MIB) } } }
  const hub = await startHubEmulator(t, { repositories, bandwidth: { total: MIB } })
  const corral = await corralWithHub(t, hub)
  const pulls = async () => (await corral.json('/api/pulls')).body.pulls.map(({ state }: any) => state)
  const client = await connectMcp(t, corral, '2026-07-28')
  const asked = call(client, 'pull_model', { model: 'some/model-GGUF' }, { timeout: 600_000 })
  asked.catch(() => {})
  await until('it is downloading', async () => (await pulls())[0] === 'downloading')
  await client.close()
  await until('it has stopped', async () => (await pulls())[0] !== 'downloading')
  t.same(await pulls(), ['paused'])
})
