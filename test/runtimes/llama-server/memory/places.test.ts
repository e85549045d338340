import t from 'tap'
import type { Build, BuildDevice } from '../../../../core/contracts/builds.ts'
import type { Gpu, MemoryNow } from '../../../../core/contracts/hardware.ts'
import { NATIVE_NAMING } from '../../../../core/contracts/native-api.ts'
import { parseProcessMemory } from '../../../../core/system/processes.ts'
import { runningRecord } from '../../../../plugins/apis/native/records.ts'
import { getSystemReserve, hostBudget } from '../../../../plugins/running/scheduler/host-memory.ts'
import { MemoryReport } from '../../../../runtimes/llama-server/loading.ts'
import {
  type Device,
  devicePools,
  matchDevices,
  type Parts,
  place
} from '../../../../runtimes/llama-server/memory/device-placement.ts'
import { beyond, fromMetadata, fromReport } from '../../../../runtimes/llama-server/memory/engine-need.ts'
import { gpu as card } from '../../llama-cpp/ranking/machines.ts'
import { buildOf } from '../support.ts'
import { GIB, MIB, specOf } from './support.ts'

/** Four layers of 10 with a cache of 1, and a table of 5 that is also the output. */
const parts: Parts = {
  input: 5,
  layers: Array.from({ length: 4 }, () => ({ weights: 10, cache: 1 })),
  output: 5,
  copied: 5,
  compute: { layers: 3, io: 1 }
}
const device = (budget: number, pool = 'CUDA0'): Device => ({ pool, budget, overhead: 2 })

t.test('the memory estimator places layers on devices', async t => {
  const table: [string, Device[], number, Record<string, number>, number, boolean?][] = [
    ['no device', [], -1, { host: 5 + 44 + 3 }, 0],
    ['no device, although layers are requested', [], 99, { host: 52 }, 0],
    ['all fit', [device(54)], -1, { host: 5 + 1, CUDA0: 44 + 5 + 3 }, 5],
    ['one byte less', [device(53)], -1, { host: 5 + 11 + 3, CUDA0: 33 + 5 + 3 }, 4],
    ['only the output fits', [device(10)], -1, { host: 5 + 44 + 3, CUDA0: 5 + 3 }, 1],
    ['nothing fits', [device(6)], -1, { host: 52, CUDA0: 3 }, 0],
    ['none are requested', [device(99)], 0, { host: 52, CUDA0: 3 }, 0],
    ['two are requested', [device(99)], 2, { host: 5 + 33 + 3, CUDA0: 11 + 5 + 3 }, 2],
    ['all are requested, fit or not', [device(1)], 99, { host: 6, CUDA0: 52 }, 5],
    ['two devices', [device(60), device(20, 'CUDA1')], -1, { host: 6, CUDA0: 36.75 + 3, CUDA1: 12.25 + 3 }, 5],
    ["a device that shares the machine's memory", [device(60, 'host')], -1, { host: 6 + 52 }, 5],
    ['caches stay', [device(54)], -1, { host: 5 + 1 + 4, CUDA0: 40 + 5 + 3 }, 5, true]
  ]
  for (const [what, devices, asked, use, layers, hostCache] of table) {
    const found = place(parts, devices, asked, hostCache)
    t.same({ use: found.use, layers: found.layers }, { use, layers }, what)
  }
})

const gpu = (id: string, given: Partial<Gpu> = {}): Gpu => ({
  id,
  ...card('nvidia', 'NVIDIA GeForce RTX 3090', { gib: 24 }),
  ...given
})
const listed = (id: string, description: string, totalMemory?: number): BuildDevice => ({
  id,
  description,
  ...(totalMemory === undefined ? {} : { totalMemory })
})
const build = (kind: Build['kind'], devices: BuildDevice[]) => buildOf('', { kind, devices })

t.test('the memory estimator matches the devices of a build with GPUs', async t => {
  const small = gpu('nvidia:0', { name: 'Tesla P40', totalMemory: 24.4 * GIB })
  const large = gpu('nvidia:1')
  const match = (devices: BuildDevice[], gpus: Gpu[]) => matchDevices(devices, gpus).map(found => found.gpu?.id)
  t.same(
    match([listed('CUDA0', 'NVIDIA GeForce RTX 3090', 24 * GIB), listed('CUDA1', 'Tesla P40')], [small, large]),
    ['nvidia:1', 'nvidia:0'],
    'by name, although numbered differently'
  )
  t.same(
    match(
      [listed('CUDA0', 'NVIDIA GeForce RTX 3090'), listed('CUDA1', 'NVIDIA GeForce RTX 3090')],
      [gpu('nvidia:0'), gpu('nvidia:1')]
    ),
    ['nvidia:0', 'nvidia:1'],
    'equal ones in order'
  )
  const radeon = gpu('amd:0', { vendor: 'amd', name: 'AMD Radeon RX 6700 XT', totalMemory: 12 * GIB })
  t.same(match([listed('Vulkan0', 'AMD Radeon RX 6700 XT (RADV NAVI22)', 12 * GIB)], [large, radeon]), ['amd:0'])
  t.same(match([listed('CUDA0', 'NVIDIA H100')], [gpu('nvidia:0', { name: 'unknown' })]), ['nvidia:0'])
  t.same(match([listed('RPC0', 'far'), listed('RPC1', 'away')], [large]), [undefined, undefined])
  t.same(match([listed('CUDA0', 'x')], []), [undefined])
})

t.test('the memory estimator computes pools and budgets of devices', async t => {
  const gpus = [
    gpu('nvidia:0'),
    gpu('amd:0', { name: 'AMD Radeon Graphics', unifiedMemory: true, totalMemory: 8 * GIB })
  ]
  const cuda = build('cuda', [listed('CUDA0', 'NVIDIA GeForce RTX 3090', 24 * GIB)])
  const vulkan = build('vulkan', [
    listed('Vulkan0', 'AMD Radeon Graphics', 8 * GIB),
    listed('Vulkan1', 'NVIDIA GeForce RTX 3090', 24 * GIB)
  ])
  const main = matchDevices(cuda.devices, gpus)
  const now = (free: number): MemoryNow => ({
    host: { total: 1, available: 1 },
    gpus: { 'nvidia:0': { total: 24 * GIB, free } }
  })
  const automatic = devicePools(cuda, gpus, { limit: undefined, main })
  t.same(automatic.budgets(now(24 * GIB), {}), { CUDA0: 23 * GIB }, 'all but the margin of --fit')
  t.same(automatic.budgets(now(4 * GIB), {}), { CUDA0: 4 * GIB }, 'never more than is free')
  t.same(automatic.budgets(now(4 * GIB), { CUDA0: 6 * GIB }), { CUDA0: 10 * GIB }, '… with the memory of engines')
  t.same(automatic.budgets(undefined, {}), { CUDA0: 23 * GIB })
  t.equal(automatic.margins, undefined)
  t.same(automatic.devices, [{ pool: 'CUDA0', budget: 23 * GIB, overhead: 512 * MIB }])

  const limited = devicePools(cuda, gpus, { limit: 8 * GIB, main })
  t.same(limited.budgets(now(24 * GIB), {}), { CUDA0: 8 * GIB })
  t.same(limited.margins, [16 * GIB], 'llama-server leaves the rest alone')

  const other = devicePools(vulkan, gpus, { limit: undefined, main })
  t.equal(other.getPool('Vulkan1'), 'CUDA0', 'the same GPU under another name')
  t.equal(other.getPool('Vulkan0'), 'host', 'which has no dedicated memory')
  t.equal(other.getPool('Vulkan7'), 'Vulkan7')
  t.same(other.budgets(now(24 * GIB), {}), { CUDA0: 23 * GIB })

  const metal = devicePools(build('metal', [listed('MTL0', 'Apple M1', 5.3 * GIB)]), [], { limit: undefined, main: [] })
  t.equal(metal.getPool('MTL0'), 'host')
  t.same(metal.budgets(undefined, {}), {})
  const tiny = devicePools(build('cuda', [listed('CUDA0', 'x', 2 * GIB)]), [], { limit: undefined, main: [] })
  t.same(tiny.budgets(undefined, {}), { CUDA0: 1.5 * GIB }, 'a quarter of a small one')
  const unknown = devicePools(build('sycl', [listed('SYCL0', 'x')]), [], { limit: GIB, main: [] })
  t.same(unknown.budgets(undefined, {}), {}, 'of unknown size')
  t.equal(unknown.margins, undefined)
})

t.test("the memory estimator computes the budget of the machine's memory", async t => {
  const table: [number, number][] = [
    [0.5, 0.125],
    [2, 0.5],
    [4, 1],
    [8, 1],
    [16, 1.6],
    [64, 6.4],
    [512, 8]
  ]
  for (const [total, reserve] of table) t.equal(getSystemReserve(total * GIB), reserve * GIB, `${total} GiB`)
  const memory = { total: 16 * GIB, available: 15 * GIB, engines: 0 }
  t.equal(hostBudget(memory, undefined), Math.floor(14.4 * GIB))
  t.equal(hostBudget(memory, 4 * GIB), 4 * GIB, 'the configured amount')
  t.equal(hostBudget(memory, 64 * GIB), 15 * GIB - 256 * MIB, 'but never more than the total')
  t.equal(hostBudget({ ...memory, available: 2 * GIB, engines: 5 * GIB }, undefined), 7 * GIB - 256 * MIB)
  t.equal(hostBudget({ total: GIB, available: 0, engines: 0 }, undefined), 0)
  const container = hostBudget({ total: 2 * GIB, available: 1.8 * GIB, engines: 0 }, undefined)
  t.ok(container >= 1.5 * GIB, 'a small container still serves')
})

t.test('the memory estimator reads the memory of a process', async t => {
  const rollup = [
    '55d0-7ffc ---p 00000000 00:00 0 [rollup]',
    'Rss:               47508 kB',
    'Pss:               46206 kB',
    'Pss_Anon:          29796 kB',
    'Pss_File:          16410 kB',
    'Pss_Shmem:             4 kB',
    'Anonymous:         29796 kB'
  ].join('\n')
  t.same(parseProcessMemory(rollup), { resident: 46206 * 1024, own: 29800 * 1024 })
  const status = 'VmRSS:\t   47508 kB\nRssAnon:\t   29796 kB\nRssFile:\t   17712 kB\nRssShmem:\t       0 kB\n'
  t.same(parseProcessMemory(status), { resident: 47508 * 1024, own: 29796 * 1024 })
  t.equal(parseProcessMemory(''), undefined)
})

t.test('the memory estimator reads the memory tables of an engine', async t => {
  const plain = new MemoryReport(false)
  t.equal(plain.use(), undefined)
  plain.note({ host: 30, CUDA0: 100 }, true)
  t.same(plain.use(), { host: 30, CUDA0: 100 })
  plain.note({ host: 60, CUDA0: 70 }, true)
  t.same(plain.use(), { host: 60, CUDA0: 70 }, 'the last attempt')
  plain.note({ host: 61, CUDA0: 69 }, false)
  t.same(plain.use(), { host: 61, CUDA0: 69 }, 'the actual use')

  const drafts = new MemoryReport(true)
  drafts.note({ host: 30, CUDA0: 100 }, true)
  t.same(drafts.use(), { host: 30, CUDA0: 100 })
  drafts.note({ host: 3, CUDA0: 10 }, true)
  t.same(drafts.use(), { host: 33, CUDA0: 110 }, 'with the draft model')
  drafts.note({ host: 60, CUDA0: 70 }, true)
  t.same(drafts.use(), { host: 63, CUDA0: 80 })
  drafts.note({ host: 61, CUDA0: 69 }, false)
  t.same(drafts.use(), { host: 64, CUDA0: 79 })
})

t.test('combines the sources of a need', async t => {
  const estimated = {
    core: { host: 100 },
    draft: {},
    unreported: { host: 10 },
    growth: 5,
    bounds: { checkpoints: 1 },
    weights: 60,
    cache: 20,
    settled: true
  }
  t.same(fromReport({ host: 50, CUDA0: 70 }, { ...estimated, draft: { host: 7 } }, undefined), { host: 60, CUDA0: 70 })
  t.same(fromMetadata(estimated), { host: 110 })
  t.same(fromMetadata({ ...estimated, core: { host: 10, CUDA0: 90 } }), { host: 20, CUDA0: 90 })

  t.same(fromReport({ host: 50 }, estimated, 90), { host: 90 }, 'the process uses more than it reports')
  t.same(fromReport({ host: 50 }, estimated, 9), { host: 60 })

  t.same(beyond({ host: 10 }, undefined), { host: 10 })
  t.same(beyond({ host: 10, CUDA0: 90 }, { host: 8, CUDA0: 100 }), { host: 10, CUDA0: 110.00000000000001 })
})

t.test('the memory estimator reports sizes of running models in /api/ps', async t => {
  const sizes = (reserved: Record<string, number>) => {
    const engine = { contextSize: 4096 }
    const running = { reserved, variant: { ...specOf('/m.gguf').variant, size: 70 }, engine, options: {}, mode: 'chat' }
    const { size, size_vram } = runningRecord(running as never, NATIVE_NAMING)
    return { size, size_vram }
  }
  t.same(sizes({ host: 30, CUDA0: 100, CUDA1: 50 }), { size: 180, size_vram: 150 })
  t.same(sizes({ host: 30, MTL0: 100 }), { size: 130, size_vram: 100 }, "a GPU that shares the machine's memory")
  t.same(sizes({ host: 30 }), { size: 30, size_vram: 0 })
  t.same(sizes({}), { size: 70, size_vram: 0 }, 'the files, if it uses no memory of this machine')
})
