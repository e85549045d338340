import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { EngineSettings } from '../../../../core/config/model-settings.ts'
import type { Build } from '../../../../core/contracts/builds.ts'
import type { EngineExit, MemoryUse } from '../../../../core/contracts/engines.ts'
import type { Hardware, MemoryNow } from '../../../../core/contracts/hardware.ts'
import { createHostMemory } from '../../../../plugins/running/scheduler/host-memory.ts'
import type { LlamaServerEngine } from '../../../../runtimes/llama-server/engine.ts'
import type { LaunchSpec } from '../../../../runtimes/llama-server/launch-spec.ts'
import { getTotal } from '../../../../runtimes/llama-server/memory/engine-need.ts'
import {
  createLearnedNeeds,
  createMemoryEstimates,
  needKey
} from '../../../../runtimes/llama-server/memory/memory-estimates.ts'
import { gpu } from '../../llama-cpp/ranking/machines.ts'
import { buildOf, PLAIN_SETTINGS } from '../support.ts'
import { GIB, MIB, specOf, writeShape } from './support.ts'

const { signal } = new AbortController()
const folder = t.testdir()
const model = writeShape(folder, 'llama-3.1-8b')

const CPU = buildOf('', { executables: { server: '', fitParams: 'llama-fit-params' } })
const CUDA = buildOf('', {
  ...CPU,
  kind: 'cuda',
  devices: [{ id: 'CUDA0', description: 'NVIDIA GeForce RTX 4070', totalMemory: 12 * GIB }]
})
const GPU = { id: 'nvidia:0', ...gpu('nvidia', 'NVIDIA GeForce RTX 4070', { gib: 12 }) }

interface World {
  build?: Build
  memory?: MemoryNow
  options?: { memory?: number; gpuMemory?: number }
  directory?: string
}

function bookOf(t: { testdir(): string }, { build = CPU, memory, options = {}, directory = t.testdir() }: World = {}) {
  const warnings: string[] = []
  const now = memory ?? { host: { total: 32 * GIB, available: 30 * GIB }, gpus: {} }
  const hardware = { gpus: [GPU], cpu: { features: [] } } as unknown as Hardware
  const machine = {
    detect: async () => hardware,
    known: () => undefined,
    memory: async () => now,
    readings: async () => []
  }
  const host = createHostMemory(machine, { memory: options.memory })
  const { estimate, ...book } = createMemoryEstimates({
    runtimes: { current: () => build },
    hardware: machine,
    directory,
    gpuMemory: options.gpuMemory,
    hostMemory: () => host.budget(),
    log: { debug: () => {}, warn: (_, message) => warnings.push(message) }
  })
  const bound = {
    ...book,
    estimate: (spec: LaunchSpec, signal: AbortSignal) => estimate(spec, build, signal),
    budget: async (held: MemoryUse) => ({ host: await host.budget(), ...(await book.budgets(held)) })
  }
  return { book: bound, host, warnings, directory }
}

function engineOf(spec: LaunchSpec, memory: MemoryUse | undefined, pid?: number) {
  const exit: { end: (exit: EngineExit) => void } = { end: () => {} }
  const exited = new Promise<EngineExit>(resolve => {
    exit.end = resolve
  })
  const engine = { id: 'e', spec, memory, pid, exited, build: CPU } as unknown as {
    -readonly [k in keyof LlamaServerEngine]: LlamaServerEngine[k]
  }
  return { engine, end: () => exit.end({ code: 0, signal: null, expected: true }) }
}

t.test('the memory estimator takes a need from metadata or a measurement', async t => {
  const spec = specOf(model)
  const plain = await bookOf(t).book.estimate(spec, signal)
  t.equal(plain.from, 'metadata')
  t.same(Object.keys(plain.use), ['host'])
  t.ok(plain.use.host! > 6.3 * GIB && plain.use.host! < 6.8 * GIB, 'weights of 4.3 GiB and a cache of 2 GiB')
  t.equal(plain.parts.weights + plain.parts.cache + plain.parts.compute, getTotal(plain.use), 'its parts add up')
  t.same(plain.bounds, { checkpoints: 32 })

  const { book, directory } = bookOf(t)
  const first = await book.estimate(spec, signal)
  const { engine, end } = engineOf({ ...spec, bounds: first.bounds }, { host: 5 * GIB })
  const counted = book.learn(engine, first)
  t.ok(counted.host! > 5 * GIB && counted.host! < first.use.host!, 'its report and its process')
  engine.memory = { host: 6 * GIB }
  end()
  await engine.exited
  await book.close()
  const later = bookOf(t, { directory })
  const learned = await later.book.estimate(spec, signal)
  t.equal(learned.from, 'learned', 'also at the next start of corral')
  t.equal(learned.use.host! - counted.host!, GIB, 'the last report wins')
  const larger = await later.book.estimate(specOf(model, { num_ctx: 8192 }), signal)
  t.equal(larger.from, 'metadata', 'other options are estimated separately')
  const other = { ...spec, variant: { ...spec.variant, revision: '2' } }
  t.equal((await later.book.estimate(other, signal)).from, 'metadata', 'so are other files')
})

t.test('the memory estimator learns from running out of memory', async t => {
  const { book, directory } = bookOf(t)
  const spec = specOf(model)
  const first = await book.estimate(spec, signal)
  book.learnOutOfMemory(spec, first)
  const second = await book.estimate(spec, signal)
  t.ok(second.use.host! > 1.05 * first.use.host!, 'the next estimate is larger')
  book.learnOutOfMemory(spec, second)
  const third = await book.estimate(spec, signal)
  t.ok(third.use.host! > 1.05 * second.use.host!)
  await book.close()
  const again = bookOf(t, { directory })
  t.same((await again.book.estimate(spec, signal)).use, third.use, 'also at the next start')
  const { engine } = engineOf(spec, { host: 5 * GIB })
  again.book.learn(engine, third)
  await again.book.close()
  t.ok((await again.book.estimate(spec, signal)).use.host! < first.use.host!, 'until an engine runs')
})

t.test('the memory estimator places layers on a GPU', async t => {
  const spec = specOf(model)
  const { book } = bookOf(t, { build: CUDA })
  const all = await book.estimate(spec, signal)
  t.ok(all.use.CUDA0! > 6 * GIB && all.use.host! < 2.5 * GIB, "all layers, with tokens in the machine's memory")
  const some = await book.estimate(specOf(model, { n_gpu_layers: 10 }), signal)
  t.ok(some.use.CUDA0! < 3 * GIB && some.use.host! > 4 * GIB)
  const none = await book.estimate(specOf(model, { n_gpu_layers: 0 }), signal)
  t.ok(none.use.CUDA0! < GIB, 'the GPU still computes long prompts')

  const narrow = bookOf(t, { build: CUDA, options: { gpuMemory: 4 * GIB } })
  const part = await narrow.book.estimate(spec, signal)
  t.ok(part.use.CUDA0! <= 4 * GIB && part.use.CUDA0! > 3 * GIB && part.use.host! > 3 * GIB, 'as many as fit')
  t.same(part.bounds.deviceMargins, [8 * GIB], 'llama-server must leave the rest')
  const { engine } = engineOf(spec, { host: 4 * GIB, CUDA0: 3 * GIB })
  narrow.book.learn(engine, part)
  await narrow.book.close()
  t.equal((await narrow.book.estimate(spec, signal)).from, 'metadata', 'an accidental split is not learned')

  const forced = specOf(model, {}, { settings: settings({ arguments: ['--device', 'none'] }) })
  t.notOk((await book.estimate(forced, signal)).use.CUDA0)
})

t.test('the memory estimator includes companions of the model', async t => {
  const { book } = bookOf(t)
  const plain = await book.estimate(specOf(model), signal)
  const more = async (given: Partial<LaunchSpec>) =>
    (await book.estimate(specOf(model, {}, given), signal)).use.host! - plain.use.host!
  writeFileSync(join(folder, 'lora.gguf'), Buffer.alloc(50 * MIB))
  const loras = [{ path: join(folder, 'lora.gguf'), scale: 1 }]
  t.equal(await more({ settings: settings({ loras }) }), 50 * MIB, 'adapters')
  const small = writeShape(folder, 'qwen2.5-0.5b')
  const draft = { ngram: false, draft: { model: 'a/b', modelPath: small } }
  const drafted = await more({ settings: settings({ speculation: draft }) })
  t.ok(drafted > 690 * MIB && drafted < 800 * MIB, 'a draft model with its own cache')
  t.ok((await more({ projectorPath: small })) > 1000 * MIB, 'a projector with its buffers')
  const embedding = await book.estimate(specOf(model, { num_parallel: 1 }, { mode: 'embedding' }), signal)
  t.same(embedding.bounds, { checkpoints: 32 })

  const gemma = writeShape(folder, 'gemma-3-27b')
  const windows = await book.estimate(specOf(gemma), signal)
  t.equal(windows.bounds.checkpoints, 1, 'checkpoints are limited: one of each slot has half a GiB')
  const tight = bookOf(t, { options: { memory: 6.6 * GIB } })
  t.equal((await tight.book.estimate(specOf(gemma), signal)).bounds.checkpoints, 0)
})

t.test('falls back when estimates fail', async t => {
  const gone = specOf('/not/there.gguf')
  const unknown = await bookOf(t).book.estimate({ ...gone, variant: { ...gone.variant, size: GIB } }, signal)
  t.equal(unknown.from, 'metadata')
  t.ok(unknown.use.host! > GIB && unknown.use.host! < 3 * GIB, 'an unknown model')
  const controller = new AbortController()
  controller.abort(new Error('enough'))
  await t.rejects(bookOf(t).book.estimate(specOf(model), controller.signal), { message: 'enough' })
  const { book } = bookOf(t)
  const silent = await book.estimate(specOf(model), signal)
  t.same(book.learn(engineOf(specOf(model), undefined).engine, silent), silent.use, 'an engine without a report')
})

t.test('the memory estimator returns the budgets of GPUs', async t => {
  const memory = {
    host: { total: 32 * GIB, available: 20 * GIB },
    gpus: { 'nvidia:0': { total: 12 * GIB, free: 5 * GIB } }
  }
  const { book } = bookOf(t, { build: CUDA, memory })
  t.same(await book.budget({}), { host: 20 * GIB - 256 * MIB, CUDA0: 5 * GIB })
  t.same(await book.budgets({ CUDA0: 4 * GIB }), { CUDA0: 9 * GIB })
  const limits = bookOf(t, { build: CUDA, memory, options: { memory: GIB, gpuMemory: 2 * GIB } })
  t.same(await limits.book.budget({}), { host: GIB, CUDA0: 2 * GIB })
  t.same(Object.keys(await bookOf(t).book.budget({})), ['host'])

  const untold = bookOf(t, { memory: { host: { total: 0, available: 0 }, gpus: {} }, options: { memory: MIB } })
  t.same(await untold.book.budget({}), { host: MIB }, 'a system without information still serves')

  const spec = specOf(model)
  const own = bookOf(t, { memory })
  const other = engineOf(spec, undefined)
  own.host.add(other.engine, 4 * GIB)
  t.equal((await own.book.budget({})).host, 24 * GIB - 256 * MIB, 'its reservation, if no process is known')
  other.end()
  const need = await own.book.estimate(spec, signal)
  const here = engineOf(spec, { host: 9 * GIB }, process.pid)
  const use = own.book.learn(here.engine, need)
  own.host.add(here.engine, use.host!)
  const budget = await own.book.budget(use)
  t.ok(
    process.platform === 'linux' ? budget.host! < 21 * GIB : budget.host! > 28 * GIB,
    'the measured use of an engine, not its possible growth'
  )
  here.end()
  await here.engine.exited
  await new Promise(setImmediate)
  t.equal((await own.book.budget({})).host, 20 * GIB - 256 * MIB)
})

t.test('the memory estimator explains why there is no room, and what would help', async t => {
  const { book } = bookOf(t)
  const advice = async (options: Parameters<typeof specOf>[1], host: number) => {
    const spec = specOf(model, options)
    return book.explain(spec, await book.estimate(spec, signal), { host: host * GIB })
  }
  const context = await advice({ num_ctx: 65536, num_parallel: 2 }, 16)
  t.match(
    context,
    /^It needs about 2[12]\.\d GB of memory \(weights 4\.7 GB, cache for 2 conversations of 65536 tokens 17\.2 GB, computing \d+ MB\), but only 17\.2 GB of memory can be used\. /
  )
  t.match(
    context,
    /It would fit with num_ctx 32768 \(now 65536\), cache_type_k and cache_type_v q8_0 or num_parallel 1 \(now 2\)\.$/
  )
  const together = await advice({ num_ctx: 131072, num_parallel: 4 }, 7)
  t.match(
    together,
    /It would fit with num_ctx 4096 \(now 131072\) or num_ctx 32768, cache_type_k and cache_type_v q8_0 and num_parallel 1 together\.$/
  )
  t.match(
    await advice({}, 3),
    /No smaller context makes it fit\. Use a smaller quantization or a smaller model, with weights below [23]\.\d GB\.$/
  )
  t.match(await advice({}, 0.1), /Close other programs, or raise scheduler\.memory .*if they are set\.$/)
  const later = await advice({}, 20)
  t.match(later, /21\.5 GB of memory can be used by all models together\. It fits when other models are stopped\.$/)
  const split = bookOf(t, { build: CUDA })
  const spec = specOf(model, { num_ctx: 131072, n_gpu_layers: 99 })
  const text = split.book.explain(spec, await split.book.estimate(spec, signal), { host: 30 * GIB, CUDA0: 11 * GIB })
  t.match(
    text,
    /of memory and \d+\.\d GB on CUDA0 .* but only 32\.2 GB of memory and 11\.8 GB on CUDA0 can be used\. It would fit with num_ctx 8192/
  )
  const strange = specOf('/not/there.gguf')
  t.match(book.explain(strange, await book.estimate(strange, signal), { host: 1 }), /Close other programs/)
})

t.test('the memory estimator stores learned needs in a file', async t => {
  const directory = join(t.testdir(), 'deeper')
  const warnings: string[] = []
  const log = { warn: (_: object, message: string) => warnings.push(message) }
  let time = Date.parse('2026-01-01')
  const open = () => createLearnedNeeds(directory, log, () => time)
  const needs = open()
  await needs.loaded
  needs.note('a', 'x/a', { use: { host: 1 } })
  needs.note('b', 'x/b', { tooLittle: { host: 2 } })
  needs.note('a', 'x/a', { tooLittle: { host: 3 } })
  t.same(needs.find('a'), { use: { host: 1 }, tooLittle: { host: 3 } })
  await needs.close()
  t.same(readdirSync(directory), ['memory-needs.json'], 'written atomically')
  const again = open()
  again.note('b', 'x/b', { use: { host: 9 } })
  await again.loaded
  t.same(again.find('a'), { use: { host: 1 }, tooLittle: { host: 3 } })
  t.same(again.find('b'), { use: { host: 9 }, tooLittle: undefined }, 'learned before the file was read')
  time += 8 * 24 * 3_600_000
  t.same(again.find('a'), { use: { host: 1 }, tooLittle: undefined }, 'a shortage is forgotten after a week')
  for (let at = 0; at < 600; at++) {
    time++
    again.note(`key ${at}`, 'x/y', { use: { host: at } })
  }
  await again.close()
  const file = join(directory, 'memory-needs.json')
  t.equal(Object.keys(JSON.parse(readFileSync(file, 'utf8')).needs).length, 500, 'limited, the oldest are dropped')
  t.same(again.find('a'), { use: undefined, tooLittle: undefined })

  for (const damage of [
    '',
    '{',
    '[]',
    '{"version":1,"needs":{"a":{"use":{"host":"much"}}}}',
    '{"version":2,"needs":{}}'
  ]) {
    writeFileSync(file, damage)
    const damaged = open()
    await damaged.loaded
    t.same(damaged.find('a'), { use: undefined, tooLittle: undefined }, `damaged: ${damage}`)
    damaged.note('a', 'x/a', { use: { host: 1 } })
    await damaged.close()
  }
  t.equal(JSON.parse(readFileSync(file, 'utf8')).needs.a.use.host, 1)
  t.same(warnings, [])
  const blocked = createLearnedNeeds(join(file, 'no folder'), log)
  blocked.note('a', 'x/a', { use: { host: 1 } })
  await blocked.close()
  t.same(warnings, ['What was measured of engines could not be saved.'])
})

t.test('the key names engines that use the same memory', async t => {
  const key = (spec: LaunchSpec, build = CPU) => needKey(spec, build)
  const spec = specOf(model)
  t.equal(key(spec), key({ ...spec, alias: 'other', slotFolder: '/x', bounds: { checkpoints: 1 } }))
  t.equal(key(spec), key(specOf(model, { dtype: 'q8_0' })), 'its file shows how it was converted')
  t.equal(key(spec), key(spec, { ...CPU, id: 'newer', version: '2', digest: '2' }))
  const others = [
    key(specOf(model, { num_ctx: 1 })),
    key(specOf(model, { cache_type_k: 'q8_0' })),
    key({ ...spec, mode: 'embedding' }),
    key({ ...spec, modelPath: '/converted.gguf' }),
    key({ ...spec, projectorPath: '/p' }),
    key({ ...spec, settings: settings({ arguments: ['-ub', '1'] }) }),
    key(spec, CUDA)
  ]
  t.equal(new Set([key(spec), ...others]).size, others.length + 1)
})

const settings = (given: Partial<EngineSettings>) => ({ ...PLAIN_SETTINGS, ...given })
