import t from 'tap'
import type { StateEvent, StateFollower, StateTopic } from '../../../../core/contracts/state-events.ts'
import {
  type Access,
  type CurrentRecord,
  isMoving,
  StateCollector
} from '../../../../plugins/apis/native/events/state-collector.ts'
import { SharedStateFeed } from '../../../../plugins/apis/native/events/state-feed.ts'
import { until } from '../../../support/corral.ts'
import { each } from '../../../support/each.ts'

const never = undefined as never
const others = {
  engines: never,
  catalog: never,
  scheduler: never,
  downloads: never,
  runtimes: never,
  config: never,
  drain: () => never
}
const hardware = { known: () => undefined, readings: async () => [] }

t.test('conversions have their progress', async t => {
  const variant = { key: 'me/finetune:f32', publicName: 'me/finetune', name: 'me/finetune', label: 'f32' }
  const running = [
    { variant, dtype: 'q4_k_m', progress: { phase: 'queued', subject: '' } },
    { variant, dtype: 'f16', progress: { phase: 'converting', subject: '', fraction: 0.1278 } }
  ]
  const records = new StateCollector({ ...others, hardware, conversion: { running: () => running } as never })
  const seen = records.of('conversion', 0)
  t.match(each(seen, 'value'), [
    { dtype: 'q4_k_m', status: 'queued' },
    { dtype: 'f16', status: 'converting 12%', progress: 0.12 }
  ])
  t.equal(new Set(seen.map(({ key }) => key)).size, 2)
  t.ok(seen.every(isMoving), 'conversions are polled frequently')
})

t.test('GPU sensors are read only if there are GPUs, rarely, and one read at a time', async t => {
  const gpu = { id: 'nvidia:0', name: 'NVIDIA H100 80GB HBM3' }
  let calls = 0
  let known: object | undefined
  let temperature = 40
  const records = new StateCollector({
    ...others,
    conversion: never,
    hardware: {
      known: () => known as never,
      readings: async () => {
        calls += 1
        return [{ ...gpu, temperature: temperature++ }]
      }
    }
  })
  t.strictSame(records.of('gpu', performance.now()), [])
  known = { gpus: [] }
  t.strictSame(records.of('gpu', performance.now()), [])
  t.equal(calls, 0, 'there are no GPUs to read')
  known = { gpus: [gpu] }
  records.of('gpu', performance.now())
  records.of('gpu', performance.now())
  await until('the sensors were read', () => records.of('gpu', performance.now()).length > 0)
  t.equal(calls, 1)
  const [seen] = records.of('gpu', performance.now())
  t.strictSame(seen, { topic: 'gpu', key: gpu.id, value: { name: gpu.name, temperature: 40 }, access: 'operator' })
  records.of('gpu', performance.now() + 60_000)
  await until('the sensors were read again', () => records.of('gpu', performance.now())[0] !== seen)
  t.equal(calls, 2)
})

const operator: StateFollower['caller'] = { turn: 'key:operator', role: 'operator' }

/** Creates a feed of records that the test sets, and counts the polls. */
function feedOf(...seen: CurrentRecord[]) {
  const records = new Map(seen.map(record => [`${record.topic}/${record.key}`, record]))
  const looks = new Map<StateTopic, number>()
  const logged: unknown[] = []
  const feed = new SharedStateFeed(
    {
      of(topic) {
        looks.set(topic, (looks.get(topic) ?? 0) + 1)
        if (topic === 'build' && records.has('broken')) throw new Error('It is broken.')
        return [...records.values()].filter(record => record.topic === topic)
      },
      forget() {}
    },
    { error: (...said: unknown[]) => void logged.push(said) }
  )
  t.teardown(() => feed.close())
  return {
    feed,
    looks,
    logged,
    break: () => records.set('broken', model('broken', {})),
    set(...changed: CurrentRecord[]) {
      for (const record of changed) records.set(`${record.topic}/${record.key}`, record)
      feed.touch('model')
    },
    remove(name: string) {
      records.delete(name)
      feed.touch('model')
    }
  }
}

const model = (key: string, value: object, access: Access = { key }) =>
  ({ topic: 'model', key, value, access }) as unknown as CurrentRecord

/** Follows a feed. With `slow`, each event is received only after `release`. */
function follow(feed: SharedStateFeed, options: Partial<StateFollower> & { slow?: boolean } = {}) {
  const events: StateEvent[] = []
  const { slow = false, ...more } = options
  let release = () => {}
  let ended = false
  const leave = feed.follow({
    caller: operator,
    take(event) {
      events.push(event)
      return slow ? new Promise<void>(resolve => (release = resolve)) : undefined
    },
    end: () => (ended = true),
    ...more
  })
  const shown = () =>
    events.map(event =>
      event.kind === 'snapshot'
        ? { all: event.records.map(({ json }) => JSON.parse(json)) }
        : { removed: event.removed.map(({ key }) => key), set: event.set.map(({ json }) => JSON.parse(json)) }
    )
  return { events, shown, leave, release: () => release(), ended: () => ended, last: () => events.at(-1)!.id }
}

const record = (key: string, value: object) => ({ topic: 'model', key, value })

t.test('changes contain only changed fields, and null for removed ones', async t => {
  const { feed, set, remove } = feedOf(model('a', { size: 1, list: [1], old: true }))
  const all = follow(feed)
  t.strictSame(all.shown(), [{ all: [record('a', { size: 1, list: [1], old: true })] }])
  set(model('a', { size: 2, list: [1] }), model('b', { size: 9 }))
  await until('the change', () => all.events.length === 2)
  t.strictSame(all.shown()[1], { removed: [], set: [record('a', { size: 2, old: null }), record('b', { size: 9 })] })
  remove('model/b')
  set(model('a', { size: 2, list: [1] }))
  await until('the record is removed', () => all.events.length === 3)
  t.strictSame(all.shown()[2], { removed: ['b'], set: [] }, 'an equal record is not a change')
})

t.test('the feed does not poll without followers, and sends nothing without changes', async t => {
  const { feed, looks, set } = feedOf(model('a', { size: 1 }))
  set(model('a', { size: 2 }))
  await new Promise(resolve => setTimeout(resolve, 300))
  t.equal(looks.size, 0)
  const all = follow(feed)
  await until('a few polls', () => looks.get('engine')! > 2)
  t.equal(all.events.length, 1)
  all.leave()
  const before = new Map(looks)
  set(model('a', { size: 3 }))
  await new Promise(resolve => setTimeout(resolve, 1200))
  t.strictSame(looks, before)
})

t.test('a follower resumes from its last id, but gets a snapshot for another view, feed or invalid id', async t => {
  const { feed, set } = feedOf(model('a', { size: 1 }))
  const first = follow(feed)
  set(model('a', { size: 2 }))
  await until('the change', () => first.events.length === 2)
  const lastId = first.last()
  first.leave()
  set(model('a', { size: 3 }))
  const second = follow(feed, { lastId })
  t.strictSame(second.shown(), [{ removed: [], set: [record('a', { size: 3 })] }], 'changes made without followers')
  const third = follow(feed, { lastId: second.last() })
  t.strictSame(third.shown(), [], 'nothing was missed')
  const fourth = follow(feed, { lastId: first.events[0]!.id })
  t.strictSame(each(fourth.shown(), 'set'), [[record('a', { size: 2 })], [record('a', { size: 3 })]])
  const kinds = (options: Partial<StateFollower>) => follow(feed, options).events.map(({ kind }) => kind)
  t.strictSame(kinds({ lastId, topics: new Set(['model']) }), ['snapshot'])
  t.strictSame(kinds({ lastId, caller: { ...operator, models: ['a'] } }), ['snapshot'])
  t.strictSame(kinds({ lastId, caller: { ...operator, role: 'user' } }), ['snapshot'])
  const [epoch] = lastId.split('-')
  for (const made of [`${epoch}-999`, `${epoch}-`, 'nonsense', '0123456789abcdef-1', '']) {
    t.strictSame(kinds({ lastId: made }), ['snapshot'], made)
  }
  const other = feedOf(model('a', { size: 3 }))
  t.strictSame(each(follow(other.feed, { lastId }).events, 'kind'), ['snapshot'], 'as after a restart')
})

t.test('followers see only permitted records, also if a name changes its model', async t => {
  const records = [
    model('a', { size: 1 }, { key: 'me/a:q4' }),
    { topic: 'memory', key: 'host', value: { pool: 'host', reserved: 1 }, access: 'operator' } as CurrentRecord
  ]
  const { feed, set } = feedOf(...records)
  const user = { turn: 'key:user', role: 'user' } as const
  const [all, some, narrow] = [
    follow(feed),
    follow(feed, { caller: user }),
    follow(feed, { caller: { ...user, models: ['me/a:q4'] } })
  ]
  t.equal(all.shown()[0]!.all!.length, 2)
  t.strictSame(some.shown()[0], { all: [record('a', { size: 1 })] })
  t.strictSame(narrow.shown()[0], { all: [record('a', { size: 1 })] })
  set(model('a', { size: 2 }, { key: 'me/a:q8' }))
  await until('the change', () => all.events.length === 2)
  t.strictSame(all.shown()[1], { removed: ['a'], set: [record('a', { size: 2 })] })
  t.strictSame(narrow.shown()[1], { removed: ['a'], set: [] })
  set({ topic: 'memory', key: 'host', value: { pool: 'host', reserved: 2 }, access: 'operator' })
  await until('the next change', () => all.events.length === 3)
  t.equal(some.events.length, 2)
})

t.test(
  'a slow follower delays no one and gets missed changes in order, or a snapshot if there are too many',
  async t => {
    const { feed, set } = feedOf(model('a', { n: 0 }))
    const slow = follow(feed, { slow: true })
    const fast = follow(feed)
    for (let n = 1; n <= 3; n++) {
      set(model('a', { n }))
      await until(`change ${n}`, () => fast.events.length === n + 1)
    }
    t.equal(slow.events.length, 1)
    for (let n = 2; n <= 4; n++) {
      slow.release()
      await until(`event ${n}`, () => slow.events.length === n)
    }
    t.strictSame(
      slow
        .shown()
        .slice(1)
        .map(({ set }) => set![0].value.n),
      [1, 2, 3]
    )
    // More than the log can hold.
    const text = 'x'.repeat(100_000)
    for (const n of [4, 5]) {
      set(...Array.from({ length: 40 }, (_, at) => model(`m${at}`, { n, text: text + n })))
      await until(`change ${n}`, () => fast.events.length === n + 1)
    }
    slow.release()
    await until('a snapshot', () => slow.events.length === 5)
    t.equal(slow.events[4]!.kind, 'snapshot')
    t.equal(slow.shown()[4]!.all!.length, 41)
    t.equal(slow.last(), fast.last())
  }
)

t.test('the feed limits followers per client and in total', async t => {
  const { feed } = feedOf(model('a', { n: 0 }))
  const of = (turn: string) => follow(feed, { caller: { ...operator, turn } })
  const own = Array.from({ length: 16 }, () => of('key:a'))
  t.throws(() => of('key:a'), { code: 'rate_limited', retryAfter: 30 })
  own[0]!.leave()
  const others = ['key:a', ...Array.from({ length: 496 }, (_, at) => `key:${at}`)].map(of)
  t.throws(() => of('key:last'), { code: 'rate_limited' })
  feed.close()
  t.ok([...own.slice(1), ...others].every(({ ended }) => ended()))
  t.equal(of('key:last').events.length, 1)
})

t.test('ten thousand models are compared, and polled only when necessary', async t => {
  const many = Array.from({ length: 10_000 }, (_, at) => model(`me/m${at}`, { size: at, capabilities: ['completion'] }))
  const { feed, looks, set } = feedOf(...many)
  const all = follow(feed)
  t.equal(all.shown()[0]!.all!.length, 10_000)
  set(model('me/m7', { size: 1, capabilities: ['completion'] }))
  await until('the change', () => all.events.length === 2)
  t.strictSame(all.shown()[1], { removed: [], set: [record('me/m7', { size: 1 })] })
  const [models, engines] = [looks.get('model')!, looks.get('engine')!]
  for (let at = 0; at < 100; at++) feed.touch('engine')
  await until('looks', () => looks.get('engine')! >= engines + 1)
  t.equal(looks.get('engine'), engines + 1, 'several announcements cause one poll')
  t.equal(looks.get('model'), models, 'the models are not polled')
})

t.test('an unreadable state ends the streams', async t => {
  const fed = feedOf(model('a', { n: 0 }))
  const all = follow(fed.feed)
  fed.break()
  await until('the end', () => all.ended())
  t.equal(fed.logged.length, 1)
  t.throws(() => follow(fed.feed), { message: 'It is broken.' })
})
