import { existsSync, mkdirSync, readdirSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { request } from 'undici'
import { WORKER_ALIVE_PATH, WORKER_PATH, type WorkerOptions } from '../../../core/contracts/workers.ts'
import { surplusFiles, WorkerCache } from '../../../runtimes/llama-cpp/worker/worker-cache.ts'
import { createWorkerHost, listenAddress, offeredDevices } from '../../../runtimes/llama-cpp/worker/worker-host.ts'
import { parseDevice } from '../../../runtimes/llama-server/server-facts.ts'
import { until } from '../../support/corral.ts'
import { failure } from '../../support/failure.ts'
import { hardwareService, plainMachine } from '../llama-cpp/fake-build.ts'
import { realBuild } from '../llama-server/support.ts'
import { freePorts, rpcServers } from './support.ts'

/* Tests the worker's side. */

const GIB = 2 ** 30

t.test('a worker host parses the devices of ggml-rpc-server', async t => {
  t.same(parseDevice('  CUDA0: NVIDIA GeForce RTX 3090 (24576 MiB, 24000 MiB free)'), {
    id: 'CUDA0',
    description: 'NVIDIA GeForce RTX 3090',
    totalMemory: 24 * GIB,
    freeMemory: 24000 * 2 ** 20
  })
  t.match(parseDevice('  CPU: Intel(R) Xeon(R) Processor (24105 MiB, 24105 MiB free)'), { id: 'CPU' })
  for (const line of ['  endpoint       : 127.0.0.1:50052', '  transport      : TCP', 'Devices:']) {
    t.equal(parseDevice(line), undefined)
  }
})

t.test('a worker host computes the offer of each device', async t => {
  const cpu = { id: 'CPU', description: 'A processor', totalMemory: 40 * GIB, freeMemory: 40 * GIB }
  const now = { host: { total: 40 * GIB, available: 30 * GIB }, gpus: {} }
  const lent = (given: object) => offeredDevices([cpu], { gpus: [], now, own: 0, limit: undefined, ...given })[0]!
  t.match(
    lent({}),
    { name: 'CPU', total: 40 * GIB, usable: 30 * GIB, free: 30 * GIB },
    'memory that other programs leave free'
  )
  t.match(lent({ own: 20 * GIB }), { usable: 36 * GIB, free: 30 * GIB }, "its client's memory is part of the offer")
  t.match(lent({ limit: 8 * GIB }), { usable: 8 * GIB, free: 8 * GIB }, 'no more than allowed')
  const cuda = { id: 'CUDA0', description: 'A GPU', totalMemory: 24 * GIB, freeMemory: 10 * GIB }
  const gpus = offeredDevices([cuda], { gpus: [], now, own: 0, limit: undefined })
  t.match(gpus, [{ name: 'CUDA0', usable: 23 * GIB, free: 10 * GIB }])
})

t.test('restricts the addresses of a worker', async t => {
  const interfaces = (...addresses: string[]) =>
    (() => ({ eth0: addresses.map(address => ({ address, family: 'IPv4', internal: false })) })) as never
  t.equal(await listenAddress('127.0.0.1', false), '127.0.0.1')
  t.equal(await listenAddress('localhost', false), '127.0.0.1')
  t.equal(await listenAddress('192.168.7.5', false), '192.168.7.5')
  t.equal(await listenAddress('100.64.1.2', false), '100.64.1.2')
  t.equal(await listenAddress('0.0.0.0', false, interfaces('10.0.0.5', '127.0.0.1')), '0.0.0.0')
  const open = await failure(listenAddress('0.0.0.0', false, interfaces('10.0.0.5', '8.8.4.4')))
  t.match(open, { code: 'address_not_allowed', message: /8\.8\.4\.4.*--insecure/ })
  // Also an address of this machine, but reachable from outside.
  t.match(await failure(listenAddress('8.8.8.8', false, interfaces('8.8.8.8'))), { code: 'address_not_allowed' })
  t.equal(await listenAddress('8.8.8.8', true), '8.8.8.8')
  t.match(await failure(listenAddress('::1', false)), { code: 'invalid_request', message: /not an IPv4 address/ })
})

t.test('the cache of weights is limited and contains only complete files', async t => {
  const file = (name: string, size: number, usedAt: number) => ({ name, size, usedAt })
  const files = [file('new', 5, 3), file('old', 5, 1), file('middle', 5, 2)]
  const names = (limit: number) => surplusFiles(files, limit).map(({ name }) => name)
  t.same([names(15), names(14), names(9), names(0)], [[], ['old'], ['old', 'middle'], ['old', 'middle', 'new']])

  const directory = join(t.testdir(), 'cache')
  const folder = join(directory, 'rpc')
  mkdirSync(folder, { recursive: true })
  const write = (name: string, size: number, at: number) => {
    writeFileSync(join(folder, name), Buffer.alloc(size))
    utimesSync(join(folder, name), at, at)
  }
  const cache = new WorkerCache(directory, 250)
  write('unknown', 10, 1)
  await cache.prepare()
  t.same(readdirSync(folder), [], 'it may be incomplete')
  write('a', 100, 1)
  write('b', 100, 2)
  await cache.settle()
  write('c', 100, 3)
  await cache.trim()
  t.same(readdirSync(folder).sort(), ['b', 'c'], 'the oldest one makes room')
  write('b', 50, 4)
  await new WorkerCache(directory, 250).prepare()
  t.same(readdirSync(folder), [], 'one was being written when everything ended, the other is truncated')
})

t.test('a worker host runs the real ggml-rpc-server', async t => {
  const build = realBuild()
  const rpcServer = join(build.directory, 'ggml-rpc-server')
  const deps = {
    runtimes: {
      build: async () => ({ ...build, executables: { ...build.executables, rpcServer } }),
      environment: () => ({})
    },
    hardware: hardwareService(plainMachine),
    cache: t.testdir(),
    log: { debug() {}, info() {}, warn() {} }
  }
  const port = await freePorts()
  const options: WorkerOptions = { host: '127.0.0.1', port, insecure: false, cache: GIB, threads: 1 }
  const host = createWorkerHost(deps)
  const worker = await host.start(options, {})
  t.teardown(() => worker.stop())
  t.equal(worker.address, `127.0.0.1:${port}`)
  t.ok(existsSync(join(worker.cacheDirectory!, 'rpc')))
  const ask = async (path: string) => await request(`http://127.0.0.1:${port + 1}${path}`)
  const told: any = await (await ask(WORKER_PATH)).body.json()
  t.match(told, { busy: false, platform: process.platform, build: { id: 'test' }, devices: [{ name: 'CPU' }] })
  t.ok(told.devices[0].usable > 0 && told.devices[0].usable < told.devices[0].total)
  for (const path of ['/', '/worker/other']) t.equal((await ask(path)).statusCode, 404)

  const second = await failure(createWorkerHost(deps).start({ ...options, cache: 0 }, {}))
  t.match(second, { code: 'load_failed', message: /does not work on 127\.0\.0\.1.*choose a different one/ })
  const elsewhere = await freePorts()
  const odd = createWorkerHost(deps).start({ ...options, port: elsewhere, devices: ['CUDA7'] }, {})
  t.match(await failure(odd), { code: 'load_failed', message: /No devices found.*Correct the flags/ })
  const without = createWorkerHost({ ...deps, runtimes: { ...deps.runtimes, build: async () => build } })
  t.match(await failure(without.start(options, {})), { code: 'runtime_missing', message: /has no ggml-rpc-server/ })

  const alive = await ask(WORKER_ALIVE_PATH)
  const lines: string[] = []
  const ended = (async () => {
    for await (const piece of alive.body.setEncoding('utf8')) lines.push(piece)
  })()
  await until('the instance', () => lines.join('').startsWith(told.instance))
  for (const pid of rpcServers(port)) process.kill(pid, 'SIGKILL')
  await ended
  t.pass('its follower is notified')
  const again = await until('it is restarted', async () => {
    const { statusCode, body } = await ask(WORKER_PATH)
    const text = await body.text()
    return statusCode === 200 && JSON.parse(text)
  })
  t.not(again.instance, told.instance)
  await worker.stop()
  t.match(await failure(ask(WORKER_PATH)), { code: 'ECONNREFUSED' })
})
