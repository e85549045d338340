import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { version } from '../../../../../core/system/package-info.ts'
import { corral } from '../../../../command-line/command.ts'
import { type Corral, newKey, startCorral, until } from '../../../../support/corral.ts'
import { demoWithContext } from '../../../../support/demo-variants.ts'
import { ggufBytes } from '../../../../support/gguf-writer.ts'
import { startHubEmulator } from '../../../../support/hub-emulator/hub-emulator.ts'
import { BAD_SERVERS, engineArchive, releaseFiles } from '../../../../support/release-archives.ts'
import { startReleaseServer } from '../../../../support/release-server.ts'
import { NO_SETTINGS, TINY_CHAT } from '../../../models/download/support.ts'
import { getNodes, startGateway, startReadyGateway, untilStates } from '../support.ts'
import {
  asNodes,
  change,
  clients,
  KEY,
  LIMIT,
  local,
  phases,
  start,
  state,
  untilDone,
  untilState
} from './rollout-trial.ts'

// Rollouts over real nodes while clients stream all the time.

t.setTimeout(900_000)

const MODEL = 'test/tiny-GGUF'
const FILE = 'tiny-F16.gguf'

const digestAt = async (node: Corral): Promise<string> =>
  (await node.json('/api/tags', undefined, local)).body.models.find(({ name }: any) => name.startsWith(MODEL))?.digest
const digests = (nodes: readonly Corral[]) => Promise.all(nodes.map(digestAt))

const startHub = (t: Test) =>
  startHubEmulator(t, { repositories: { [MODEL]: { files: { [FILE]: readFileSync(TINY_CHAT) } } } })

/** A file that looks like a model and is none. */
const unusable = () =>
  Buffer.from(
    ggufBytes({
      metadata: { 'general.architecture': 'llama', 'llama.context_length': 4096, 'llama.embedding_length': 64 },
      tensors: [{ name: 'output.weight', shape: [64] }]
    })
  )

async function startCluster(t: Test, count: number) {
  const hub = await startHub(t)
  const env = { ...NO_SETTINGS, HF_ENDPOINT: hub.url, CORRAL_API_KEYS: KEY }
  const config = 'storage:\n  demo_model: false\n'
  const nodes = await Promise.all(Array.from({ length: count }, () => startCorral(t, { env, config })))
  for (const node of nodes) {
    const pulled = await node.json('/api/pull', { model: MODEL, stream: false }, local)
    t.equal(pulled.status, 200, JSON.stringify(pulled.body))
  }
  return { hub, nodes, members: asNodes(nodes) }
}

t.test(
  'a newer revision reaches all members while clients stream, is undone, and survives a killed gateway',
  async t => {
    const { hub, nodes, members } = await startCluster(t, 3)
    let gateway = await startReadyGateway(t, members)
    const [first] = await digests(nodes)
    const load = clients(t, () => gateway, MODEL)
    await until('all answer', () => load.total() > 4)

    hub.change(MODEL, { [FILE]: demoWithContext(2048) })
    const served = hub.traffic.bytes(FILE)
    const begun = await start(gateway, { kind: 'model', target: MODEL })
    t.equal(begun.status, 200, JSON.stringify(begun.body))
    t.match(await start(gateway, { kind: 'model', target: MODEL }), { status: 409, body: { code: 'rollout_running' } })
    const { nodes: done } = await untilState(gateway, 'done')
    t.same(
      done.map(({ phase }: any) => phase),
      ['done', 'done', 'done']
    )
    const [second, ...others] = await digests(nodes)
    t.not(second, first)
    t.same([...new Set(others)], [second])
    t.ok(hub.traffic.bytes(FILE) - served < 2 * readFileSync(TINY_CHAT).length, 'the hub sent it once')
    const names = (await gateway.json('/api/tags')).body.models.map(({ name }: any) => name)
    t.same(names, [MODEL])
    for (const node of nodes) t.equal((await node.json('/api/tags', undefined, local)).body.models.length, 1)

    // The answer is not as expected, so the first member is restored and the others are not touched.
    hub.change(MODEL, { [FILE]: demoWithContext(1024) })
    await start(gateway, { kind: 'model', target: MODEL, ask: 'What is 7 + 8?', expect: 'an elephant' })
    const failed = await untilState(gateway, 'failed')
    t.match(failed.failure, /^node-1 failed: .*What is 7 \+ 8.*does not contain "an elephant"/)
    t.same(
      failed.nodes.map(({ phase }: any) => phase),
      ['restored', 'waiting', 'waiting']
    )
    t.same([...new Set(await digests(nodes))], [second])
    await untilStates(gateway, { 'node-1': 'up', 'node-2': 'up', 'node-3': 'up' })

    // Paused after the first, then undone.
    t.match(await start(gateway, { kind: 'model', target: MODEL, expect: 'Paris' }), { status: 200 })
    await until('one is on its way', async () => (await phases(gateway))[0] !== 'waiting')
    t.match(await change(gateway, 'pause'), { status: 200, body: { rollout: { state: 'paused' } } })
    await untilDone(gateway, 1)
    await until('it waits', async () => (await state(gateway)).note === 'it is paused')
    t.equal(new Set(await digests(nodes)).size, 2)
    t.match(await change(gateway, 'undo'), { status: 200, body: { rollout: { state: 'undoing' } } })
    await untilState(gateway, 'undone')
    t.same([...new Set(await digests(nodes))], [second])
    t.match(await change(gateway, 'continue'), { status: 404, body: { code: 'rollout_not_found' } })
    const ends = await load.stop()
    t.same(ends, ['whole'])
    t.comment(`${load.total()} answers`)

    // Killed at two moments: while the first member is changed, and between two members.
    t.match(await start(gateway, { kind: 'model', target: MODEL }), { status: 200 })
    await until('it is changed', async () => /^(applied|verified|done)$/.test((await phases(gateway))[0]))
    await gateway.end('SIGKILL')
    gateway = await startReadyGateway(t, members, { home: gateway.home })
    await untilDone(gateway, 1)
    await gateway.end('SIGKILL')
    gateway = await startGateway(t, members, { home: gateway.home })
    await untilState(gateway, 'done')
    const [third, ...rest] = await digests(nodes)
    t.not(third, second)
    t.same([...new Set(rest)], [third])
    await untilStates(gateway, { 'node-1': 'up', 'node-2': 'up', 'node-3': 'up' })
  }
)

t.test('a member that is killed while it is updated, and another gateway, lose nothing', async t => {
  const { hub, nodes, members } = await startCluster(t, 3)
  const [gateway, other] = await Promise.all([startReadyGateway(t, members), startReadyGateway(t, members)])
  const loads = [clients(t, () => gateway, MODEL, 2), clients(t, () => other, MODEL, 2)]
  hub.change(MODEL, { [FILE]: demoWithContext(2048) })
  t.match(await start(gateway, { kind: 'model', target: MODEL }), { status: 200 })
  await until('it is changed', async () => /^appl/.test((await phases(gateway))[0]), LIMIT)
  const [killed] = nodes
  await killed!.end('SIGKILL')
  await untilStates(gateway, { 'node-1': 'away' })
  nodes[0] = await startCorral(t, {
    ...{ home: killed!.home, flags: ['--port', new URL(killed!.url).port], config: 'storage:\n  demo_model: false\n' },
    env: { ...NO_SETTINGS, HF_ENDPOINT: hub.url, CORRAL_API_KEYS: KEY }
  })
  await untilState(gateway, 'done')
  t.equal(new Set(await digests(nodes)).size, 1)
  for (const load of loads) t.same(await load.stop(), ['whole'])

  // A revision that no engine can load.
  hub.change(MODEL, { [FILE]: unusable() })
  t.match(await start(gateway, { kind: 'model', target: MODEL }), { status: 200 })
  t.match((await untilState(gateway, 'failed')).failure, /^node-1 failed/)
  t.equal(new Set(await digests(nodes)).size, 1)
  t.match(await change(gateway, 'undo'), { status: 200 })
  await untilState(gateway, 'undone')
  for (const node of nodes) t.equal((await node.json('/api/tags', undefined, local)).body.models.length, 1)
})

t.test('a canary gets its part of the requests, and another gateway may not interfere', async t => {
  const { hub, nodes, members } = await startCluster(t, 2)
  const gateway = await startReadyGateway(t, members, { env: { CORRAL_API_KEYS: '' } })
  const other = await startReadyGateway(t, members)
  const tester = await newKey(gateway, 'tester')
  const somebody = await newKey(gateway, 'somebody')
  hub.change(MODEL, { [FILE]: demoWithContext(2048) })
  t.match(await start(gateway, { kind: 'model', target: MODEL, canary: { key: 'tester' } }), { status: 200 })
  await until('it waits', async () => /part of the requests/.test((await state(gateway)).note), LIMIT)
  const refused = await start(other, { kind: 'model', target: MODEL })
  t.match(refused, { status: 409, body: { code: 'rollout_running', error: /Another gateway/ } })

  const total = async (node: Corral) => {
    const text = await (await node.send('/metrics', undefined, local)).text()
    return [...text.matchAll(/^corral_tokens_total\{.* (\d+)$/gm)].reduce((sum, [, count]) => sum + Number(count), 0)
  }
  const asked = { model: MODEL, messages: [{ role: 'user', content: 'What is 7 + 8?' }], max_tokens: 5 }
  const answeredBy = async (headers: Record<string, string>) => {
    const before = await Promise.all(nodes.map(total))
    for (let turn = 0; turn < 3; turn++) {
      t.equal((await gateway.json('/v1/chat/completions', asked, { headers })).status, 200)
    }
    const after = await Promise.all(nodes.map(total))
    return after.map((count, index) => count > before[index]!)
  }
  t.same(await answeredBy({ authorization: `Bearer ${tester}` }), [true, false])
  t.same(await answeredBy({ authorization: `Bearer ${somebody}` }), [false, true])
  t.match(await change(gateway, 'continue'), { status: 200 })
  await untilState(gateway, 'done')
  t.equal(new Set(await digests(nodes)).size, 1)
})

t.test('another build of llama.cpp is used by all members, or by none', async t => {
  const hub = await startHub(t)
  const server = await startReleaseServer(t)
  server.publish('b100', releaseFiles('b100', await engineArchive('b100')))
  const runtimes = `  sources: [release]\n  release:\n    api_url: ${server.url}\n    version: b100\n`
  const env = { ...NO_SETTINGS, HF_ENDPOINT: hub.url, CORRAL_API_KEYS: KEY, CORRAL_LLAMA_CPP: '' }
  const nodes = await Promise.all([1, 2].map(() => startCorral(t, { env, runtimes })))
  for (const node of nodes) {
    t.equal((await node.json('/api/pull', { model: MODEL, stream: false }, local)).status, 200)
    t.equal((await node.json('/api/load', { model: MODEL }, local)).status, 200)
  }
  const gateway = await startReadyGateway(t, asNodes(nodes))
  const builds = () =>
    Promise.all(nodes.map(async node => (await node.json('/api/runtimes', undefined, local)).body.chosen.id))
  t.same(await builds(), ['release-b100-cpu', 'release-b100-cpu'])
  const load = clients(t, () => gateway, MODEL)

  server.publish('b200', releaseFiles('b200', await engineArchive('b200')))
  t.match(await start(gateway, { kind: 'llama', target: 'b200' }), { status: 200 })
  await untilState(gateway, 'done')
  t.same(await builds(), ['release-b200-cpu', 'release-b200-cpu'])
  t.match(await change(gateway, 'undo'), { status: 200 })
  await untilState(gateway, 'undone')
  t.same(await builds(), ['release-b100-cpu', 'release-b100-cpu'])

  server.publish('b300', releaseFiles('b300', await engineArchive('b300', BAD_SERVERS.failsLater)))
  t.match(await start(gateway, { kind: 'llama', target: 'b300' }), { status: 200 })
  const failed = await untilState(gateway, 'failed')
  t.match(failed.failure, /^node-1 failed/)
  t.same(await builds(), ['release-b100-cpu', 'release-b100-cpu'])
  await untilStates(gateway, { 'node-1': 'up', 'node-2': 'up' })
  t.same(await load.stop(), ['whole'])
})

t.test('members are restarted one after the other, and a key that is not an admin is refused', async t => {
  const { nodes, members } = await startCluster(t, 2)
  const key = await newKey(nodes[0]!, 'front', { role: 'operator' })
  const weak = await startReadyGateway(t, [{ ...members[0]!, key }, members[1]!])
  t.match(await start(weak, { kind: 'corral' }), {
    status: 403,
    body: { code: 'forbidden_role', error: /node-1.*--role admin/ }
  })
  const told = join(t.testdir(), 'restarts')
  const command = JSON.stringify(['/bin/sh', '-c', `echo $CORRAL_MEMBER $CORRAL_VERSION >> ${told}`])
  const gateway = await startReadyGateway(t, members, { cluster: `  rollout: {restart_command: ${command}}\n` })
  const run = (...words: string[]) => corral(['rollout', ...words], { home: gateway.home })
  t.match(await run('start', 'corral', '--expect', 'Paris', '--after', '5m'), { code: 2, stderr: /--after needs/ })
  t.match(await run('start', 'corral', '--expect', 'Paris'), { code: 0, stderr: /2 members/ })
  for (const [index, node] of nodes.entries()) {
    await until(
      'it waits for the restart',
      async () => /^Waits for its restart/.test((await state(gateway)).nodes[index].note),
      LIMIT
    )
    t.match(await run('status'), {
      code: 0,
      stdout: new RegExp(`running[^]*node-${index + 1} +applying +Waits for its restart`)
    })
    t.match((await getNodes(gateway))[index], { state: 'draining', rollout: /^Waits for its restart/ })
    t.match(await node.json('/api/drain', undefined, local), { body: { draining: true, open: 0 } })
    await node.end()
    nodes[index] = await startCorral(t, {
      ...{ home: node.home, flags: ['--port', new URL(node.url).port], env: { ...NO_SETTINGS, CORRAL_API_KEYS: KEY } },
      config: 'storage:\n  demo_model: false\n'
    })
  }
  await untilState(gateway, 'done')
  await untilStates(gateway, { 'node-1': 'up', 'node-2': 'up' })
  t.equal(readFileSync(told, 'utf8'), `node-1 ${version}\nnode-2 ${version}\n`)
  t.match(await run('pause'), { code: 1, stderr: /No rollout can be changed/ })
  t.match((await gateway.json('/api/cluster')).body.rollout, { kind: 'corral', target: version, state: 'done' })
})
