import t from 'tap'
import type { Budgets } from '../../../../core/contracts/callers.ts'
import { type BudgetState, rateLimitHeaders } from '../../../../core/http/rate-limit-headers.ts'
import { budgetsFor, exhausted, rateLimited } from '../../../../plugins/people/usage/budgets.ts'

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
