import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import {
  FairQueue,
  nextWaiting,
  type Place,
  placeToDrop,
  placeToYield
} from '../../../../../plugins/models/download/pulls/fair-queue.ts'
import { until } from '../../../../support/corral.ts'
import { setting, watching } from './support.ts'

const of = (clients: string) => [...clients].map((client, since) => ({ client, since }))

t.test('the next place goes to the client with the fewest places', async t => {
  const next = (waiting: string, working: string, served: [string, number][] = []) =>
    nextWaiting(of(waiting), of(working), new Map(served))?.client
  t.equal(next('', 'a'), undefined)
  t.equal(next('aaab', 'aaa'), 'b', 'the client with fewer places')
  t.equal(next('ab', '', [['a', 1]]), 'b', 'the client that was never served')
  t.equal(
    next('ab', '', [
      ['a', 1],
      ['b', 2]
    ]),
    'a',
    'the client that was served longest ago'
  )
  t.equal(next('ab', 'a'), 'b')
})

t.test('a place is taken from the client with the most', async t => {
  const gives = (next: string, working: string, now = 10) => {
    const found = placeToYield(of(next)[0]!, of(working), 5, now)
    return found && `${found.place.client}${found.place.since} in ${found.in}`
  }
  t.equal(gives('b', 'aaaa'), 'a3 in 0', 'the latest of a client beyond its share, immediately')
  t.equal(gives('b', 'aab'), undefined)
  t.equal(gives('b', 'aaab'), 'a2 in 0')
  t.equal(gives('a', 'aaaa'), undefined, 'a client does not give way to itself')
  t.equal(gives('c', 'ab', 3), 'a0 in 2', 'the oldest when its turn is over')
  t.equal(gives('c', 'ab', 6), 'a0 in 0')
})

t.test('a full queue drops the latest place of the client with the most', async t => {
  const leaves = (waiting: string, client: string) => placeToDrop(of(waiting), client)
  t.match(leaves('aaaa', 'b'), { client: 'a', since: 3 })
  t.equal(leaves('aaaa', 'a'), undefined)
  t.equal(leaves('ab', 'c'), undefined, 'a client keeps its only place')
  t.match(leaves('aabbb', 'a')?.client, undefined)
})

t.test('places rotate between clients', async t => {
  const queue = new FairQueue({ places: 2, waiting: 3, turnLength: 1e6 })
  const a = Array.from({ length: 5 }, () => queue.enter('a'))
  const waiting = (places: Place[]) => places.map(({ isWaiting }) => isWaiting)
  t.same(waiting(a), [false, false, true, true, true])
  t.throws(() => queue.enter('a'), { code: 'rate_limited', details: { limit: 'limits.waiting_pulls', allowed: 3 } })

  const b = queue.enter('b')
  t.ok(a[1]!.yielding.aborted, 'the latest of the other client makes room')
  t.equal(b.isWaiting, true)
  a[1]!.leave()
  await b.begun
  t.equal(b.isWaiting, false)
  const c = queue.enter('c')
  await t.rejects(a[4]!.begun, { code: 'rate_limited', message: /gave its place/ }, 'the queue was full')
  a[0]!.leave()
  a[0]!.leave()
  await c.begun
  t.same(waiting([a[2]!, b, c]), [true, false, false])
  b.leave()
  await a[2]!.begun
  for (const place of [c, a[2]!, a[3]!]) place.leave()
  await queue.enter('d').begun
})

t.test('a turn ends when another client has none', async () => {
  const queue = new FairQueue({ places: 1, waiting: 3, turnLength: 20 })
  const first = queue.enter('a')
  const second = queue.enter('b')
  await until('the turn is over', () => first.yielding.aborted)
  first.leave()
  await second.begun
})

t.test('pulls of two clients share the places', async t => {
  const at = await setting(t, { limits: { pulls: 1, waiting: 1 } })
  at.transfers.holdAt = /gguf/
  const first = await at.pull('Acme/Tiny-GGUF:Q4_K_M', { detached: true, caller: { turn: 'a' } })
  const states = () => at.downloads.list().map(({ state }) => state)
  await until('it transfers', () => at.downloads.list()[0]!.completed > 0)
  let waited = 0
  const second = await at.pull('Acme/Tiny-GGUF:Q2_K', { detached: true, caller: { turn: 'b' } })
  const result = second.pull.watch(
    () => undefined,
    new AbortController().signal,
    () => waited++
  )
  t.same(states(), ['downloading', 'waiting'])
  t.ok(waited > 0)
  await sleep(10)
  t.notOk(at.transfers.fetched.some(path => path.includes('Q2')))
  at.transfers.release()
  await Promise.all([watching(first.pull).result.catch(() => undefined), result])
  t.equal(at.store.list().length, 2)
})
