import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { CoreConfig } from '../../../../core/config/core-schema.ts'
import type { LoadFailure } from '../../../../core/contracts/built-in-services.ts'
import type { Engine, EngineExit, EngineProvider, EngineSpec, MemoryUse } from '../../../../core/contracts/engines.ts'
import type { ModelEvent, UnloadEvent } from '../../../../core/contracts/hooks.ts'
import type { LeaseRequest } from '../../../../core/contracts/leases.ts'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { CorralError } from '../../../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../../../core/models/load-options.ts'
import { createEngineRegistry } from '../../../../plugins/running/scheduler/engine-registry.ts'
import { createScheduler } from '../../../../plugins/running/scheduler/scheduler.ts'
import type { SchedulerDependencies } from '../../../../plugins/running/scheduler/scheduler-core.ts'
import { LIMITS } from './support.ts'

/* The scheduler with fakes around it: tests the order of actions at moments that real engines pass too quickly. */

const tick = () => new Promise(resolve => setImmediate(resolve))

/** A promise with its resolver. */
function gate<T = void>() {
  let open!: (value: T) => void
  let fail!: (error: unknown) => void
  const promise = new Promise<T>((resolve, reject) => {
    open = resolve
    fail = reject
  })
  return { promise, open, fail }
}

function variantOf(name: string): StoredVariant {
  return {
    model: { owner: 'test', name },
    label: 'F16',
    isDefault: true,
    publicName: `test/${name}`,
    key: `test/${name}:f16`,
    revision: '1',
    format: 'gguf',
    directory: `/models/${name}`,
    files: [{ path: 'model.gguf', size: 1, sha256: '', role: 'model' }],
    size: 1,
    digest: '',
    modifiedAt: '',
    origin: { kind: 'import', from: '' },
    metadata: { capabilities: ['completion'], info: {} }
  }
}

interface World {
  /** Actions, in order. */
  done: string[]
  /** Reports to hooks. */
  reports: string[]
  scheduler: ReturnType<typeof createScheduler>
  /** The promises or errors of the next loads, by step. */
  hold: Partial<Record<'estimate' | 'start' | 'save', Promise<unknown>>>
  engines: (Engine & { die: () => void; outdate: () => void })[]
  remove: (name: string) => Promise<void>
  lease: (name: string, more?: Partial<LeaseRequest>) => ReturnType<ReturnType<typeof createScheduler>['lease']>
  needs: MemoryUse
}

function world(t: Test, config: object = {}, limits: Partial<typeof LIMITS> = {}): World {
  const done: string[] = []
  const names = new Set(['a', 'b'])
  const hold: World['hold'] = {}
  const engines: World['engines'] = []
  const needs: MemoryUse = { host: 6 }
  let removal: ((variants: StoredVariant[]) => Promise<void>) | undefined
  const held = async (step: keyof World['hold'], name: string, signal?: AbortSignal) => {
    done.push(`${step} ${name}`)
    const aborted = new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason)))
    await Promise.race([hold[step], ...(signal ? [aborted] : [])])
    signal?.throwIfAborted()
  }
  const find = ({ name }: { name: string }) => (names.has(name) ? variantOf(name) : undefined)
  const storage = {
    find,
    get(model: { name: string }) {
      const found = find(model)
      if (!found) throw new CorralError('model_not_found', `Model "${model.name}" does not exist.`)
      return found
    },
    hold: () => () => undefined,
    requireTrusted: async () => undefined,
    onRemove(listener: typeof removal) {
      removal = listener
    }
  }
  const formatName = (spec: EngineSpec) => spec.variant.model.name
  const provider: EngineProvider = {
    name: 'test',
    serves: () => 1,
    async estimate(spec, { signal }) {
      await held('estimate', formatName(spec), signal)
      return { use: { ...needs }, certain: true, explain: () => 'It is too large.' }
    },
    async start(spec, { signal }, estimate) {
      await held('start', formatName(spec), signal)
      t.same(estimate?.use, needs, 'what was estimated for this load')
      const exited = gate<EngineExit>()
      const outdated = gate()
      const engine = {
        spec,
        pid: 1,
        memory: { ...needs },
        exited: exited.promise,
        logTail: () => [],
        async saveSlots() {
          const gone = exited.promise.then(() => undefined)
          await Promise.race([held('save', formatName(spec)), gone])
        },
        async stop() {
          done.push(`stop ${formatName(spec)}`)
          exited.open({ code: 0, signal: null, expected: true })
          await exited.promise
        },
        outdated: outdated.promise,
        outdate: outdated.open,
        die: () => exited.open({ code: null, signal: 'SIGKILL', expected: false })
      } as unknown as World['engines'][number]
      engines.push(engine)
      return engine
    }
  }
  const registry = createEngineRegistry({
    settings: {
      promptCache: 0,
      promptCacheMemory: undefined,
      speculation: false,
      memory: undefined,
      gpuMemory: undefined
    },
    hostMemory: async () => 10
  })
  registry.add(provider)
  const nothing = () => undefined
  const reports: string[] = []
  const hooks = {
    modelLoaded: ({ model, mode }: ModelEvent) => void reports.push(`loaded ${model} ${mode}`),
    modelUnloaded: ({ model, mode, reason }: UnloadEvent) => void reports.push(`unloaded ${model} ${mode} ${reason}`),
    loadFailed: ({ model, mode, code }: LoadFailure) => void reports.push(`failed ${model} ${mode} ${code}`),
    stateChanged: nothing
  }
  const scheduler = createScheduler({
    storage,
    catalog: storage,
    engines: registry,
    hostMemory: { add: nothing },
    hooks,
    config: {
      defaults: DEFAULT_LOAD_OPTIONS,
      limits: { num_ctx: 0, num_parallel: 64 },
      models: config
    } as unknown as CoreConfig,
    limits: { ...LIMITS, ...limits },
    log: { info: nothing, warn: nothing, error: nothing, debug: nothing }
  } as unknown as SchedulerDependencies)
  t.teardown(() => scheduler.close(0))
  return {
    done,
    reports,
    scheduler,
    hold,
    engines,
    needs,
    async remove(name) {
      names.delete(name)
      await removal!([variantOf(name)])
    },
    lease: (name, more = {}) =>
      scheduler.lease({
        model: { owner: 'test', name },
        options: {},
        signal: new AbortController().signal,
        ...more
      })
  }
}

t.test('a load estimates and starts, an eviction saves and stops', async t => {
  const { lease, done, engines, reports } = world(t)
  const first = await lease('a')
  t.same(done, ['estimate a', 'start a'])
  first.release()
  const second = await lease('b')
  t.same(done.slice(2), ['estimate b', 'save a', 'stop a', 'start b'])
  second.release()
  engines[1]!.die()
  await tick()
  t.same(
    reports,
    ['loaded test/a chat', 'unloaded test/a chat evicted', 'loaded test/b chat', 'unloaded test/b chat failed'],
    'hooks are called'
  )
})

t.test('stop saves the prompt caches of an idle engine, not of a busy one', async t => {
  const { lease, scheduler, done, remove } = world(t)
  const model = { owner: 'test', name: 'a' }
  const held = await lease('a')
  const stopping = scheduler.stop(model)
  t.equal(held.signal.aborted, true)
  held.release()
  await stopping
  t.same(done.slice(2), ['stop a'])
  const background = await lease('a')
  background.release()
  await scheduler.stop(model)
  t.same(done.slice(-2), ['save a', 'stop a'])
  const again = await lease('a')
  again.release()
  done.length = 0
  await remove('a')
  t.same(done, ['stop a'])
})

t.test('stop and delete abort a load while it is estimated or started', async t => {
  for (const step of ['estimate', 'start'] as const) {
    for (const way of ['stop', 'delete', 'close'] as const) {
      const { lease, scheduler, hold, done, remove, reports } = world(t)
      hold[step] = new Promise(() => undefined)
      const waiting = lease('a').catch((error: CorralError) => error.code)
      while (!done.includes(`${step} a`)) await tick()
      if (way === 'stop') await scheduler.stop({ owner: 'test', name: 'a' })
      else if (way === 'delete') await remove('a')
      else await scheduler.close(1000)
      const expected = { stop: 'model_stopped', delete: 'model_not_found', close: 'shutting_down' }[way]
      t.equal(await waiting, expected, `${way} while ${step}`)
      t.same([...scheduler.running(), ...scheduler.loading()], [])
      t.same(reports, [], 'an engine that never served is not reported')
    }
  }
})

t.test('a model is not loaded when its only client leaves during the preparation', async t => {
  const { lease, hold, done, scheduler } = world(t)
  const estimate = gate()
  hold.estimate = estimate.promise
  const controller = new AbortController()
  const waiting = lease('a', { signal: controller.signal }).catch(error => error)
  while (!done.length) await tick()
  controller.abort(new Error('left'))
  await waiting
  estimate.open()
  for (let clientId = 0; clientId < 5; clientId++) await tick()
  t.same(done, ['estimate a'])
  t.same(scheduler.loading(), [])
})

t.test('delete and the end of the grace period interrupt the saving of a cache', async t => {
  for (const way of ['delete', 'close'] as const) {
    const { lease, scheduler, hold, remove, done } = world(t)
    const held = await lease('a', { keepAlive: 0 })
    hold.save = new Promise(() => undefined)
    held.release()
    await tick()
    t.equal(done.at(-1), 'save a')
    if (way === 'delete') await remove('a')
    else await scheduler.close(10)
    t.ok(done.includes('stop a'), way)
  }
})

t.test('idle unloads and retries stay on time after the clock is set back', async t => {
  const { lease, scheduler, hold } = world(t)
  const { now } = Date
  t.teardown(() => Object.assign(Date, { now }))
  const setBack = (hours: number) => Object.assign(Date, { now: () => now() - hours * 3_600_000 })
  const held = await lease('a', { keepAlive: 20 })
  setBack(1)
  held.release()
  while (scheduler.running().length > 0) await sleep(5)

  hold.start = Promise.reject(new CorralError('load_failed', 'It is damaged.'))
  await t.rejects(lease('b'), { message: 'It is damaged.' })
  await t.rejects(lease('b'), { message: 'It is damaged.' })
  setBack(2)
  const { retryAfter } = await lease('b').catch(error => error)
  t.ok(retryAfter > 0 && retryAfter < 60, 'it is refused for seconds')
  delete hold.start
  while (!(await lease('b').catch(() => undefined))) await sleep(50)
})

t.test('a load that runs out of memory is retried without idle models, then refused', async t => {
  const { lease, hold, done, needs } = world(t)
  needs.host = 4
  const first = await lease('a')
  first.release()
  hold.start = Promise.reject(new CorralError('insufficient_memory', 'No memory.'))
  await t.rejects(lease('b'), { code: 'insufficient_memory' })
  t.same(done.slice(2), ['estimate b', 'start b', 'save a', 'stop a', 'start b'])
})

t.test('an engine that its provider would start differently is loaded again after its answers', async t => {
  const { lease, engines, done } = world(t)
  const held = await lease('a', { options: { num_ctx: 100 } })
  engines[0]!.outdate()
  await tick()
  t.equal(engines.length, 1, 'not while it answers')
  const next = lease('a')
  held.release()
  t.equal((await next).engine.spec.options.num_ctx, 100, 'its options stay')
  t.same(done, ['estimate a', 'start a', 'save a', 'stop a', 'estimate a', 'start a'])
  ;(await next).release()
  engines[1]!.outdate()
  while (engines.length < 3) await tick()
  t.equal(engines[2]!.spec.options.num_ctx, 100, 'an idle one is replaced without a request')
})

t.test('a request survives an engine that dies as it becomes ready', async t => {
  const { scheduler, done, engines } = world(t)
  const answer = scheduler.withLease(
    { model: { owner: 'test', name: 'a' }, options: {}, signal: new AbortController().signal },
    async held => {
      if (held.engine === engines[0]) engines[0]!.die()
      await tick()
      held.signal.throwIfAborted()
      return held.engine
    }
  )
  t.equal(await answer, engines[1], 'the next engine serves the request')
  t.same(done, ['estimate a', 'start a', 'estimate a', 'start a'])
})

t.test('a stopped engine counts as ended even if its plugin never reports it', async t => {
  const { lease, engines, scheduler } = world(t)
  const first = await lease('a')
  first.release()
  engines[0]!.stop = async () => {}
  await scheduler.stop({ owner: 'test', name: 'a' })
  t.same(scheduler.running(), [])
  const again = await lease('a')
  t.equal(engines.length, 2, 'it can be loaded again')
  again.release()
})

t.test('preload loads models one after the other and continues after failures', async t => {
  const config = {
    'test/absent': { preload: true },
    'test/a': { preload: true, pin: true },
    'test/b': { preload: true }
  }
  const { scheduler, done } = world(t, config)
  await scheduler.preload(new AbortController().signal)
  t.ok(done.includes('start a'))
  t.notOk(done.includes('start b'), 'there is no room beside a pinned model')
  t.same(
    scheduler.running().map(({ variant, expiresAt }) => [variant.publicName, expiresAt]),
    [['test/a', undefined]]
  )
})
