import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { fetch } from 'undici'
import { SseParser } from '../../core/answers/openai-events.ts'
import { freePort } from '../../core/system/free-port.ts'
import { vllmRouter } from '../clients/python-scripts.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, type Corral, DEMO, joined, startCorral, until } from '../support/corral.ts'
import { newFolder } from '../support/folder.ts'

// Several corrals behind vLLM's router from PyPI, instead of vLLM servers.

t.setTimeout(600_000)

const { program, skip } = vllmRouter()
const KEY = 'routers-send-the-key-of-their-clients-on'
const HEADERS = { authorization: `Bearer ${KEY}`, 'content-type': 'application/json' }

const ask = (more: object = {}) => ({ model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0, ...more })
/** A stream that lasts some seconds and ends by itself. */
const long = (max_tokens: number) => ({
  model: DEMO,
  messages: [{ role: 'user', content: 'Count to 30.' }],
  stream: true,
  temperature: 0,
  ignore_eos: true,
  max_tokens
})

interface Router {
  url: string
  json(path: string, body?: unknown): Promise<{ status: number; body: any }>
  /** Whether the router sends requests to the server. */
  isHealthy(node: Corral): Promise<boolean>
}

async function startRouter(t: Test, nodes: readonly Corral[], policy: string): Promise<Router> {
  const port = await freePort()
  const words = [
    ...['--host', '127.0.0.1', '--port', `${port}`, '--prometheus-port', `${await freePort()}`],
    ...['--policy', policy, '--worker-startup-check-interval', '1', '--health-check-interval-secs', '1'],
    ...['--health-failure-threshold', '1', '--health-check-endpoint', '/readyz', '--cb-timeout-duration-secs', '2'],
    ...['--worker-urls', ...nodes.map(({ url }) => url)]
  ]
  const child = spawn(program, words, { stdio: ['ignore', 'pipe', 'pipe'] })
  let log = ''
  for (const output of [child.stdout, child.stderr]) {
    output.setEncoding('utf8').on('data', text => {
      log += text
    })
  }
  const exited = once(child, 'exit')
  t.teardown(async () => {
    child.kill('SIGKILL')
    await exited
  })
  const url = `http://127.0.0.1:${port}`
  const router: Router = {
    url,
    async json(path, body) {
      const reply = await fetch(url + path, {
        method: body === undefined ? 'GET' : 'POST',
        headers: HEADERS,
        ...(body !== undefined && { body: JSON.stringify(body) })
      })
      const text = await reply.text()
      return { status: reply.status, body: text.startsWith('{') ? JSON.parse(text) : text }
    },
    async isHealthy(node) {
      const { workers } = (await router.json('/workers')).body
      return workers.find((worker: any) => worker.url === node.url).is_healthy
    }
  }
  await until('the router serves', async () => {
    if (child.exitCode !== null) throw new Error(`The router ended:\n${log}`)
    return (await router.json('/health').catch(() => undefined))?.status === 200
  })
  return router
}

/** A stream through the router: its events as they arrive, and how it ended. */
function openStream(router: Router, body: unknown) {
  const events: any[] = []
  const whole = (async () => {
    const reply = await fetch(`${router.url}/v1/chat/completions`, {
      method: 'POST',
      headers: HEADERS,
      body: JSON.stringify(body)
    })
    if (reply.status !== 200) throw new Error(`${reply.status} ${await reply.text()}`)
    const lines = new SseParser()
    for await (const chunk of reply.body!) {
      for (const payload of lines.push(chunk)) events.push(payload === '[DONE]' ? payload : JSON.parse(payload))
    }
    return events
  })()
  // The promise may reject before it is awaited.
  whole.catch(() => {})
  return { events, whole }
}

/** Requests from the router, according to the server's log. */
const asked = (node: Corral) => [...node.log().matchAll(/"msg":"POST \/v1\/\S+ 200"/g)].length
/** Running requests for the server's models. */
const running = async (node: Corral) => (await node.json('/api/drain', undefined, { local: true })).body.open as number

async function startNode(t: Test, more: { home?: string; port?: number } = {}): Promise<Corral> {
  const { home, port } = more
  return await startCorral(t, {
    env: { CORRAL_API_KEYS: KEY },
    ...(home !== undefined && { home }),
    ...(port !== undefined && { flags: ['--port', `${port}`] })
  })
}

t.test('every API that the router passes on is answered by both servers', { skip }, async t => {
  const nodes = await Promise.all([startNode(t), startNode(t)])
  const router = await startRouter(t, nodes, 'round_robin')

  for (let number = 0; number < 6; number++) {
    const { status, body } = await router.json('/v1/chat/completions', ask())
    t.equal(status, 200)
    t.equal(body.choices[0].message.content, CAPITAL_ANSWER)
    t.equal(body.usage.completion_tokens > 0, true)
  }
  for (const node of nodes) await until('each server answers three, in turn', () => asked(node) === 3)

  const { whole } = openStream(router, ask({ stream: true, stream_options: { include_usage: true } }))
  const events = await whole
  t.equal(joined(events), CAPITAL_ANSWER)
  t.equal(events.at(-1), '[DONE]')
  t.ok(events.at(-2).usage.total_tokens > 0, 'the usage is included')

  const format = { type: 'json_schema', json_schema: { name: 'x', schema: { enum: ['Paris'] } } }
  const formed = await router.json('/v1/chat/completions', ask({ response_format: format }))
  t.equal(formed.body.choices[0].message.content, '"Paris"', 'a schema is passed on')

  t.match(await router.json('/v1/completions', { model: DEMO, prompt: 'Hi', max_tokens: 5 }), {
    status: 200,
    body: { choices: [{ text: String }] }
  })
  const { status, body } = await router.json('/v1/embeddings', { model: DEMO, input: ['Hi', 'there'] })
  t.equal(status, 200)
  t.equal(body.data.length, 2)
  t.equal(body.data[0].embedding.length > 10, true)
  // As docs/scaling.md says, the router sends its own key (--api-key) on these routes, never the client's.
  t.equal((await router.json('/v1/responses', { model: DEMO, input: 'Hi' })).status, 401)
  t.equal((await router.json('/v1/messages', { ...ask(), max_tokens: 20 })).status, 401)
  t.match(await router.json('/v1/models'), { status: 200, body: { data: [{ id: DEMO }] } })

  t.match(await router.json('/v1/chat/completions', ask({ model: 'no/such' })), {
    status: 404,
    body: { error: { code: 'model_not_found' } }
  })
  t.match(await router.json('/v1/chat/completions', ask({ n: 1000 })), {
    status: 400,
    body: { error: { code: 'over_limit' } }
  })
  const keyless = await fetch(`${router.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(ask())
  })
  t.equal(keyless.status, 401, 'the router gives no key to clients without one')
  for (const node of nodes) t.ok(await router.isHealthy(node), 'client errors make no server unhealthy')
})

t.test('a conversation stays on the server that has its prompt cached', { skip }, async t => {
  const nodes = await Promise.all([startNode(t), startNode(t)])
  const router = await startRouter(t, nodes, 'cache_aware')
  const story = 'Once upon a time there was a horse that lived in a corral by the sea. '.repeat(6)
  const messages = [{ role: 'user', content: story }]
  let cached = 0
  for (let turn = 0; turn < 3; turn++) {
    const { status, body } = await router.json('/v1/chat/completions', ask({ messages, max_tokens: 10 }))
    t.equal(status, 200)
    cached = body.usage.prompt_tokens_details.cached_tokens
    messages.push(body.choices[0].message, { role: 'user', content: `And then? ${turn}` })
  }
  await until('all are logged', () => asked(nodes[0]!) + asked(nodes[1]!) === 3)
  t.same(nodes.map(asked).sort(), [0, 3])
  t.ok(cached > 50, `${cached} tokens of the third message were cached`)
})

t.test('a draining server finishes its requests and gets no new ones', { skip }, async t => {
  const nodes = await Promise.all([startNode(t), startNode(t)])
  const router = await startRouter(t, nodes, 'round_robin')
  const streams = [openStream(router, long(600)), openStream(router, long(600))]
  for (const node of nodes) await until('each server has a stream', async () => (await running(node)) === 1)
  const [first, second] = nodes as [Corral, Corral]
  const before = asked(first)
  t.equal((await first.json('/api/drain', {}, { local: true })).status, 200)
  // The first of these arrive before the router has asked /readyz.
  for (let number = 0; number < 8; number++) {
    const { status, body } = await router.json('/v1/chat/completions', ask())
    t.equal(status, 200, 'refused by one server, answered by the other')
    t.equal(body.choices[0].message.content, CAPITAL_ANSWER)
  }
  await until('the router has seen it', async () => !(await router.isHealthy(first)))
  t.equal((await router.json('/v1/chat/completions', ask())).status, 200)
  for (const { whole } of streams) t.equal((await whole).at(-1), '[DONE]', 'running requests finish')
  await until('the stream is logged', () => asked(first) === before + 1)

  t.equal((await first.json('/api/drain', undefined, { local: true, method: 'DELETE' })).status, 200)
  await until('it is back', async () => await router.isHealthy(first))
  const then = asked(second)
  for (let number = 0; number < 4; number++) {
    t.equal((await router.json('/v1/chat/completions', ask())).status, 200)
  }
  await until('both answer again', () => asked(first) > before + 1 && asked(second) > then)
})

t.test('a killed server loses only its own running requests', { skip }, async t => {
  const home = newFolder(t)
  const port = await freePort()
  const [first, second] = await Promise.all([startNode(t, { home, port }), startNode(t)])
  const router = await startRouter(t, [first, second], 'round_robin')
  const streams = [openStream(router, long(3000)), openStream(router, long(3000))]
  for (const node of [first, second]) await until('each server has a stream', async () => (await running(node)) === 1)
  await until('both have started', () => streams.every(({ events }) => events.length > 3))
  await first.end('SIGKILL')
  const answers = await Promise.all(Array.from({ length: 12 }, () => router.json('/v1/chat/completions', ask())))
  for (const { status, body } of answers) {
    t.equal(status, 200)
    t.equal(body.choices?.[0].message.content, CAPITAL_ANSWER)
  }
  const ends = await Promise.allSettled(streams.map(({ whole }) => whole))
  t.same(ends.map(({ status }) => status).sort(), ['fulfilled', 'rejected'], 'one was interrupted and reports it')
  await until('the router has seen it', async () => !(await router.isHealthy(first)))

  const again = await startNode(t, { home, port })
  await until('it recovers by itself', async () => await router.isHealthy(again))
  await until('it answers', async () => {
    t.equal((await router.json('/v1/chat/completions', ask())).status, 200)
    return asked(again) > 0
  })
})

t.test('a rolling restart under load loses no request', { skip }, async t => {
  const homes = [1, 2].map(() => mkdtempSync(join(tmpdir(), 'corral-test-')))
  t.teardown(() => {
    for (const home of homes) rmSync(home, { recursive: true, force: true })
  })
  const ports = [await freePort(), await freePort()]
  const nodes = await Promise.all(homes.map((home, at) => startNode(t, { home, port: ports[at]! })))
  const router = await startRouter(t, nodes, 'round_robin')
  let isOver = false
  const statuses: number[] = []
  const clients = [1, 2, 3].map(async () => {
    while (!isOver) {
      const { status, body } = await router.json('/v1/chat/completions', ask())
      statuses.push(status)
      if (status === 200) t.equal(body.choices[0].message.content, CAPITAL_ANSWER)
    }
  })
  for (const [at, node] of nodes.entries()) {
    await until(
      'all servers are healthy',
      async () => (await router.isHealthy(nodes[0]!)) && (await router.isHealthy(nodes[1]!))
    )
    // Kubernetes ends a pod this way: the drain of its preStop hook, then SIGTERM.
    await node.json('/api/drain', {}, { local: true })
    await until('no request is open', async () => (await running(node)) === 0)
    await until('the router has seen it', async () => !(await router.isHealthy(node)))
    t.equal(await node.end('SIGTERM'), 0)
    nodes[at] = await startNode(t, { home: homes[at]!, port: ports[at]! })
    await until('it is back', async () => await router.isHealthy(nodes[at]!))
  }
  isOver = true
  await Promise.all(clients)
  t.ok(statuses.length > 10, `${statuses.length} requests`)
  t.same(new Set(statuses), new Set([200]), 'none failed')
})
