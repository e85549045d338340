import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { type Corral, DEMO, startCorral, until } from '../../../support/corral.ts'
import { getNodes, type NodeCorral, startGateway, startReadyGateway, untilStates } from './support.ts'

t.setTimeout(900_000)

/** Nodes with few slots, so that few requests make a queue. */
const FEW_SLOTS = 'defaults:\n  num_parallel: 2\n'
/** Timeout in milliseconds for steps of several seconds on an idle machine. */
const LIMIT = 180_000

/** @param more further configuration of a node */
const startNode = async (t: Test, more = ''): Promise<Corral> => await startCorral(t, { config: `${FEW_SLOTS}${more}` })

async function startAll(t: Test, nodes: readonly Promise<Corral>[], cluster: string, config = '') {
  const all = await Promise.all(nodes)
  const members = all.map(({ url }, index): NodeCorral => ({ name: `node-${index + 1}`, url }))
  const gateway = await startGateway(t, members, { cluster: `  replicas: {${cluster}}\n`, config })
  await untilStates(gateway, Object.fromEntries(members.map(({ name }) => [name, 'up'])))
  return { nodes: all, members, gateway }
}

/** Nodes that have the model, as the gateway shows them. */
const holders = async (gateway: Corral): Promise<string[]> =>
  (await getNodes(gateway)).flatMap(({ name, loaded, state }) =>
    state === 'up' && loaded.includes(DEMO) ? [name] : []
  )

const replicasOf = async (gateway: Corral) => (await gateway.json('/api/cluster')).body.replicas[0]

/** Clients that send one request after the other. @returns stops them, and resolves to how their requests ended */
function clients(gateway: Corral, count: number): () => Promise<string[]> {
  let isOver = false
  const ends = new Set<string>()
  const asked = { model: DEMO, messages: [{ role: 'user', content: 'Count.' }], ignore_eos: true, max_tokens: 80 }
  const all = Array.from({ length: count }, async () => {
    while (!isOver) {
      const { status, body } = await gateway.json('/v1/chat/completions', asked)
      ends.add(status === 200 ? 'whole' : body.error?.code)
    }
  })
  return async () => {
    isOver = true
    await Promise.all(all)
    return [...ends]
  }
}

t.test('a long queue loads the model at another member, and a short one unloads it again', async t => {
  const { gateway } = await startAll(t, [startNode(t), startNode(t)], 'cooldown: 3s')
  t.equal((await gateway.json('/api/load', { model: DEMO })).status, 200)
  await until('it is shown', async () => (await replicasOf(gateway))?.loaded === 1)
  const [first] = await holders(gateway)
  t.match(await replicasOf(gateway), {
    model: DEMO,
    mode: 'chat',
    wanted: 1,
    loading: 0,
    min: 0,
    reason: 'The number is right.'
  })
  const end = clients(gateway, 10)
  await until('both have it', async () => (await holders(gateway)).length === 2, LIMIT)
  await until('both answer', async () => (await getNodes(gateway)).every(({ running }) => running > 0), LIMIT)
  await until('both are counted', async () => (await replicasOf(gateway)).loaded === 2)
  t.same(await end(), ['whole'])
  await until('one has unloaded it', async () => (await holders(gateway)).length === 1, LIMIT)
  t.same(await holders(gateway), [first], 'the first holder keeps it')
  t.equal(gateway.log().split('a replica of a model was loaded').length, 2, 'it was loaded once')
  t.equal((await gateway.json('/api/chat', { model: DEMO, messages: [], stream: false })).status, 200)
})

t.test('a replica does not evict another model', async t => {
  // The first node could take a second model only by evicting the first.
  const { gateway, nodes } = await startAll(t, [startNode(t), startNode(t, 'scheduler:\n  max_loaded_models: 1\n')], '')
  const made = await nodes[1]!.json('/api/copy', { source: DEMO, destination: 'me/other' })
  t.equal(made.status, 200, JSON.stringify(made.body))
  t.equal((await nodes[1]!.json('/api/load', { model: 'me/other', keep_alive: -1 })).status, 200)
  t.equal((await nodes[0]!.json('/api/load', { model: DEMO })).status, 200)
  await until('the gateway knows', async () => (await holders(gateway)).join() === 'node-1')
  const end = clients(gateway, 10)
  const failed = await until(
    'the lack of room is reported',
    async () => (await gateway.json('/api/cluster')).body.replicas.find(({ failures }: any) => failures.length > 0),
    LIMIT
  )
  t.match(failed, { model: DEMO, loaded: 1, failures: [{ member: 'node-2', message: /no room/ }] })
  t.match((await nodes[1]!.json('/api/ps')).body.models, [{ name: 'me/other' }])
  t.same(await end(), ['whole'])
})

t.test('a minimum is loaded at once, replaced when a member dies, and kept when idle', async t => {
  // Models are unloaded soon unless they are kept.
  const short = 'scheduler:\n  keep_alive: 3s\n'
  const config = `models:\n  ${DEMO}:\n    replicas: {min: 2}\n`
  const { gateway, nodes } = await startAll(
    t,
    [startNode(t, short), startNode(t, short), startNode(t, short)],
    '',
    config
  )
  const both = await until(
    'two have it',
    async () => {
      const names = await holders(gateway)
      return names.length === 2 ? names : undefined
    },
    LIMIT
  )
  await until('both are counted', async () => (await replicasOf(gateway))?.loaded === 2)
  t.match(await replicasOf(gateway), { wanted: 2, min: 2 })
  const lost = both[0]!
  await nodes[Number(lost.slice(-1)) - 1]!.end('SIGKILL')
  await until(
    'two others have it',
    async () => {
      const names = await holders(gateway)
      return names.length === 2 && !names.includes(lost)
    },
    LIMIT
  )
  const engines = nodes.flatMap(node => node.enginePids()).sort()
  t.equal(engines.length, 2)
  const events = gateway.log().split('\n').length
  const began = performance.now()
  await until('several times its keep-alive', () => performance.now() - began > 12_000)
  t.same(nodes.flatMap(node => node.enginePids()).sort(), engines, 'they stay the same')
  t.ok(gateway.log().split('\n').length - events < 10, 'renewals are not logged')
  t.match(await gateway.json('/api/reload', {}, { local: true }), { status: 200 })
})

t.test('a failed load is reported and not retried in a loop, even with two gateways', async t => {
  const broken = `models:\n  ${DEMO}:\n    arguments: [--no-such-flag]\n`
  const { gateway, nodes, members } = await startAll(t, [startNode(t), startNode(t, broken)], '')
  const other = await startReadyGateway(t, members)
  t.equal((await nodes[0]!.json('/api/load', { model: DEMO })).status, 200)
  for (const each of [gateway, other]) await until('it knows', async () => (await holders(each)).join() === 'node-1')
  const ends = [clients(gateway, 6), clients(other, 6)]
  for (const each of [gateway, other]) {
    const { failures } = await until(
      'the failure is shown',
      async () => {
        const replicas = await replicasOf(each)
        return replicas?.failures.length > 0 && replicas
      },
      LIMIT
    )
    t.match(failures, [{ member: 'node-2', message: String, retry_at: String }])
  }
  const tried = () => gateway.log().split('a replica of a model was not loaded').length - 1
  const began = performance.now()
  await until('several checks', () => performance.now() - began > 10_000)
  t.ok(tried() <= 2, `it was tried ${tried()} times`)
  for (const end of ends) t.same(await end(), ['whole'])
})

t.test('files are copied ahead of time, to as many members as configured, by two gateways together', async t => {
  const without = 'storage:\n  demo_model: false\n'
  const config = `models:\n  ${DEMO}:\n    replicas: {copies: 2}\n`
  const { gateway, members } = await startAll(
    t,
    [startNode(t), startNode(t, without), startNode(t, without)],
    '',
    config
  )
  const other = await startReadyGateway(t, members, { config })
  const having = async () => (await getNodes(gateway)).filter(({ models }) => models.includes(DEMO)).length
  await until('two have it', async () => (await having()) === 2, LIMIT)
  const plans = async () =>
    (await Promise.all([gateway, other].map(each => each.json('/api/cluster')))).flatMap(({ body }) => body.plan)
  await until('nothing is left to do', async () => (await plans()).length === 0, LIMIT)
  t.equal(await having(), 2, 'no more than that')
  t.same(await holders(gateway), [], 'and none in memory')
})

t.test('a model bound to a member is warm there, then unloaded when unused, and loaded again on request', async t => {
  const config = `models:\n  ${DEMO}:\n    replicas: {nodes: [node-2], schedule: [{at: "00:00-24:00", min: 1}]}\n`
  const { gateway, nodes } = await startAll(t, [startNode(t), startNode(t)], '', config)
  await until('it is loaded there', async () => (await holders(gateway)).join() === 'node-2', LIMIT)
  await until('it is counted', async () => (await replicasOf(gateway))?.loaded === 1)
  const [warm] = (await nodes[1]!.json('/api/ps')).body.models
  t.equal(warm.generated_tokens, 1, 'it has answered a first question before the gateway counts it')
  t.match(await replicasOf(gateway), { wanted: 1, loaded: 1, members: ['node-2'] })
  t.equal(
    (await gateway.json('/api/cluster')).body.wanted,
    2,
    'for autoscalers: none is given back before the cooldown'
  )

  const file = join(gateway.home, 'config.yaml')
  const idle = readFileSync(file, 'utf8').replace(/schedule: .*\]/, 'idle: 2s')
  writeFileSync(file, idle)
  t.match(await gateway.json('/api/reload', {}, { local: true }), { status: 200 })
  await until('it is unloaded', async () => (await holders(gateway)).length === 0, LIMIT)
  const chat = { model: DEMO, messages: [{ role: 'user', content: 'Count.' }], stream: false }
  const answers = await Promise.all(Array.from({ length: 4 }, () => gateway.json('/api/chat', chat)))
  for (const { status, body } of answers) t.equal(status, 200, JSON.stringify(body))
  const first = answers[0]!.body
  t.ok(first.load_duration > 0, 'it waited for the load')
  t.comment(`${first.load_duration / 1e9} s for the load, ${first.total_duration / 1e9} s in all`)
  t.same(nodes[0]!.enginePids(), [], 'only where it may run')
  await until('it is unloaded again', async () => (await holders(gateway)).length === 0, LIMIT)
})
