import { createServer, type RequestListener } from 'node:http'
import t, { type Test } from 'tap'
import { settingsFor } from '../../../core/config/model-settings.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { WorkerFacts } from '../../../core/contracts/workers.ts'
import { WORKER_ALIVE_PATH, WORKER_PATH } from '../../../core/contracts/workers.ts'
import { engineArguments } from '../../../runtimes/llama-server/arguments.ts'
import { devicePools, withWorkers } from '../../../runtimes/llama-server/memory/device-placement.ts'
import { estimateFromMetadata } from '../../../runtimes/llama-server/memory/engine-need.ts'
import { needKey } from '../../../runtimes/llama-server/memory/memory-estimates.ts'
import {
  buildMismatch,
  createRpcWorkers,
  inWorkerPools,
  lostWorkerFailure,
  pooledDevices,
  type RpcWorker,
  workerDevices
} from '../../../runtimes/llama-server/rpc-workers.ts'
import { failure } from '../../support/failure.ts'
import { listen } from '../../support/listen.ts'
import { buildOf, engineSpec } from '../llama-server/support.ts'

/*
 * Tests the side of the corral whose models use workers: its questions, rejections and use of the answers. Stand-ins
 * for workers give wrong answers that real workers do not.
 */

const GIB = 2 ** 30
const LOG = { debug() {}, warn() {} }
const OWN = { ...buildOf('/llama-server'), id: 'release-b11347-cpu', source: 'release', commit: 'aaaaaaa' }

function facts(given: Partial<WorkerFacts> = {}): WorkerFacts {
  const { id, kind, source, version, digest } = OWN
  return {
    corral: '1',
    platform: process.platform,
    arch: process.arch,
    build: { id, kind, source, version, digest },
    instance: 'one',
    busy: false,
    devices: [{ name: 'CPU', description: 'A processor', total: 8 * GIB, usable: 6 * GIB, free: 5 * GIB }],
    ...given
  }
}

/** Starts a stand-in for a worker. Returns its name in settings. */
async function standIn(t: Test, listener: RequestListener): Promise<string> {
  return `127.0.0.1:${(await listen(t, createServer(listener))) - 1}`
}

/** Starts a stand-in that answers with JSON. */
const telling = (t: Test, tell: () => unknown, status = 200) =>
  standIn(t, (_, response) => {
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(tell()))
  })

function workersFor(
  t: Test,
  ...resolve: Parameters<typeof createRpcWorkers> extends [unknown, ...infer Rest] ? Rest : []
) {
  const workers = createRpcWorkers(LOG, ...resolve)
  t.teardown(() => workers.close())
  return workers
}

const reach = (workers: ReturnType<typeof createRpcWorkers>, name: string, insecure = false) =>
  workers.reach('me/large', { workers: [name], insecure }, OWN, {})

t.test('a gateway requires the same llama.cpp at both ends', async t => {
  const own = { ...OWN, digest: 'a' }
  const build = (given: Partial<WorkerFacts['build']>) => ({ ...facts().build, digest: 'b', ...given })
  const here = { platform: 'linux', arch: 'x64' }
  const there = { platform: 'darwin', arch: 'arm64' }
  const table: [string, Partial<WorkerFacts['build']>, typeof here, RegExp | undefined, Partial<typeof own>?][] = [
    ['the same file', { digest: 'a', id: 'x' }, here, undefined],
    ['the same release for another system', {}, there, undefined],
    ['the same release for other hardware', { id: 'release-b11347-cuda-13' }, here, undefined],
    ['another file of the same archive', {}, here, /differs from that of this machine.*SHA-256 b… there, a… here/],
    ['another release', { id: 'release-b11300-cpu' }, here, /it has llama.cpp test \(release-b11300-cpu\)/],
    ['the same commit', { id: 'system-1', source: 'system', commit: 'aaaaaaa' }, here, undefined],
    ['another commit', { id: 'system-1', source: 'system', commit: 'bbbbbbb' }, here, /but this machine has test/],
    ['unknown origin', { id: 'system-1', source: 'system' }, here, /it has llama.cpp/],
    ['compiled twice', { id: 'source-v0.5.0-cuda', source: 'source' }, here, undefined, { id: 'source-v0.5.0-cpu' }],
    ['compiled elsewhere', { id: 'source-v0.5.1-cpu', source: 'source' }, here, /v0.5.1/, { id: 'source-v0.5.0-cpu' }]
  ]
  for (const [what, given, { platform, arch }, expected, ours] of table) {
    const found = buildMismatch({ ...own, ...ours }, { build: build(given), platform, arch }, here)
    if (expected) t.match(found, expected, what)
    else t.equal(found, undefined, what)
  }
})

t.test('a matching worker is reached, and its memory is a pool', async t => {
  const name = await telling(t, facts)
  const workers = workersFor(t)
  const [worker] = await reach(workers, name)
  t.match(worker, { name, endpoint: name, facts: { instance: 'one' } })
  t.same(await workers.budgets({}), { [name]: 5 * GIB })
  t.same(await workers.budgets({ [name]: 2 * GIB }), { [name]: 6 * GIB }, 'the memory of engines stays in the budget')
})

t.test('a gateway rejects unusable workers with their names', async t => {
  const workers = workersFor(t)
  const build = { ...facts().build, digest: 'other', id: 'release-b1-cpu' }
  const [other, foreign, refusing, starting, endless] = await Promise.all([
    telling(t, () => facts({ build })),
    telling(t, () => ({ hello: 'world' })),
    telling(t, () => ({}), 404),
    telling(t, () => ({}), 503),
    standIn(t, (_, response) => {
      response.writeHead(200)
      const more = () => {
        while (response.write('x'.repeat(65_536)));
      }
      response.on('drain', more)
      more()
    })
  ])
  // Nothing listens here.
  const gone = '127.0.0.1:8'
  const table: [string, string, RegExp][] = [
    [gone, 'rpc_unreachable', /cannot be reached \(.*ECONNREFUSED.*Start "corral worker" there/],
    [foreign, 'rpc_unreachable', /not from a "corral worker" of this version/],
    [refusing, 'rpc_unreachable', /status 404/],
    [starting, 'rpc_unreachable', /is restarting/],
    [endless, 'rpc_unreachable', /answer is too long/],
    [other, 'rpc_mismatch', /because it has llama.cpp test \(release-b1-cpu\), but this machine has test/]
  ]
  for (const [name, cause, message] of table) {
    const error = await failure(reach(workers, name))
    const code = cause === 'rpc_mismatch' ? 'load_failed' : 'engine_unreachable'
    t.match(error, { code, message, details: { cause, worker: name } }, cause)
    t.ok(error.message.includes(`"me/large"`) && error.message.includes(name))
  }
})

t.test('a gateway accepts public addresses only if allowed', async t => {
  const name = await telling(t, facts)
  const port = name.split(':')[1]
  const resolve = (async (host: string) => {
    if (host === 'nowhere') throw new Error('getaddrinfo ENOTFOUND')
    // The second address would be used some day.
    const found = host === 'both' ? ['127.0.0.1', '8.8.8.8'] : host === 'far' ? ['8.8.8.8'] : ['127.0.0.1']
    return found.map(address => ({ address, family: 4 }))
  }) as never
  const workers = workersFor(t, resolve)
  for (const host of ['far', 'both']) {
    const error = await failure(reach(workers, `${host}:${port}`))
    t.match(error, { code: 'load_failed', details: { cause: 'rpc_public' }, message: /8\.8\.8\.8.*rpc_insecure/ })
  }
  t.match(await reach(workers, `both:${port}`, true), [{ name: `both:${port}`, endpoint: name }])
  t.match(await reach(workers, `near:${port}`), [{ name: `near:${port}`, endpoint: name }])
  t.match(await failure(reach(workers, 'nowhere:1')), { details: { cause: 'rpc_unreachable', worker: 'nowhere:1' } })
})

t.test('a gateway waits for a worker whose last client may have just ended', async t => {
  let asked = 0
  const name = await telling(t, () => facts({ busy: ++asked < 3 }))
  const workers = workersFor(t)
  const found = await workers.reachFree('me/large', { workers: [name], insecure: false }, OWN, {})
  t.equal(found[0]!.facts.busy, false)
  t.equal(asked, 3)
  const busy = await telling(t, () => facts({ busy: true }))
  const controller = new AbortController()
  const { signal } = controller
  const waiting = failure(workers.reachFree('me/large', { workers: [busy], insecure: false }, OWN, { signal }))
  controller.abort(new Error('the client left'))
  t.match(await waiting, /the client left|aborted/)
})

t.test('a worker whose server ends is reported lost, once, with its name', async t => {
  const replies: { end(): void }[] = []
  const name = await standIn(t, (request, response) => {
    if (request.url === WORKER_PATH) return response.end(JSON.stringify(facts()))
    t.equal(request.url, WORKER_ALIVE_PATH)
    response.writeHead(200).write('one\n')
    return replies.push(response)
  })
  const workers = workersFor(t)
  const found = await reach(workers, name)
  const lost: string[] = []
  const following = workers.follow(found, worker => lost.push(worker))
  while (replies.length === 0) await new Promise(resolve => setImmediate(resolve))
  t.same(lost, [])
  replies[0]!.end()
  t.equal(await following.lost, name)
  t.same(lost, [name])

  const again = workers.follow([{ ...found[0]!, facts: facts({ instance: 'earlier' }) }], worker => lost.push(worker))
  t.equal(await again.lost, name, 'it was restarted meanwhile')
  const closed = workers.follow(found, () => t.fail('nobody follows it any more'))
  closed.close()
  await new Promise(resolve => setTimeout(resolve, 50))
  for (const [hasBegun, code] of [
    [true, 'engine_crashed'],
    [false, 'load_failed']
  ] as const) {
    t.match(lostWorkerFailure('me/large', name, hasBegun), { code, details: { cause: 'rpc_lost', worker: name } })
  }
})

const gpu = (name: string, gib: number) => ({
  name,
  description: 'GPU',
  total: gib * GIB,
  usable: (gib - 1) * GIB,
  free: (gib - 1) * GIB
})
const two: RpcWorker[] = [
  { name: 'a:50052', endpoint: '10.0.0.1:50052', facts: facts({ devices: [gpu('CUDA0', 5), gpu('CUDA1', 9)] }) },
  { name: 'b:50052', endpoint: '10.0.0.2:50052', facts: facts() }
]

t.test('layers are shared by free memory, workers first', async t => {
  const pooled = two.flatMap(pooledDevices).map(({ pool }) => pool)
  t.same(pooled, ['a:50052 CUDA0', 'a:50052 CUDA1', 'b:50052'])
  t.same(inWorkerPools({ RPC0: 1, RPC2: 3, CUDA0: 4, host: 5, RPC7: 6 }, two), {
    'a:50052 CUDA0': 1,
    'b:50052': 3,
    CUDA0: 4,
    host: 5,
    RPC7: 6
  })
  const build = { ...OWN, devices: [{ id: 'CUDA0', description: 'GPU', totalMemory: 4 * GIB }] }
  const own = devicePools(build, [], { limit: undefined, main: [] })
  const pools = withWorkers(own, workerDevices(two), 1)
  const names = pools.devices.map(({ pool }) => pool)
  t.same(names, ['a:50052 CUDA0', 'a:50052 CUDA1', 'b:50052', 'CUDA0'])
  t.same(pools.shares, [4 * GIB, 8 * GIB, 6 * GIB, 3 * GIB])
  t.same(pools.margins, [GIB, GIB, 2 * GIB, GIB])
  const unknown = withWorkers({ ...own, devices: [] }, workerDevices(two), 1)
  const both = [unknown.shares, unknown.margins]
  t.same(both, [undefined, undefined], 'the share of a device with unknown memory is unknown')
})

t.test('a gateway estimates a distributed model and starts its engine', async t => {
  const spec = { ...engineSpec(), workers: two }
  const where = { memory: 64 * GIB, arch: 'x64', amx: false }
  const { devices, shares, margins } = withWorkers(
    { getPool: name => name, devices: [], margins: undefined },
    workerDevices(two),
    0
  )
  const place = { ...where, devices, shares: shares!, margins: margins! }
  const small = estimateFromMetadata(spec, { shape: undefined, size: GIB, loras: 0 }, place)
  t.ok(small.settled)
  t.ok(
    two.flatMap(pooledDevices).every(({ pool }) => (small.core[pool] ?? 0) > 0),
    'each worker has a part'
  )
  const bounds = { checkpoints: 1 }
  const settings = { listen: { socketPath: '/s' } }
  const list = engineArguments({ ...spec, bounds: { ...bounds, ...small.bounds } }, settings)
  t.equal(list[list.indexOf('--rpc') + 1], '10.0.0.1:50052,10.0.0.2:50052')
  t.equal(list[list.indexOf('--tensor-split') + 1], [4 * 1024, 8 * 1024, 6 * 1024].join(','))

  const large = estimateFromMetadata(spec, { shape: undefined, size: 60 * GIB, loras: 0 }, place)
  t.notOk(large.settled, 'not all of it fits on the workers')
  const fitted = engineArguments({ ...spec, bounds: large.bounds }, settings)
  t.notOk(fitted.includes('--tensor-split'), 'llama.cpp must place the rest')
  t.equal(fitted[fitted.indexOf('--fit-target') + 1], [1024, 1024, 2048].join(','))

  const flags = new Set(['--model', '--jinja'])
  t.throws(() => engineArguments(spec, { ...settings, knownFlags: flags }), {
    code: 'load_failed',
    message: /has no RPC/
  })
  t.notOk(engineArguments(engineSpec(), settings).includes('--rpc'))
  t.not(needKey(spec, OWN), needKey({ ...spec, workers: [two[1]!] }, OWN), 'one placement does not teach about another')
  t.equal(needKey({ ...spec, workers: [] }, OWN), needKey(engineSpec(), OWN))
})

t.test('models that share a worker share a group', async t => {
  const model = { model: { owner: 'me', name: 'large' }, key: 'me/large:q8' } as unknown as Model
  const config = { models: { 'me/large': { rpc: ['B:1', 'c:2'], groups: ['Big'] } }, defaults: {}, limits: {} }
  const settings = settingsFor(config as never, model)
  t.same(settings.groups, ['big', 'worker b:1', 'worker c:2'])
  t.same(settings.engine.rpc, { workers: ['B:1', 'c:2'], insecure: false })
  const plain = settingsFor({ ...config, models: { 'me/large': { rpc: [] } } } as never, model)
  t.same([plain.groups, plain.engine.rpc], [[], undefined])
})
