import { copyFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { startTestCorral, type TestCorral } from '../../../../testing/test-corral.ts'
import { config, newKey, sendMany, usageOf } from './clients.ts'
import { startRedis } from './redis-server.ts'

/** Requests per key. */
const EACH = 200
/** Input tokens of the question, and output tokens of the echo engine. */
const WORDS = 3
const SLOTS = 4

const LIMITS = {
  minute: { requests_per_minute: 50 },
  day: { requests_per_day: 30, requests_per_minute: 60 },
  tokens: { tokens_per_day: 300, requests_per_minute: 0 },
  out: { tokens_out_per_day: 150, requests_per_minute: 0 },
  free: { requests_per_minute: 0 }
}

/** Sends a thousand concurrent requests with five keys to all servers, and checks which were accepted and recorded. */
async function thousand(t: Test, servers: readonly TestCorral[]): Promise<void> {
  const [first, ...others] = servers
  const keys = new Map<string, string>()
  for (const [name, limits] of Object.entries(LIMITS)) keys.set(name, await newKey(first!, name, limits))
  for (const other of others) copyFileSync(join(first!.home, 'keys.json'), join(other.home, 'keys.json'))

  const answers = await Promise.all([...keys].map(([, key]) => sendMany(servers, key, EACH)))
  const [minute, day, tokens, out, free] = answers.map(statuses => {
    const found = [...new Set(statuses)].filter(status => status !== 200 && status !== 429)
    t.same(found, [])
    return statuses.filter(status => status === 200).length
  })
  t.equal(minute, 50, 'exactly the requests per minute')
  t.equal(day, 30, 'exactly the requests per day')
  t.equal(free, EACH, "0 removes the server's limit")
  const mostAbove = SLOTS * servers.length
  t.ok(tokens! * 2 * WORDS >= 300 && tokens! * 2 * WORDS < 300 + mostAbove * 2 * WORDS, `${tokens} answers of 6 tokens`)
  t.ok(out! * WORDS >= 150 && out! * WORDS < 150 + mostAbove * WORDS, `${out} answers of 3 tokens`)

  const let_in = { minute, day, tokens, out, free }
  const sums = new Map<string, { requests: number; tokens_in: number; tokens_out: number }>()
  for (const server of servers) {
    for (const row of (await usageOf(server)).usage) {
      const sum = sums.get(row.name) ?? { requests: 0, tokens_in: 0, tokens_out: 0 }
      sums.set(row.name, sum)
      for (const field of ['requests', 'tokens_in', 'tokens_out'] as const) sum[field] += row[field]
    }
  }
  for (const [name, count] of Object.entries(let_in)) {
    t.same(
      sums.get(name),
      { requests: count, tokens_in: count! * WORDS, tokens_out: count! * WORDS },
      `the usage of ${name} is exact`
    )
  }
  for (const name of ['minute', 'day', 'tokens', 'out']) {
    t.same(new Set(await sendMany(servers, keys.get(name)!, servers.length)), new Set([429]), `${name} stays refused`)
  }
}

t.test('budgets are exact for a thousand concurrent requests with five keys', async t => {
  const corral = await startTestCorral({ config: config('requests_per_minute: 20') })
  t.teardown(() => corral.close())
  await thousand(t, [corral])
})

t.test('budgets are exact for two servers that share a Redis', async t => {
  const redis = await startRedis(t)
  if (!redis) return
  const text = config('requests_per_minute: 20', `usage: { redis: "${redis.url}" }`)
  const servers = [await startTestCorral({ config: text }), await startTestCorral({ config: text })]
  t.teardown(() => Promise.all(servers.map(server => server.close())))
  await thousand(t, servers)
})

t.test('budgets survive a Redis that stops and comes back', async t => {
  const redis = await startRedis(t)
  if (!redis) return
  const text = config('', `usage: { redis: "${redis.url}" }`)
  const servers = [await startTestCorral({ config: text }), await startTestCorral({ config: text })]
  t.teardown(() => Promise.all(servers.map(server => server.close())))
  const [one, two] = servers as [TestCorral, TestCorral]
  const key = await newKey(one, 'alice', { requests_per_day: 10 })
  copyFileSync(join(one.home, 'keys.json'), join(two.home, 'keys.json'))

  t.same(await sendMany([one], key, 4), [200, 200, 200, 200])
  redis.freeze()
  t.same(await sendMany([one], key, 3), [200, 200, 200], 'requests continue')
  t.same(await sendMany([one], key, 5), [200, 200, 200, 429, 429], 'this server counts on its own in the meantime')
  redis.thaw()
  await t.resolves(redis.until(one, /answers again/))
  t.same(await sendMany([two], key, 2), [429, 429], 'the other server knows those counts afterwards')
  t.equal(one.log().match(/does not answer/g)?.length, 1, 'logged once')

  await redis.kill()
  const other = await newKey(two, 'bob', { requests_per_minute: 2 })
  t.same(await sendMany([two], other, 3), [200, 200, 429], 'a budget applies without it')
  t.notMatch(one.log() + two.log(), /secret-of-redis/)
})

t.test('server starts without its Redis', async t => {
  const corral = await startTestCorral({
    config: config('', 'usage: { redis: "redis://:secret-of-redis@127.0.0.1:9" }')
  })
  t.teardown(() => corral.close())
  t.match(corral.log(), /The Redis at 127\.0\.0\.1:9 does not answer \(.*ECONNREFUSED/)
  t.notMatch(corral.log(), /secret-of-redis/)
  const key = await newKey(corral, 'alice', { requests_per_day: 2 })
  t.same(await sendMany([corral], key, 3), [200, 200, 429])
})

t.test('invalid Redis address is refused', async t => {
  for (const redis of ['redis://[', 'http://127.0.0.1:6379', 'redis://a b']) {
    await t.rejects(startTestCorral({ config: config('', `usage: { redis: "${redis}" }`) }), /usage\.redis/, redis)
  }
})
