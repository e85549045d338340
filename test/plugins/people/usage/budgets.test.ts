import * as fs from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import type { Budgets } from '../../../../core/contracts/callers.ts'
import { type BudgetState, rateLimitHeaders } from '../../../../core/http/rate-limit-headers.ts'
import { budgetsFor, exhausted, localCounters, rateLimited } from '../../../../plugins/people/usage/budgets.ts'
import { taken, UsageRecords, type UsageRow } from '../../../../plugins/people/usage/usage-records.ts'

const named = (own: Budgets | undefined, general: Budgets, ofModel?: Budgets) =>
  budgetsFor({ owner: 'key:1', ...(own && { budgets: own }) }, 'a/b', general, ofModel ?? {}).map(
    ({ name, limit, model }) => `${model ?? 'all'} ${name} ${limit}`
  )

t.test('budgetsFor finds the budgets for a caller and a model', async t => {
  t.same(named(undefined, {}), [], 'none by default')
  t.same(named(undefined, { requests_per_minute: 0 }), [], '0 means none')
  t.same(named(undefined, { requests_per_minute: 5 }), ['all requests_per_minute 5'])
  t.same(named({ requests_per_minute: 9 }, { requests_per_minute: 5, tokens_per_day: 7 }), [
    'all requests_per_minute 9',
    'all tokens_per_day 7'
  ])
  t.same(named({ requests_per_minute: 0 }, { requests_per_minute: 5 }), [], "a key's own 0 removes the general one")
  t.same(
    named({ tokens_per_day: 9 }, {}, { tokens_per_day: 3, tokens_in_per_minute: 4 }),
    ['all tokens_per_day 9', 'a/b tokens_per_day 3', 'a/b tokens_in_per_minute 4'],
    "a model's budgets apply in addition"
  )
})

const state = (more: Partial<BudgetState>): BudgetState => ({
  name: 'requests_per_minute',
  kind: 'requests',
  window: 60,
  limit: 10,
  used: 0,
  reset: 30_000,
  ...more
})
const tokens = (more: Partial<BudgetState>) =>
  state({ name: 'tokens_per_day', kind: 'tokens', window: 86_400, limit: 100, reset: 7_261_000, ...more })

t.test('exhausted picks the budget that refuses a request', async t => {
  t.equal(exhausted([state({ used: 10 })], true), undefined, 'its own request is already counted')
  t.match(exhausted([state({ used: 11 })], true), { name: 'requests_per_minute' })
  t.equal(exhausted([tokens({ used: 99 })], true), undefined)
  t.match(exhausted([tokens({ used: 100 })], true), { name: 'tokens_per_day' })
  t.equal(exhausted([tokens({ used: 100 })], false), undefined, 'a request without tokens continues')
  t.match(exhausted([state({ used: 11 }), tokens({ used: 500 })], true), { name: 'tokens_per_day' }, 'the longest wait')
})

t.test('refusals name the budget and when it is refilled', async t => {
  const now = Date.parse('2030-01-01T21:58:59.000Z')
  const minute = rateLimited(state({ used: 11, reset: 29_100 }), 'alice', now)
  t.match(minute, { code: 'rate_limited', status: 429, retryAfter: 30, details: { limit: 'requests_per_minute' } })
  t.match(
    minute.message,
    /^The API key "alice" may send 10 requests per minute, .*refilled in 30 s.*requests_per_minute/
  )
  const day = rateLimited(tokens({ used: 100, model: 'a/b' }), undefined, now)
  t.match(
    day.message,
    /^Callers without a key may together use 100 tokens with the model "a\/b" per day, .*at 2030-01-02T00:00:00Z/
  )
  t.equal(rateLimited(state({ used: 11, reset: 0 }), 'a', now).retryAfter, 1, 'no client retries immediately')
})

t.test('rate limit headers describe the budgets', async t => {
  const now = Date.parse('2030-01-01T00:00:00.400Z')
  const states = [
    state({ used: 4 }),
    tokens({ used: 130 }),
    tokens({
      name: 'tokens_in_per_minute',
      kind: 'tokens_in',
      window: 60,
      limit: 50,
      used: 20,
      model: 'a/b',
      reset: 5200
    })
  ]
  t.same(rateLimitHeaders(states, 'openai', now), {
    'ratelimit-policy':
      '"requests_per_minute";q=10;w=60, "tokens_per_day";q=100;w=86400;qu="tokens", "model_tokens_in_per_minute";q=50;w=60;qu="tokens"',
    ratelimit: '"requests_per_minute";r=6;t=30, "tokens_per_day";r=0;t=7261, "model_tokens_in_per_minute";r=30;t=6',
    'x-ratelimit-limit-requests': '10',
    'x-ratelimit-remaining-requests': '6',
    'x-ratelimit-reset-requests': '30s',
    'x-ratelimit-limit-tokens': '100',
    'x-ratelimit-remaining-tokens': '0',
    'x-ratelimit-reset-tokens': '2h1m1s'
  })
  const { ratelimit: _, 'ratelimit-policy': __, ...anthropic } = rateLimitHeaders(states, 'anthropic', now)
  t.same(anthropic, {
    'anthropic-ratelimit-requests-limit': '10',
    'anthropic-ratelimit-requests-remaining': '6',
    'anthropic-ratelimit-requests-reset': '2030-01-01T00:00:31Z',
    'anthropic-ratelimit-tokens-limit': '100',
    'anthropic-ratelimit-tokens-remaining': '0',
    'anthropic-ratelimit-tokens-reset': '2030-01-01T02:01:02Z',
    'anthropic-ratelimit-input-tokens-limit': '100',
    'anthropic-ratelimit-input-tokens-remaining': '0',
    'anthropic-ratelimit-input-tokens-reset': '2030-01-01T02:01:02Z',
    'anthropic-ratelimit-output-tokens-limit': '100',
    'anthropic-ratelimit-output-tokens-remaining': '0',
    'anthropic-ratelimit-output-tokens-reset': '2030-01-01T02:01:02Z'
  })
})

const ALICE = { owner: 'key:1', name: 'alice' }
const BOB = { owner: 'key:2', name: 'bob' }
const ONE = taken({ requests: 1 })
const SOME = taken({ tokens_in: 10, tokens_cached: 4, tokens_out: 3 })
const DAY = 86_400_000

function opened(t: Test, folder = newFolder(t), keepDays = 365) {
  const lines: string[] = []
  const say = (...given: unknown[]) => void lines.push(String(given.at(-1)))
  const records = new UsageRecords(folder, () => keepDays, { error: say, warn: say, info: say })
  t.teardown(() => records.close())
  return { records, folder, lines, file: (date = today()) => join(folder, `${date}.jsonl`) }
}

const newFolder = (t: Test) => join(t.testdir(), 'usage')

const today = () => new Date(Date.now()).toISOString().slice(0, 10)

async function rowsOf(records: UsageRecords, since = '2000-01-01'): Promise<string[]> {
  const rows: string[] = []
  await records.read(since, (date, row) =>
    rows.push(
      `${date} ${row.name} ${row.model} ${row.requests} ${row.tokens_in} ${row.tokens_cached} ${row.tokens_out}`
    )
  )
  return rows
}

/** Sets the clock for one test. The monotonic clock never goes back. */
function clock(t: Test, start: string) {
  const { now } = Date
  const monotonic = performance.now
  let time = Date.parse(start)
  let moment = 0
  Date.now = () => time
  performance.now = () => moment
  t.teardown(() => {
    Date.now = now
    performance.now = monotonic
  })
  return (to: number | string) => {
    const before = time
    time = typeof to === 'string' ? Date.parse(to) : time + to
    moment += Math.max(0, time - before)
  }
}

t.test('usage adds up and survives a restart', async t => {
  const { records, folder, file } = opened(t)
  for (let at = 0; at < 3; at++) records.add(ALICE, 'a/b', ONE)
  records.add(ALICE, 'a/b', SOME)
  records.add(ALICE, 'c/d', SOME)
  records.add(BOB, 'a/b', ONE)
  t.same(records.today('key:1'), taken({ requests: 3, tokens_in: 20, tokens_cached: 8, tokens_out: 6 }))
  t.match(records.today('key:1', 'c/d'), SOME)
  t.same(records.today('key:9'), taken(), 'nothing for an unknown account')
  await records.flush()
  records.add(ALICE, 'a/b', SOME)
  await records.flush()
  t.equal(fs.statSync(folder).mode & 0o777, 0o700)
  t.equal(fs.statSync(file()).mode & 0o777, 0o600)
  const again = opened(t, folder).records
  const expected = [`${today()} alice a/b 3 20 8 6`, `${today()} alice c/d 0 10 4 3`, `${today()} bob a/b 1 0 0 0`]
  t.same(await rowsOf(again), expected)
  t.same(await rowsOf(records), expected)
})

t.test('truncated and invalid lines are skipped, and later lines are read', async t => {
  const { records, folder, file, lines } = opened(t)
  records.add(ALICE, 'a/b', ONE)
  await records.flush()
  fs.appendFileSync(file(), '\n[{"owner":"key:1","name":"alice","model":"a/b","reque')
  const second = opened(t, folder)
  second.records.add(ALICE, 'a/b', ONE)
  await second.records.flush()
  fs.appendFileSync(file(), '\nnull\n{}\n7\n\u0000\u0000\n')
  const third = opened(t, folder)
  t.equal(third.records.today('key:1').requests, 2)
  t.match(third.lines[0], /truncated/)
  t.same(lines, [])
})

t.test('each day has a file, reduced to one row per account and model when the day is over', async t => {
  const go = clock(t, '2030-01-01T23:59:00Z')
  const { records, folder, file } = opened(t)
  for (let at = 0; at < 5; at++) {
    records.add(ALICE, 'a/b', ONE)
    await records.flush()
  }
  t.equal(fs.readFileSync(file('2030-01-01'), 'utf8').trim().split('\n').length, 5)
  records.add(BOB, 'a/b', ONE)
  go(120_000)
  t.same(records.today('key:1'), taken(), 'a new day starts at zero')
  records.add(ALICE, 'a/b', SOME)
  await records.flush()
  t.same(fs.readFileSync(file('2030-01-01'), 'utf8').trim().split('\n').length, 2)
  const expected = ['2030-01-01 alice a/b 5 0 0 0', '2030-01-01 bob a/b 1 0 0 0', '2030-01-02 alice a/b 0 10 4 3']
  t.same(await rowsOf(records), expected)
  t.same(await rowsOf(records, '2030-01-02'), expected.slice(2))

  go(-120_000)
  t.equal(records.today('key:1').requests, 5, 'after the clock goes back, the previous day is unchanged')
  records.add(ALICE, 'a/b', ONE)
  go(120_000)
  t.same(records.today('key:1'), SOME, 'and forward again')
  await records.flush()
  t.same(await rowsOf(opened(t, folder).records), ['2030-01-01 alice a/b 6 0 0 0', ...expected.slice(1)])
})

t.test('days are deleted after keep_days', async t => {
  const go = clock(t, '2030-01-01T12:00:00Z')
  const { records, folder } = opened(t, newFolder(t), 3)
  for (let day = 0; day < 6; day++) {
    records.add(ALICE, 'a/b', ONE)
    await records.flush()
    go(DAY)
  }
  records.add(ALICE, 'a/b', ONE)
  await records.flush()
  fs.writeFileSync(join(folder, 'notes.txt'), 'stays')
  await records.forget()
  t.same(fs.readdirSync(folder).sort(), ['2030-01-05.jsonl', '2030-01-06.jsonl', '2030-01-07.jsonl', 'notes.txt'])
})

t.test('a file that grows is rewritten with the sums alone', async t => {
  const { records, file } = opened(t)
  const model = `a/${'b'.repeat(90)}`
  const accounts = Array.from({ length: 400 }, (_, at) => ({ owner: `key:${at}`, name: `client-${at}` }))
  let largest = 0
  for (let round = 0; round < 200; round++) {
    for (const account of accounts) records.add(account, model, ONE)
    await records.flush()
    largest = Math.max(largest, fs.statSync(file()).size)
  }
  t.ok(largest < 5 * 1024 * 1024, `${largest} bytes at most`)
  t.equal(records.today('key:7').requests, 200)
  t.ok((await rowsOf(records)).every(row => / 200 0 0 0$/.test(row)))
})

t.test('usage that cannot be written is written later', async t => {
  const { records, folder, lines } = opened(t)
  // Not even root can create a folder in place of a file.
  fs.writeFileSync(folder, '')
  records.add(ALICE, 'a/b', ONE)
  await records.flush()
  records.add(ALICE, 'a/b', ONE)
  await records.flush()
  t.match(lines, [/cannot be written to .*usage/], 'logged once')
  t.equal(records.today('key:1').requests, 2)
  fs.rmSync(folder)
  await records.flush()
  t.match(lines.at(-1), /written again/)
  t.equal(opened(t, folder).records.today('key:1').requests, 2)
})

t.test('usage file may be deleted or replaced while the server runs', async t => {
  const { records, folder, file } = opened(t)
  const add = async () => {
    records.add(ALICE, 'a/b', ONE)
    await records.flush()
  }
  await add()
  fs.rmSync(folder, { recursive: true })
  await add()
  t.equal(opened(t, folder).records.today('key:1').requests, 1, 'later usage goes to a new file')
  fs.writeFileSync(`${file()}.new`, '[{"owner":"key:1","name":"alice","model":"a/b","requests":40}]\n')
  fs.renameSync(`${file()}.new`, file())
  await add()
  t.equal(opened(t, folder).records.today('key:1').requests, 41)
})

t.test('local counters count minutes and days', async t => {
  const go = clock(t, '2030-01-01T23:59:30Z')
  const { records } = opened(t)
  const counters = localCounters(records)
  const [minute, day] = budgetsFor(ALICE, 'a/b', { requests_per_minute: 5, tokens_per_day: 9 }, {}) as any
  t.same(counters.add(minute, 0), { used: 0, reset: 60_000 })
  t.match(counters.add(minute, 1), { used: 1 })
  go(10_000)
  t.match(counters.add(minute, 1), { used: 2, reset: 50_000 }, 'a minute starts with its first request')
  records.add(ALICE, 'a/b', SOME)
  t.same(counters.add(day, 13), { used: 13, reset: 20_000 }, 'daily counts come from the ledger')
  go(-3_600_000)
  t.same(counters.add(minute, 1), { used: 3, reset: 50_000 }, 'the clock was set back')
  go('2030-01-02T00:00:00Z')
  t.match(counters.add(day, 0), { used: 0, reset: DAY })
  t.same(counters.add(minute, 0), { used: 0, reset: 60_000 })
})

t.test('a minute that starts now never takes longer than a minute', async t => {
  const counters = localCounters(opened(t).records)
  const [minute] = budgetsFor(ALICE, 'a/b', { requests_per_minute: 5 }, {})
  const { now } = performance
  t.teardown(() => Object.assign(performance, { now }))
  for (let at = 0; at < 100; at++) {
    performance.now = () => at * 1234.567
    const { reset } = counters.add({ ...minute!, place: `${at}` }, 1)
    if (reset > 60_000) t.fail(`${reset} ms at ${at * 1234.567}`)
  }
})

t.test('rows may have unusual characters in model and key names', async t => {
  const { records, folder } = opened(t)
  const odd = { owner: 'key:"\n\\', name: '__proto__' } as UsageRow
  records.add(odd, 'constructor/__proto__', ONE)
  await records.flush()
  fs.mkdirSync(join(folder, '2030-13-45'), { recursive: true })
  t.equal(opened(t, folder).records.today(odd.owner, 'constructor/__proto__').requests, 1)
})
