import t, { type Test } from 'tap'
import type { MemoryUse } from '../../../../core/contracts/engines.ts'
import type { Model } from '../../../../core/contracts/models.ts'
import { CorralError, type ErrorCode } from '../../../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS, type LoadOptions } from '../../../../core/models/load-options.ts'
import { clampOptions } from '../../../../plugins/running/scheduler/model-configuration.ts'
import {
  type Effect,
  firstLoad,
  type Limits,
  reservedBy,
  satisfies,
  union
} from '../../../../plugins/running/scheduler/scheduler-state.ts'
import { readFixture } from '../../../support/fixture.ts'
import { Agenda } from './simulated-world.ts'
import { machine, short } from './support.ts'

interface Scenario {
  title: string
  limits?: Partial<Limits>
  /** Memory of each model: GiB of main memory, or of several pools such as `host=1 CUDA0=6`. */
  needs?: Record<string, number | string>
  steps: string[]
}

const GIB = 2 ** 30
const OPTIONS = Object.keys(DEFAULT_LOAD_OPTIONS)

type Fields = Record<string, string | number | boolean>

/** Reads fields such as `slots=3 pinned=true`. */
function readFields(text: string): Fields {
  const fields = [...text.matchAll(/(\w+)=(\S+)/g)].map(([, name, value]): [string, Fields[string]] => {
    const number = Number(value)
    return [name!, value === 'true' || (Number.isNaN(number) ? value! : number)]
  })
  return Object.fromEntries(fields)
}

const toUse = (fields: Fields): MemoryUse =>
  Object.fromEntries(Object.entries(fields).map(([pool, size]) => [pool, Number(size) * GIB]))

/** Returns the fields of a `request` event. Load options may be among them. */
function toRequest({ client, groups, default_parallel, ...fields }: Fields): object {
  const entries = Object.entries(fields)
  const options = Object.fromEntries(entries.filter(([name]) => OPTIONS.includes(name)))
  return {
    ...Object.fromEntries(entries.filter(([name]) => !OPTIONS.includes(name))),
    options,
    ...(client !== undefined && { clientId: client }),
    ...(groups !== undefined && { groups: [groups] }),
    ...(default_parallel !== undefined && { defaults: { ...DEFAULT_LOAD_OPTIONS, num_parallel: default_parallel } })
  }
}

/** Returns an error such as `load_failed` or `load_failed:rpc_busy`, whose second part is the cause. */
function toError(text: string): CorralError {
  const [code, cause] = text.split(':')
  return new CorralError(code as ErrorCode, 'It does not load.', cause === undefined ? {} : { details: { cause } })
}

/** Replaces `revoke 1..3 code` by one effect for each number. */
const expand = (effects: string): string[] =>
  effects.split(', ').flatMap(effect => {
    const [, before, first, last, after] = /^(\w+ )(\d+)\.\.(\d+)(.*)$/.exec(effect) ?? []
    if (first === undefined) return [effect]
    return Array.from({ length: Number(last) - Number(first) + 1 }, (_, at) => `${before}${Number(first) + at}${after}`)
  })

function play(t: Test, { limits, needs = {}, steps }: Scenario): void {
  const uses = Object.entries(needs).map(([key, need]) => [
    key,
    toUse(typeof need === 'number' ? { host: need } : readFields(need))
  ])
  const m = machine(limits, Object.fromEntries(uses))
  let last: Effect[] = []
  let id = 1000
  const stopped = new CorralError('model_stopped', 'stopped')
  const engine = (key: string) => m.state.engines.get(key)
  const find = <Type extends Effect['type']>(type: Type) =>
    last.findLast((effect): effect is Extract<Effect, { type: Type }> => effect.type === type)
  const requestAll = (ids: string, key: string, fields: Fields) => {
    const [from, to = from] = ids.split('..').map(Number) as [number, number?]
    const effects: Effect[] = []
    for (let id = from; id <= to; id++) effects.push(...m.request(id, key, toRequest(fields)))
    return effects
  }
  const events: Record<string, (first: string, second: string, fields: Fields) => Effect[] | undefined> = {
    request: requestAll,
    idle(key, _, { loadTime = 1000, ...fields }) {
      m.request(++id, key, toRequest(fields))
      m.send({ type: 'loaded', key, loadTime: Number(loadTime) })
      m.send({ type: 'leave', id, key })
      return []
    },
    loaded: (key, _, fields) =>
      m.send({ type: 'loaded', key, ...(fields.host !== undefined && { use: toUse(fields) }) }),
    leave: (id, key) => m.send({ type: 'leave', id: Number(id), key }),
    rest: (id, key) => m.send({ type: 'leave', id: Number(id), key, rests: true }),
    yield: (id, key) => m.send({ type: 'yield', id: Number(id), key }),
    gone: (key, error) => m.send({ type: 'gone', key, ...(error && { error: toError(error) }) }),
    'load-failed': (key, error) => m.send({ type: 'load-failed', key, error: toError(error) }),
    'prepare-failed': (key, error) => m.send({ type: 'prepare-failed', key, error: toError(error) }),
    prepared: (key, _, fields) => m.prepared(key, fields.host === undefined ? undefined : toUse(fields)),
    'keep-alive': (key, keepAlive) => m.send({ type: 'keep-alive', key, keepAlive: Number(keepAlive) }),
    stop: key => m.send({ type: 'stop', key, running: stopped, waiting: stopped, save: true }),
    close: () => m.send({ type: 'close' }),
    alarm: key => m.send({ type: 'alarm', key }),
    budget: (_, __, fields) => m.send({ type: 'budget', budget: toUse(fields) }),
    until: time => m.until(Number(time)),
    at: time => void m.at(Number(time)),
    hold: key => void m.held.add(key),
    uncertain: key => void m.uncertain.add(key),
    need: (key, _, fields) => void Object.assign(m.needs, { [key]: toUse(fields) })
  }
  const checks: Record<string, (step: string, first: string, second: string, fields: Fields) => unknown> = {
    next: (step, _, time) => t.equal(find('alarm')?.at, time === 'never' ? undefined : Number(time), step),
    loads: (step, _, __, fields) => t.match(find('load')?.options, fields, step),
    error: step => t.match(find('refuse')?.error.message, new RegExp(step.slice('error /'.length, -1)), step),
    details: (step, name, _, fields) => t.same(find('refuse')?.error.details?.[name], toUse(fields), step),
    'retry-after': (step, seconds) => t.equal(find('refuse')?.error.retryAfter, Number(seconds), step),
    prepares: (step, key) => t.equal(find('prepare')?.key ?? 'nothing', key, step),
    phase: (step, key, name) => t.equal(engine(key)?.phase.name ?? 'none', name, step),
    engines: (step, count) => t.equal(m.state.engines.size, Number(count), step),
    used: (step, client, used) => t.equal(engine('a')?.clients.get(client)?.used, Number(used), step),
    failure: (step, key) => t.equal(engine(key)?.failure, undefined, step),
    holders: (step, key, holder) => t.match(find('waiting'), { key, holders: [holder] }, step),
    reserved: (step, key, _, fields) => t.same(reservedBy(engine(key)!), toUse(fields), step)
  }
  for (const step of steps) {
    const [event, expected] = step.split(' => ') as [string, string?]
    const [what, ...words] = event.split(' ').filter(word => !/^\w+=/.test(word)) as [string, ...string[]]
    const [first = '', second = ''] = words
    if (what in checks) {
      checks[what]!(step, first, second, readFields(event))
      continue
    }
    if (!(what in events)) throw new Error(`Unknown step: ${step}`)
    last = events[what]!(first, second, readFields(event)) ?? []
    t.same(short(last), expected === undefined ? [] : expand(expected), step)
  }
}

for (const [about, scenarios] of Object.entries(readFixture<Record<string, Scenario[]>>('scheduler-scenarios.yaml'))) {
  t.test(about, t => {
    for (const scenario of scenarios) {
      t.test(scenario.title, t => {
        play(t, scenario)
        t.end()
      })
    }
    t.end()
  })
}

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

t.test('alternating options of one client do not block other clients', t => {
  const m = machine({ reloads: 3 })
  const events: ('loaded' | 'gone')[] = []
  const running: number[] = []
  const waiting = new Map<string, number>()
  const counts = { load: 0, refuse: 0, grant: 0 }
  const clientIds = new Map<number, string>()
  let now = 0
  let id = 0
  const apply = (effects: string[]) => {
    for (const effect of effects) {
      const [what, about] = effect.split(' ')
      if (what === 'load') events.push('loaded')
      if (what === 'load') counts.load++
      if (what === 'unload') events.push('gone')
      if (what === 'grant') running.push(Number(about))
      if (what === 'grant' && clientIds.get(Number(about)) === 'honest') counts.grant++
      if (what === 'refuse') waiting.delete(clientIds.get(Number(about))!)
      if (what === 'refuse') counts.refuse++
    }
  }
  for (let step = 0; step < 400; step++) {
    now += 100
    apply(short(m.until(now)))
    for (const clientId of ['honest', 'greedy']) {
      if (waiting.has(clientId)) continue
      waiting.set(clientId, ++id)
      clientIds.set(id, clientId)
      const type = id % 4 > 1 ? 'q8_0' : 'f32'
      apply(short(m.request(id, 'a', { clientId, options: clientId === 'greedy' ? { cache_type_k: type } : {} })))
    }
    const event = events.shift()
    if (event === 'loaded') apply(short(m.send({ type: 'loaded', key: 'a' })))
    if (event === 'gone') apply(short(m.send({ type: 'gone', key: 'a' })))
    const ended = running.shift()
    if (ended === undefined) continue
    waiting.delete(clientIds.get(ended)!)
    apply(short(m.send({ type: 'leave', id: ended, key: 'a' })))
  }
  t.ok(counts.load <= 8, `${counts.load} loads: the first, three reloads, and back`)
  t.ok(counts.refuse > 100, `${counts.refuse} refused`)
  t.ok(counts.grant > 300, `${counts.grant} of 400 steps served the other client`)
  t.end()
})

t.test('three models that need all the memory take turns in order of their wait', t => {
  const need = { host: 9 * GIB }
  const m = machine({ fairWait: 10_000 }, { a: need, b: need, c: need })
  m.send({ type: 'budget', budget: { host: 10 * GIB } })
  let id = 0
  const clientIds: string[] = []
  const running = new Map<number, string>()
  const apply = (effects: Effect[]): void => {
    for (const effect of effects) {
      if (effect.type === 'grant') running.set(effect.id, effect.key)
      if (effect.type === 'load') {
        clientIds.push(effect.key)
        apply(m.send({ type: 'loaded', key: effect.key }))
      }
      if (effect.type === 'unload') apply(m.send({ type: 'gone', key: effect.key }))
    }
  }
  // Each has more requests than can be served.
  for (let now = 0; now < 100_000; now += 500) {
    apply(m.until(now))
    for (const key of ['a', 'b', 'c']) apply(m.request(++id, key, { maxConcurrent: 1 }))
    for (const [id, key] of [...running]) {
      running.delete(id)
      apply(m.send({ type: 'leave', id, key }))
    }
  }
  t.same(clientIds.slice(0, 7), ['a', 'b', 'c', 'a', 'b', 'c', 'a'])
  t.ok(clientIds.length <= 12, `only necessary swaps: ${clientIds.length}`)
  t.end()
})

/** Two agents with a model each, of which only one fits. Each sends its next request some time after an answer. */
function playAgents(pauses: Record<string, number>, seconds: number) {
  const [load, stop, answer] = [3000, 100, 500]
  const fairWait = 15_000
  const need = { host: 9 * GIB }
  const m = machine({ fairWait }, { a: need, b: need })
  m.send({ type: 'budget', budget: { host: 10 * GIB } })
  const agenda = new Agenda()
  const at = (delay: number, act: () => Effect[]) =>
    agenda.after(delay, () => apply([...m.until(agenda.now), ...act()]))
  const asked = new Map<number, number>()
  const result = { loads: 0, answers: 0, longestWait: 0, bound: fairWait + answer + 2 * (load + stop) }
  let id = 0
  const ask = (key: string): Effect[] => {
    asked.set(++id, agenda.now)
    return m.request(id, key, { clientId: key, maxConcurrent: 1 })
  }
  const apply = (effects: Effect[]): void => {
    for (const effect of effects) {
      if (effect.type === 'load') {
        result.loads++
        at(load, () => m.send({ type: 'loaded', key: effect.key, loadTime: load }))
      }
      if (effect.type === 'unload') at(stop, () => m.send({ type: 'gone', key: effect.key }))
      if (effect.type !== 'grant') continue
      result.longestWait = Math.max(result.longestWait, agenda.now - asked.get(effect.id)!)
      at(answer, () => m.send({ type: 'leave', id: effect.id, key: effect.key }))
      result.answers++
      at(answer + pauses[effect.key]!, () => ask(effect.key))
    }
  }
  const tick = () => {
    apply(m.until(agenda.now))
    agenda.after(10, tick)
  }
  tick()
  for (const key of Object.keys(pauses)) at(0, () => ask(key))
  while (agenda.step(seconds * 1000));
  return result
}

t.test('agents with a model each take turns instead of swapping with every request', t => {
  for (const [pauses, least] of [
    [{ a: 200, b: 300 }, 14],
    [{ a: 200, b: 4000 }, 9],
    [{ a: 4000, b: 4000 }, 3]
  ] as const) {
    const title = JSON.stringify(pauses)
    const { loads, answers, longestWait, bound } = playAgents(pauses, 600)
    t.ok(longestWait <= bound, `${title}: ${longestWait} ms are no more than a turn, which takes ${bound}`)
    t.ok(answers / loads >= least, `${title}: ${answers} answers, ${loads} loads`)
  }
  t.end()
})
