import { createServer } from 'node:http'
import t from 'tap'
import { alive, type Corral, DEMO, endlessHosted, startCorral, until } from '../../../support/corral.ts'
import { listen } from '../../../support/listen.ts'
import { gatewayConfig, getNodes, startGateway, startNodes, startReadyGateway, untilStates } from './support.ts'

const short = { model: DEMO, messages: [{ role: 'user', content: 'What is 7 + 8?' }], temperature: 0, max_tokens: 20 }

/** Streams an answer. @returns how it ended: whole, with an error code, or refused with a status */
async function streamed(gateway: Corral, body: object, begun?: () => void): Promise<{ end: string; text: string }> {
  const reply = await gateway.send('/v1/chat/completions', { ...body, stream: true })
  if (reply.status !== 200) return { end: `status ${reply.status} ${await reply.text()}`, text: '' }
  let text = ''
  for await (const chunk of reply.body!) {
    text += Buffer.from(chunk as Uint8Array).toString()
    if (text.includes('"content":"')) begun?.()
  }
  if (text.includes('data: [DONE]')) return { end: 'whole', text }
  return { end: /"code":"([a-z_]+)"/.exec(text)?.[1] ?? 'cut', text }
}

t.setTimeout(900_000)

t.test('killing one of three members under 64 streams loses only its own', async t => {
  const { nodes, members } = await startNodes(t, 3)
  const gateway = await startReadyGateway(t, members)
  // All have the model in memory, so all get some streams.
  await Promise.all(nodes.map(node => node.json('/api/load', { model: DEMO })))
  await until('all have it', async () => (await getNodes(gateway)).every(({ loaded }) => loaded.length === 1))
  const hasBegun = Array.from({ length: 64 }, () => false)
  const long = { ...endlessHosted(DEMO), max_tokens: 400 }
  const streams = hasBegun.map((_, index) => streamed(gateway, long, () => (hasBegun[index] = true)))
  await until(
    'some have begun at each',
    async () => (await getNodes(gateway)).every(({ sent }) => sent >= 10) && hasBegun.filter(Boolean).length > 3
  )
  const engines = nodes[0]!.enginePids()
  await nodes[0]!.end('SIGKILL')
  const killed = Date.now()
  await until('the gateway knows', async () =>
    (await getNodes(gateway)).some(({ name, state }) => name === 'node-1' && state === 'away')
  )
  t.comment(`noticed after ${Date.now() - killed} ms`)
  const results = await Promise.all(streams)
  const lost = results.flatMap(({ end }, index) => (end === 'whole' ? [] : [{ end, text: results[index]!.text }]))
  t.comment(`${lost.length} of 64 were lost`)
  for (const { end, text } of lost) {
    t.equal(end, 'engine_crashed', text.slice(0, 200))
    t.match(text, /"content":"/, 'only started answers were lost')
  }
  t.ok(lost.length < 64)
  await until('no engine of the killed member is left', () => engines.every(pid => !alive(pid)))
  t.equal((await streamed(gateway, short)).end, 'whole')
})

t.test('a killed gateway leaves its members running, and two gateways share members', async t => {
  const { nodes, members } = await startNodes(t, 2)
  const first = await startGateway(t, members)
  const second = await startGateway(t, members)
  await Promise.all([first, second].map(gateway => untilStates(gateway, { 'node-1': 'up', 'node-2': 'up' })))
  const ends = await Promise.all(Array.from({ length: 16 }, (_, index) => streamed(index % 2 ? first : second, short)))
  t.same([...new Set(ends.map(({ end }) => end))], ['whole'])
  const enginePids = () => nodes.flatMap(node => node.enginePids())
  const before = enginePids()
  const other = streamed(second, { ...short, max_tokens: 300, ignore_eos: true })
  await first.end('SIGKILL')
  t.equal((await other).end, 'whole')
  t.same(enginePids(), before)
  const again = await startReadyGateway(t, members)
  t.equal((await streamed(again, short)).end, 'whole')
  t.same(enginePids(), before)
})

t.test('joining, draining and leaving under load interrupt nothing', async t => {
  const { nodes, members } = await startNodes(t, 3)
  const gateway = await startReadyGateway(t, members.slice(0, 2))
  let isOver = false
  const ends = new Map<string, number>()
  const clients = Array.from({ length: 6 }, async () => {
    while (!isOver) {
      const { end } = await streamed(gateway, { ...short, max_tokens: 60, ignore_eos: true })
      ends.set(end, (ends.get(end) ?? 0) + 1)
    }
  })
  const reload = (list: typeof members) => {
    gateway.configure(gatewayConfig(list, 'storage:\n  demo_model: false\n'))
    return gateway.json('/api/reload', {}, { local: true })
  }
  t.match(await reload(members), { status: 200 })
  await untilStates(gateway, { 'node-3': 'up' })
  t.match(await gateway.json('/api/cluster/drain', { member: 'node-1' }, { local: true }), { status: 200 })
  await until('nothing is left at the drained member', async () =>
    (await getNodes(gateway)).some(({ name, sent }) => name === 'node-1' && sent === 0)
  )
  t.match(await nodes[1]!.json('/api/drain', undefined, { method: 'POST', local: true }), { status: 200 })
  await untilStates(gateway, { 'node-2': 'draining' })
  t.match(await reload(members.slice(2)), { status: 200 })
  const done = [...ends.values()].reduce((sum, count) => sum + count, 0)
  await until('it continues', () => [...ends.values()].reduce((sum, count) => sum + count, 0) > done + 6)
  isOver = true
  await Promise.all(clients)
  t.same([...ends.keys()], ['whole'])
  const left = await getNodes(gateway)
  t.strictSame([left.length, left[0]?.name], [1, 'node-3'])
})

t.test('a hanging member is lost after its silence and used again when it returns', async t => {
  const { nodes, members } = await startNodes(t, 2)
  const gateway = await startReadyGateway(t, members)
  nodes[0]!.process.kill('SIGSTOP')
  t.teardown(() => void nodes[0]!.process.kill('SIGCONT'))
  const ends = await Promise.all(Array.from({ length: 6 }, () => streamed(gateway, short)))
  t.same([...new Set(ends.map(({ end }) => end))], ['whole'], 'requests that had not begun go to another member')
  await untilStates(gateway, { 'node-1': 'away', 'node-2': 'up' })
  nodes[0]!.process.kill('SIGCONT')
  await untilStates(gateway, { 'node-1': 'up', 'node-2': 'up' })
})

t.test('members that cannot be used are reported with the reason', async t => {
  const node = await startCorral(t)
  const keyed = await startCorral(t)
  const made = await keyed.json('/api/keys', { name: 'someone', role: 'user' }, { local: true })
  const user = made.body.key as string
  const page = createServer((_, reply) => reply.end('<p>hello</p>'))
  const other = `http://127.0.0.1:${await listen(t, page)}`
  const gateway = await startGateway(t, [
    { name: 'good', url: node.url },
    { name: 'twin', url: node.url.replace('127.0.0.1', 'localhost') },
    { name: 'wrong-key', url: keyed.url, key: 'corral-wrong' },
    { name: 'user-key', url: keyed.url.replace('127.0.0.1', 'localhost'), key: user },
    { name: 'page', url: other },
    { name: 'nobody', url: 'http://127.0.0.1:9' },
    { name: 'tls', url: node.url.replace('http:', 'https:').replace('127.0.0.1', '127.0.0.2') }
  ])
  await until('all were checked', async () =>
    (await getNodes(gateway)).every(({ state, reason }) => state === 'up' || !/not been reached/.test(reason))
  )
  const reasons = Object.fromEntries(
    (await getNodes(gateway)).map(({ name, state, reason }) => [name, reason ?? state])
  )
  t.match(reasons, {
    'wrong-key': /refuses the key/,
    'user-key': /key belongs to a user/,
    page: /not a corral/,
    nobody: /nothing listens/i
  })
  t.same([reasons.good, reasons.twin].filter(reason => reason === 'up').length, 1)
  const refusal = [reasons.good, reasons.twin].find(reason => reason !== 'up')
  t.match(refusal, /same server as member/)
  t.notMatch(JSON.stringify(await getNodes(gateway)) + gateway.log(), /corral-wrong/, 'no key is shown or logged')
  t.equal((await streamed(gateway, short)).end, 'whole')
  const asUser = { headers: { authorization: `Bearer ${user}` } }
  for (const [path, body] of [
    ['/api/cluster/ask', { model: DEMO, call: 'load', owner: 'x' }],
    ['/api/cluster/describe', { models: [] }]
  ] as const) {
    t.match(await keyed.json(path, body, asUser), { status: 403, body: { code: 'forbidden_role' } }, path)
  }
})

t.test('a gateway that lists itself as a member reports it', async t => {
  const gateway = await startGateway(t, [])
  gateway.configure(gatewayConfig([{ name: 'self', url: gateway.url }]))
  t.match(await gateway.json('/api/reload', {}, { local: true }), { status: 200 })
  await until('it is reported', async () => /this server itself/.test((await getNodes(gateway))[0]?.reason))
})

t.test('another member answers after a refusal or a wrong answer', async t => {
  const { members } = await startNodes(t, 1, { config: 'scheduler:\n  max_queue: 0\n  keep_alive: -1\n' })
  const node = await startCorral(t)
  const gateway = await startReadyGateway(t, [...members, { name: 'good', url: node.url }])
  const ends = await Promise.all(Array.from({ length: 24 }, () => streamed(gateway, short)))
  t.same([...new Set(ends.map(({ end }) => end))], ['whole'], '503 queue_full of one')
})
