import t from 'tap'
import type { Model } from '../../../../core/contracts/models.ts'
import { CorralError } from '../../../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS, type LoadOptions } from '../../../../core/models/load-options.ts'
import { decide } from '../../../../plugins/running/scheduler/decide.ts'
import { clampOptions } from '../../../../plugins/running/scheduler/model-configuration.ts'
import {
  createState,
  type Event,
  firstLoad,
  type SchedulerState,
  satisfies,
  union
} from '../../../../plugins/running/scheduler/scheduler-state.ts'
import { randomNumbers } from '../../../support/random.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { alarmOf, LIMITS, loadOf, machine, short } from './support.ts'

const MINUTES_5 = 300_000
const failure = new CorralError('load_failed', 'It does not load.')
const stopped = new CorralError('model_stopped', 'stopped')
const stop: Event = { type: 'stop', key: 'a', running: stopped, waiting: stopped, save: true }

t.test('satisfies accepts equal or smaller options', t => {
  const loaded: LoadOptions = { ...DEFAULT_LOAD_OPTIONS, num_ctx: 8192, num_parallel: 2 }
  const table: [Partial<LoadOptions>, boolean][] = [
    [{}, true],
    [{ num_ctx: 8192 }, true],
    [{ num_ctx: 1024 }, true],
    [{ num_ctx: 8193 }, false],
    [{ num_parallel: 1 }, true],
    [{ num_parallel: 3 }, false],
    [{ cache_type_k: 'f16' }, true],
    [{ cache_type_k: 'q8_0' }, false],
    [{ n_gpu_layers: -1 }, true],
    [{ n_gpu_layers: 10 }, false],
    [{ dtype: 'q8_0' }, false]
  ]
  for (const [asked, expected] of table) t.equal(satisfies(loaded, asked), expected, JSON.stringify(asked))
  t.same(union(loaded, { num_ctx: 100, num_parallel: 4, cache_type_v: 'q8_0' }), {
    ...loaded,
    num_parallel: 4,
    cache_type_v: 'q8_0'
  })
  t.equal(
    firstLoad(DEFAULT_LOAD_OPTIONS, [{ num_ctx: 512 }]).num_ctx,
    512,
    'a first load may be smaller than the default'
  )
  t.equal(firstLoad(DEFAULT_LOAD_OPTIONS, [{ num_ctx: 512 }, { num_ctx: 700 }, {}]).num_ctx, 700)
  t.end()
})

t.test('clampOptions limits options to the training context and the configured limits', t => {
  const table: [Partial<LoadOptions>, trained: number | undefined, bounds: [number, number], Partial<LoadOptions>][] = [
    [{ num_ctx: 9000 }, 2048, [0, 64], { num_ctx: 2048 }],
    [{ num_ctx: 9000 }, undefined, [0, 64], { num_ctx: 9000 }],
    [{ num_ctx: 9000 }, 32_768, [4096, 64], { num_ctx: 4096 }],
    [{ num_ctx: 9000 }, 2048, [4096, 64], { num_ctx: 2048 }],
    [{ num_ctx: 2 ** 31 - 1, num_parallel: 256 }, 32_768, [0, 64], { num_ctx: 32_768, num_parallel: 64 }],
    [
      { num_ctx: 100, num_parallel: 2, cache_type_k: 'q8_0' },
      2048,
      [50, 1],
      { num_ctx: 50, num_parallel: 1, cache_type_k: 'q8_0' }
    ],
    [{}, 2048, [16, 1], {}]
  ]
  for (const [options, contextLength, [num_ctx, num_parallel], expected] of table) {
    const model = { metadata: { contextLength } } as unknown as Model
    t.same(clampOptions(options, model, { num_ctx, num_parallel }), expected, JSON.stringify(options))
  }
  t.end()
})

t.test('fifty first requests cause one load and get slots in order', t => {
  const m = machine()
  t.same(short(m.request(1)), ['load a'])
  for (let id = 2; id <= 50; id++) t.same(short(m.request(id)), [])
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 1', 'grant 2', 'grant 3', 'grant 4'])
  t.same(short(m.send({ type: 'leave', id: 3, key: 'a' })), ['grant 5'])
  t.same(short(m.send({ type: 'leave', id: 6, key: 'a' })), [], 'a waiting request that leaves frees no slot')
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['grant 7'])
  t.end()
})

t.test('a request for several slots gets them at once and is not overtaken', t => {
  const m = machine()
  m.request(1)
  m.send({ type: 'loaded', key: 'a' })
  t.same(short(m.request(2, 'a', { slots: 3 })), ['grant 2'], 'beside another request')
  m.request(3)
  m.request(4, 'a', { slots: 2 })
  m.request(5)
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['grant 3'])
  t.same(short(m.send({ type: 'leave', id: 3, key: 'a' })), [], 'one slot is free and the next request needs two')
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), ['grant 4', 'grant 5'])
  m.request(6, 'a', { slots: 9 })
  t.same(short(m.send({ type: 'leave', id: 4, key: 'a' })), [])
  t.same(
    short(m.send({ type: 'leave', id: 5, key: 'a' })),
    ['grant 6'],
    'a request for more slots than exist gets all of them'
  )
  m.request(7)
  t.same(short(m.send({ type: 'leave', id: 6, key: 'a' })), ['grant 7'])

  const limited = machine()
  limited.request(1, 'a', { slots: 2, maxConcurrent: 1 })
  t.same(short(limited.send({ type: 'loaded', key: 'a' })), ['grant 1'], 'max_concurrent counts requests')
  t.same(short(limited.request(2, 'a', { maxConcurrent: 1 })), [])
  t.end()
})

t.test('a request that only loads takes no slot and waits for none', t => {
  const m = machine()
  for (let id = 1; id <= 5; id++) m.request(id)
  m.request(6, 'a', { loadOnly: true })
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 6', ...[1, 2, 3, 4].map(id => `grant ${id}`)])
  t.same(short(m.request(7, 'a', { loadOnly: true })), ['grant 7'])
  t.same(
    short(m.request(8, 'a', { loadOnly: true, options: { num_ctx: 8192 } })),
    [],
    'a request for more options keeps its place'
  )
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['grant 5'])
  t.equal(m.state.engines.get('a')!.phase.name, 'draining')
  t.end()
})

t.test('a full queue refuses requests', t => {
  const m = machine({ maxQueue: 2 })
  m.request(1)
  m.request(2)
  t.same(short(m.request(3)), ['refuse 3 queue_full'])
  t.end()
})

t.test('an idle engine is unloaded after keep_alive, counted from the end of the last request', t => {
  const m = machine()
  m.request(1)
  m.send({ type: 'loaded', key: 'a' })
  m.at(400_000)
  t.equal(alarmOf(m.send({ type: 'leave', id: 1, key: 'a' })), 700_000)
  m.at(699_999)
  t.same(short(m.send({ type: 'alarm', key: 'a' })), [])
  m.at(700_000)
  t.same(short(m.send({ type: 'alarm', key: 'a' })), ['unload a'])
  t.same(short(m.send({ type: 'gone', key: 'a' })), [])
  t.equal(m.state.engines.size, 0)
  t.end()
})

t.test('an answer longer than keep_alive is not interrupted', t => {
  const m = machine()
  m.request(1)
  m.send({ type: 'loaded', key: 'a' })
  m.at(10 * MINUTES_5)
  t.same(short(m.send({ type: 'alarm', key: 'a' })), [])
  t.end()
})

t.test('keep_alive of 0 unloads at once, negative never, and pinned models ignore it', t => {
  const zero = machine()
  zero.request(1, 'a', { keepAlive: 0 })
  zero.send({ type: 'loaded', key: 'a' })
  zero.request(2)
  t.same(short(zero.send({ type: 'leave', id: 1, key: 'a' })), [], 'another request runs')
  t.same(short(zero.send({ type: 'leave', id: 2, key: 'a' })), ['unload a'])

  t.same(short(zero.request(3)), [], 'a request that arrives during the unload')
  t.same(short(zero.send({ type: 'gone', key: 'a' })), ['load a'])
  t.same(short(zero.send({ type: 'loaded', key: 'a' })), ['grant 3'])
  t.same(short(zero.send({ type: 'leave', id: 3, key: 'a' })), [], 'starts again with the default')

  const ever = machine()
  ever.request(1, 'a', { keepAlive: Number.POSITIVE_INFINITY })
  ever.send({ type: 'loaded', key: 'a' })
  t.equal(alarmOf(ever.send({ type: 'leave', id: 1, key: 'a' })), undefined)
  t.same(short(ever.send({ type: 'keep-alive', key: 'a', keepAlive: 0 })), ['unload a'])

  const pinned = machine()
  pinned.request(1, 'a', { keepAlive: 0, pinned: true })
  pinned.send({ type: 'loaded', key: 'a' })
  t.same(short(pinned.send({ type: 'leave', id: 1, key: 'a' })), [])
  t.same(short(pinned.send({ type: 'keep-alive', key: 'a', keepAlive: 0 })), [])
  t.end()
})

t.test('a request for more options drains, reloads with the union, and later requests keep their order', t => {
  const m = machine()
  m.request(1)
  m.send({ type: 'loaded', key: 'a' })
  t.same(short(m.request(2, 'a', { options: { num_ctx: 8192 } })), [], 'nothing is interrupted')
  t.same(short(m.request(3)), [], 'later arrivals wait behind the drain')
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['unload a'])
  const effects = m.send({ type: 'gone', key: 'a' })
  t.same(short(effects), ['load a'])
  t.match(loadOf(effects), { num_ctx: 8192, num_parallel: 4 })
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 2', 'grant 3'])
  t.end()
})

t.test('a reload is cancelled when its client disconnects', t => {
  const m = machine()
  m.request(1)
  m.send({ type: 'loaded', key: 'a' })
  m.request(2, 'a', { options: { num_ctx: 8192 } })
  m.request(3)
  t.same(short(m.send({ type: 'leave', id: 2, key: 'a' })), ['grant 3'])
  t.end()
})

t.test('a reload is dropped when all its requests leave while the old engine stops', t => {
  const m = machine()
  m.request(1)
  m.send({ type: 'loaded', key: 'a' })
  m.request(2, 'a', { options: { num_ctx: 8192 } })
  m.request(3)
  t.same(short(m.send({ type: 'leave', id: 1, key: 'a' })), ['unload a'])
  m.send({ type: 'leave', id: 2, key: 'a' })
  m.send({ type: 'leave', id: 3, key: 'a' })
  t.same(short(m.send({ type: 'gone', key: 'a' })), [])
  t.equal(m.state.engines.size, 0)
  t.end()
})

t.test('a failed reload restores the old options and fails only its own request', t => {
  const m = machine()
  m.request(1)
  m.send({ type: 'loaded', key: 'a' })
  m.request(2, 'a', { options: { cache_type_k: 'q8_0' } })
  m.request(3)
  m.send({ type: 'leave', id: 1, key: 'a' })
  m.send({ type: 'gone', key: 'a' })
  const effects = m.send({ type: 'load-failed', key: 'a', error: failure })
  t.same(short(effects), ['refuse 2 load_failed', 'load a'])
  t.equal(loadOf(effects)?.cache_type_k, 'f16')
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 3'])
  t.end()
})

t.test('repeated load failures back off with the cause, and other options are tried at once', t => {
  const m = machine()
  m.request(1)
  t.same(short(m.send({ type: 'load-failed', key: 'a', error: failure })), ['refuse 1 load_failed'])
  t.same(short(m.request(2)), ['load a'], 'one failure does not back off')
  m.send({ type: 'load-failed', key: 'a', error: failure })
  const refused = m.request(3)
  t.same(short(refused), ['refuse 3 load_failed'])
  t.match((refused[0] as { error: CorralError }).error, { message: /does not load.*2 times/, retryAfter: 1 })
  t.same(short(m.request(4, 'a', { options: { num_ctx: 512 } })), ['load a'])
  m.send({ type: 'load-failed', key: 'a', error: failure })
  m.at(120_000)
  t.same(short(m.request(5)), ['load a'])
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 5'])
  t.equal(m.state.engines.get('a')!.failure, undefined)
  t.end()
})

t.test('a load refused by another machine is retried at once', t => {
  for (const cause of ['rpc_unreachable', 'rpc_busy']) {
    const m = machine()
    const error = new CorralError('load_failed', 'A worker does not answer.', { details: { cause } })
    for (let id = 1; id < 6; id++) {
      t.same(short(m.request(id)), ['load a'], cause)
      t.same(short(m.send({ type: 'load-failed', key: 'a', error })), [`refuse ${id} load_failed`])
    }
  }
  t.end()
})

t.test('a crash ends running requests, and waiting requests get a fresh engine', t => {
  const m = machine()
  for (let id = 1; id <= 5; id++) m.request(id)
  m.send({ type: 'loaded', key: 'a' })
  const effects = m.send({ type: 'gone', key: 'a', error: new CorralError('engine_crashed', 'gone') })
  t.same(short(effects), [...[1, 2, 3, 4].map(id => `revoke ${id} engine_crashed`), 'load a'])
  t.same(short(m.send({ type: 'loaded', key: 'a' })), ['grant 5'])
  t.end()
})

t.test('stop ends requests and engines in every phase', t => {
  const answering = machine({ maxQueue: 10 })
  for (let id = 1; id <= 5; id++) answering.request(id)
  answering.send({ type: 'loaded', key: 'a' })
  t.same(short(answering.send(stop)), [
    ...[1, 2, 3, 4].map(id => `revoke ${id} model_stopped`),
    'refuse 5 model_stopped',
    'unload a'
  ])
  t.same(short(answering.request(6)), [], 'a request in between waits for the end')
  t.same(short(answering.send({ type: 'gone', key: 'a' })), ['load a'])

  const loading = machine()
  loading.request(1)
  t.same(short(loading.send(stop)), ['refuse 1 model_stopped', 'abort-load a'])
  t.same(short(loading.send({ type: 'load-failed', key: 'a', error: stopped })), [])
  t.equal(loading.state.engines.size, 0, 'an aborted load does not count as a failure')

  const draining = machine()
  draining.request(1)
  draining.send({ type: 'loaded', key: 'a' })
  draining.request(2, 'a', { options: { num_ctx: 8192 } })
  t.same(short(draining.send(stop)), ['revoke 1 model_stopped', 'refuse 2 model_stopped', 'unload a'])
  t.same(short(draining.send({ type: 'gone', key: 'a' })), [])
  t.end()
})

t.test('max_loaded_models evicts the longest idle model and keeps busy and pinned ones', t => {
  const m = machine({ maxLoaded: 2 })
  m.request(1, 'a')
  m.send({ type: 'loaded', key: 'a' })
  m.at(10)
  m.request(2, 'b')
  m.send({ type: 'loaded', key: 'b' })
  t.same(short(m.request(3, 'c')), [], 'both are busy')
  m.at(20)
  t.same(short(m.send({ type: 'leave', id: 2, key: 'b' })), ['unload b'])
  t.same(short(m.send({ type: 'gone', key: 'b' })), ['load c'])

  const pinned = machine({ maxLoaded: 1 })
  pinned.request(1, 'a', { pinned: true })
  pinned.send({ type: 'loaded', key: 'a' })
  pinned.send({ type: 'leave', id: 1, key: 'a' })
  t.same(short(pinned.request(2, 'b')), ['refuse 2 insufficient_memory'])
  t.end()
})

t.test('close refuses waiting requests, lets answers end and unloads', t => {
  const m = machine()
  for (let id = 1; id <= 5; id++) m.request(id)
  m.send({ type: 'loaded', key: 'a' })
  m.request(6, 'b')
  t.same(short(m.send({ type: 'close' })), ['refuse 5 shutting_down', 'refuse 6 shutting_down', 'abort-load b'])
  t.same(short(m.request(7)), ['refuse 7 shutting_down'])
  for (const id of [1, 2, 3]) m.send({ type: 'leave', id, key: 'a' })
  t.same(short(m.send({ type: 'leave', id: 4, key: 'a' })), ['unload a'])
  t.end()
})

/**
 * Feeds random arrivals, ends, cancels, crashes, failures and stops, and checks the invariants: never more engines than
 * allowed or leases than slots, each request is granted or refused once, and all end.
 */
function simulate(seed: number): string[] {
  const random = randomNumbers(seed)
  const pick = <T>(list: T[]): T => list[Math.floor(random() * list.length)]!
  const limits = {
    ...LIMITS,
    maxLoaded: 1 + Math.floor(random() * 3),
    maxQueue: 5 + Math.floor(random() * 20),
    keepAlive: 50,
    fairWait: 200
  }
  const state: SchedulerState = createState(limits)
  const keys = ['a', 'b', 'c', 'd', 'e']
  const faults: string[] = []
  const preparing = new Map<string, number>()
  const runs = new Map<string, number>()
  const loads = new Set<string>()
  const engines = new Map<string, number>()
  const ending = new Set<string>()
  const granted = new Map<number, string>()
  const waiting = new Map<number, string>()
  const loadOnly = new Set<number>()
  let now = 0
  let id = 0

  const send = (event: Event) => {
    for (const effect of decide(state, event, now)) {
      if (effect.type === 'prepare') {
        if (preparing.has(effect.key)) faults.push(`${effect.key} is prepared twice`)
        preparing.set(effect.key, effect.run)
      } else if (effect.type === 'load') {
        runs.set(effect.key, effect.run)
        if (loads.has(effect.key) || engines.has(effect.key)) faults.push(`two engines of ${effect.key}`)
        loads.add(effect.key)
        engines.set(effect.key, effect.options.num_parallel)
      } else if (effect.type === 'abort-load') {
        if (!loads.has(effect.key)) faults.push(`abort without a load of ${effect.key}`)
        ending.add(effect.key)
      } else if (effect.type === 'unload') {
        if (!engines.has(effect.key) || loads.has(effect.key)) faults.push(`unload without an engine of ${effect.key}`)
        ending.add(effect.key)
        const running = [...granted.values()].filter(key => key === effect.key).length
        if (running) faults.push(`unloaded ${effect.key} under ${running} answers`)
      } else if (effect.type === 'grant') {
        if (!waiting.delete(effect.id)) faults.push(`granted ${effect.id}, which did not wait`)
        if (loadOnly.delete(effect.id)) continue
        granted.set(effect.id, effect.key)
        const running = [...granted.values()].filter(key => key === effect.key).length
        if (running > (engines.get(effect.key) ?? 0)) faults.push(`${running} leases of ${effect.key}`)
      } else if (effect.type === 'refuse') {
        if (!waiting.delete(effect.id)) faults.push(`refused ${effect.id}, which did not wait`)
      } else if (effect.type === 'revoke') {
        if (!granted.delete(effect.id)) faults.push(`revoked ${effect.id}, which did not run`)
      }
    }
    if (engines.size > limits.maxLoaded) faults.push(`${engines.size} engines of ${limits.maxLoaded}`)
  }
  const endOf = (key: string, error?: CorralError) => {
    const wasLoading = loads.delete(key)
    engines.delete(key)
    ending.delete(key)
    const run = runs.get(key)!
    if (wasLoading) send({ type: 'load-failed', key, run, error: error ?? failure })
    else send(error ? { type: 'gone', key, run, error } : { type: 'gone', key, run })
  }
  const work = () => {
    if (ending.size && random() < 0.6) return endOf(pick([...ending]))
    if (preparing.size && random() < 0.6) {
      const [key, run] = pick([...preparing])
      preparing.delete(key)
      if (random() < 0.05) return send({ type: 'prepare-failed', key, run, error: failure })
      return send({ type: 'prepared', key, run, need: {}, certain: random() < 0.7, advice: '' })
    }
    const ready = [...loads].filter(key => !ending.has(key))
    if (ready.length && random() < 0.5) {
      const key = pick(ready)
      if (random() < 0.15) return endOf(key)
      loads.delete(key)
      return send({ type: 'loaded', key, run: runs.get(key)!, loadTime: 100 })
    }
    if (granted.size && random() < 0.8) {
      const [runningId, key] = pick([...granted])
      granted.delete(runningId)
      return send({ type: 'leave', id: runningId, key })
    }
    for (const key of state.engines.keys()) send({ type: 'alarm', key })
  }
  for (let clientId = 0; clientId < 300; clientId++) {
    now += Math.floor(random() * 20)
    const dice = random()
    const key = pick(keys)
    if (dice < 0.35) {
      waiting.set(++id, key)
      if (random() < 0.1) loadOnly.add(id)
      const options = random() < 0.2 ? { num_ctx: pick([512, 4096, 8192]), num_parallel: pick([1, 4, 6]) } : {}
      send({
        type: 'request',
        id,
        key,
        clientId: pick(['one', 'two', 'three']),
        name: key,
        options,
        loadOnly: loadOnly.has(id),
        slots: random() < 0.1 ? 2 : 1,
        background: false,
        defaults: DEFAULT_LOAD_OPTIONS,
        pinned: false,
        groups: [],
        elsewhere: false,
        maxConcurrent: undefined,
        ...(random() < 0.1 ? { keepAlive: 0 } : {})
      })
    } else if (dice < 0.4 && waiting.size) {
      const [waitingId, waitingKey] = pick([...waiting])
      waiting.delete(waitingId)
      send({ type: 'leave', id: waitingId, key: waitingKey })
    } else if (dice < 0.43) {
      send({ type: 'stop', key, running: stopped, waiting: stopped, save: true })
    } else if (dice < 0.46 && engines.has(key) && !loads.has(key)) {
      endOf(key, new CorralError('engine_crashed', 'crash'))
    } else {
      work()
    }
  }
  for (let clientId = 0; clientId < 5000 && (waiting.size || granted.size || engines.size); clientId++) {
    now += 30
    work()
  }
  if (waiting.size) faults.push(`${waiting.size} requests never ended`)
  if (engines.size) faults.push(`${engines.size} engines were never unloaded`)
  return faults
}

t.test('random histories keep the invariants', t => {
  for (let seed = 1; seed <= trialCount(50); seed++) {
    const faults = simulate(seed)
    if (faults.length) t.fail(`seed ${seed}: ${faults.slice(0, 3).join('; ')}`)
  }
  t.pass('all seeds')
  t.end()
})
