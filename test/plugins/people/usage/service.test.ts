import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import t from 'tap'
import { corral as command } from '../../../command-line/command.ts'
import { beginReading, type Corral, DEMO, endlessHosted, startCorral, until } from '../../../support/corral.ts'
import { failure } from '../../../support/failure.ts'
import { readCases } from '../../../support/fixture.ts'
import { thorough } from '../../../support/thorough.ts'
import { bearer } from '../support.ts'
import { ADMIN, config, newKey, usageOf } from './clients.ts'

const DEFAULTS = 'defaults: { temperature: 0, num_ctx: 2048 }'
/** The engine's slots. */
const SLOTS = 4
const question = { role: 'user' as const, content: 'What is the capital of France?' }

/** Most tests share this server. Each has a key of its own. */
const corral = await startCorral(t, { config: config('', DEFAULTS) })

/** Usage of one key so far. Answers to disconnected clients are counted a moment later. */
const rowOf = async (corral: Corral, name: string) =>
  (await usageOf(corral)).usage.find((row: { name: string }) => row.name === name) ?? { tokens_in: 0, tokens_out: 0 }

/** Waits until an engine works for a request. Before that a client has used nothing, even if it has received events. */
const untilAnswering = (server: Corral) =>
  until('an engine works', async () => {
    const { body } = await server.json('/api/ps', undefined, bearer(ADMIN))
    return body.models.some((model: any) => model.running > 0)
  })

t.test('usage has the token counts of the engine, on every API', async t => {
  const key = await newKey(corral, 'alice')
  const ask = async (path: string, body: object) => (await corral.json(path, body, bearer(key))).body
  let before = await rowOf(corral, 'alice')
  const took = async () => {
    const now = await rowOf(corral, 'alice')
    const [tokensIn, tokensOut] = [now.tokens_in - before.tokens_in, now.tokens_out - before.tokens_out]
    before = now
    return [tokensIn, tokensOut]
  }
  const hosted = { model: DEMO, messages: [question], max_tokens: 20 }

  const whole = await ask('/v1/chat/completions', hosted)
  const { prompt_tokens, completion_tokens } = whole.usage
  const expected = [prompt_tokens, completion_tokens]
  t.same(await took(), expected, 'OpenAI chat')
  await corral.events('/v1/chat/completions', { ...hosted, stream: true }, bearer(key))
  t.same(await took(), expected, 'the same as a stream')
  const counted = { ...hosted, stream: true, stream_options: { include_usage: true } }
  await corral.events('/v1/chat/completions', counted, bearer(key))
  t.same(await took(), expected, 'a stream that ends with its usage')
  const prompts = { model: DEMO, prompt: ['one two three', 'four', 'five six'], max_tokens: 4, n: 2 }
  const texts = Array(70).fill('some words to embed')
  for (const [what, path, body, tokensIn, tokensOut] of [
    ['native', '/api/chat', { ...hosted, stream: false }, 'prompt_eval_count', 'eval_count'],
    ['three choices', '/v1/chat/completions', { ...hosted, n: 3, temperature: 1, seed: 1 }],
    ['a list of prompts, two choices each', '/v1/completions', prompts],
    ['embeddings in several parts', '/v1/embeddings', { model: DEMO, input: texts }]
  ] as const) {
    const { usage, ...reply } = await ask(path, body)
    const counts = tokensIn ? [reply[tokensIn], reply[tokensOut!]] : [usage.prompt_tokens, usage.completion_tokens ?? 0]
    t.same(await took(), counts, what)
  }
  const { usage } = await ask('/v1/messages', hosted)
  const { input_tokens, output_tokens, cache_read_input_tokens = 0 } = usage
  t.same(await took(), [input_tokens + cache_read_input_tokens, output_tokens], 'Anthropic')
  await ask('/v1/messages/count_tokens', { model: DEMO, messages: [question] })
  await ask('/v1/tokenize', { model: DEMO, content: 'one two' })
  t.same(await took(), [0, 0], 'counting tokens is free')
  t.match(await rowOf(corral, 'alice'), { requests: 10 })
})

t.test('clients that disconnect early are charged for the prompt', async t => {
  const key = await newKey(corral, 'bob')
  const count = async () => (await rowOf(corral, 'bob')).tokens_in
  const long = { ...endlessHosted(DEMO), messages: [{ role: 'user', content: 'Count to 30. '.repeat(40) }] }
  const ways: [string, string, object][] = [
    ['OpenAI chat', '/v1/chat/completions', long],
    [
      'OpenAI completions',
      '/v1/completions',
      { model: DEMO, prompt: 'Count. '.repeat(60), max_tokens: 1000, ignore_eos: true, stream: true }
    ],
    ['native', '/api/chat', { ...long, stream: true }],
    ['Anthropic', '/v1/messages', { ...long, max_tokens: 1000, stream: true }],
    ['not a stream', '/v1/chat/completions', { ...long, stream: false }]
  ]
  for (const [name, path, body] of ways) {
    const before = await count()
    const leave = new AbortController()
    const asking = corral.send(path, body, { ...bearer(key), signal: leave.signal })
    if ('stream' in body && body.stream === true) await beginReading(await asking)
    else await untilAnswering(corral)
    leave.abort()
    await asking.then(reply => reply.text()).catch(() => {})
    await until(`${name} is counted`, async () => (await count()) > before)
    t.ok((await count()) - before > 100, `${name}: ${(await count()) - before} tokens`)
  }
  const before = await count()
  const leaveList = new AbortController()
  const list = { model: DEMO, prompt: ['Hello', 'Count. '.repeat(600)], max_tokens: 1, stream: true }
  const listed = await corral.send('/v1/completions', list, { ...bearer(key), signal: leaveList.signal })
  for await (const piece of listed.body!) if (`${Buffer.from(piece)}`.includes('"finish_reason":"length"')) break
  leaveList.abort()
  await until('the second of two prompts is counted', async () => (await count()) - before > 600)
  t.pass('the unfinished prompt of a list is counted')
})

t.test('interrupted embeddings are counted', thorough, async t => {
  const key = await newKey(corral, 'carol')
  const count = async () => (await rowOf(corral, 'carol')).tokens_in
  const before = await count()
  const leave = new AbortController()
  const input = Array(2000).fill('quite a long text that takes the engine a while to read, again and again')
  const asking = corral.send('/v1/embeddings', { model: DEMO, input }, { ...bearer(key), signal: leave.signal })
  await untilAnswering(corral)
  leave.abort()
  await asking.catch(() => {})
  await until('embeddings are counted', async () => (await count()) > before)
  t.pass('interrupted embeddings are counted')
})

t.test('usage survives a restart and a kill', async t => {
  const text = config('', DEFAULTS)
  const first = await startCorral(t, { config: text })
  const { home } = first
  const key = await newKey(first, 'alice', { requests_per_day: 6, tokens_in_per_day: 1_000_000 })
  const ask = (corral: Corral) =>
    corral.json('/v1/chat/completions', { model: DEMO, messages: [question], max_tokens: 5 }, bearer(key))
  for (let at = 0; at < 3; at++) t.equal((await ask(first)).status, 200)
  const before = await rowOf(first, 'alice')
  t.equal(before.requests, 3)
  const onDisk = () =>
    readdirSync(join(home, 'usage')).flatMap(file =>
      readFileSync(join(home, 'usage', file), 'utf8')
        .split('\n')
        .flatMap(line => (line === '' ? [] : (JSON.parse(line) as { tokens_out?: number }[])))
    )
  const written = () => onDisk().reduce((sum, { tokens_out = 0 }) => sum + tokens_out, 0)
  await until('everything is written', () => written() === before.tokens_out)
  await first.end('SIGKILL')

  const second = await startCorral(t, { config: text, home })
  t.same(await rowOf(second, 'alice'), before, 'exact after kill -9')
  for (let at = 0; at < 2; at++) t.equal((await ask(second)).status, 200)
  await second.end()

  const third = await startCorral(t, { config: text, home })
  t.match(await rowOf(third, 'alice'), { requests: 5 })
  t.equal((await ask(third)).status, 200)
  t.match(await ask(third), {
    status: 429,
    body: {
      error: { type: 'rate_limit_error', message: /"alice" may send 6 requests per day, .* refilled at .*T00:00:00Z/ }
    }
  })
  const rotated = await third.json('/api/keys/alice/rotate', {}, bearer(ADMIN))
  t.equal(
    (await third.json('/v1/chat/completions', { model: DEMO, messages: [question] }, bearer(rotated.body.key))).status,
    429,
    'a new key with the same name is the same client'
  )
})

t.test('usage stays correct when the engine or the server is killed during answers', thorough, async t => {
  const text = config('', DEFAULTS)
  const first = await startCorral(t, { config: text })
  const { home } = first
  const key = await newKey(first, 'alice')
  const ask = { model: DEMO, messages: [question], max_tokens: 300, ignore_eos: true }
  const asking = first.json('/v1/chat/completions', ask, bearer(key))
  await untilAnswering(first)
  process.kill(first.enginePids()[0]!, 'SIGKILL')
  const { status, body } = await asking
  t.equal(status, 200, 'the request is retried')
  t.match(await rowOf(first, 'alice'), {
    requests: 1,
    tokens_in: body.usage.prompt_tokens,
    tokens_out: body.usage.completion_tokens
  })

  let answered = 0
  const many = Array.from({ length: 40 }, async () => {
    // Kill the server while some requests are waiting.
    const reply = await first
      .json('/v1/chat/completions', { ...ask, max_tokens: 5 }, bearer(key))
      .catch(() => undefined)
    if (reply?.status === 200) answered++
  })
  await until('some are answered', () => answered >= 10)
  await first.end('SIGKILL')
  await Promise.all(many)
  const second = await startCorral(t, { config: text, home })
  const { requests, tokens_out } = await rowOf(second, 'alice')
  t.ok(requests >= 1 && requests <= 41, `${requests} requests`)
  t.equal((tokens_out - body.usage.completion_tokens) % 5, 0, 'complete answers')
  t.ok(tokens_out - body.usage.completion_tokens <= 5 * (answered + SLOTS), `${tokens_out} tokens`)
})

t.test('limits can be changed while the server runs', async t => {
  const key = await newKey(corral, 'dave')
  const ask = async () =>
    (await corral.json('/api/chat', { model: DEMO, messages: [question], stream: false }, bearer(key))).status
  for (let at = 0; at < 2; at++) t.equal(await ask(), 200)
  await corral.reload(config('requests_per_day: 3', DEFAULTS))
  t.same([await ask(), await ask()], [200, 429], 'earlier usage counts')
  await corral.reload(config('', DEFAULTS))
  t.equal(await ask(), 200)
})

t.test('rate limit headers are those that the official clients read', async t => {
  await corral.reload(config('', `${DEFAULTS}\nmodels: { ${DEMO}: { limits: { tokens_out_per_day: 12 } } }`))
  const key = await newKey(corral, 'erin', { requests_per_minute: 5, tokens_in_per_day: 100_000 })
  const ask = { model: DEMO, messages: [question], max_tokens: 5 }
  const openai = new OpenAI({ baseURL: `${corral.url}/v1`, apiKey: key, maxRetries: 0 })
  const anthropic = new Anthropic({ baseURL: corral.url, apiKey: key, maxRetries: 0 })

  const whole = await openai.chat.completions.create(ask).withResponse()
  t.equal(whole.response.headers.get('x-ratelimit-limit-requests'), '5')
  t.equal(whole.response.headers.get('x-ratelimit-remaining-requests'), '4')
  t.match(whole.response.headers.get('x-ratelimit-reset-requests'), /^(1m0s|\d+s)$/)
  t.equal(whole.response.headers.get('x-ratelimit-limit-tokens'), '12', 'the one with the least left')
  t.match(whole.response.headers.get('ratelimit-policy'), /"model_tokens_out_per_day";q=12;w=86400;qu="tokens"/)
  const streamed = await openai.chat.completions.create({ ...ask, stream: true }).withResponse()
  t.equal(streamed.response.headers.get('x-ratelimit-remaining-requests'), '3', 'also on streams')
  t.equal(streamed.response.headers.get('ratelimit')?.includes('"requests_per_minute";r=3;t='), true)
  for await (const _ of streamed.data);
  const message = await anthropic.messages.create(ask).withResponse()
  t.equal(message.response.headers.get('anthropic-ratelimit-requests-remaining'), '2')
  t.equal(message.response.headers.get('anthropic-ratelimit-output-tokens-remaining'), '2', 'ten were generated')
  t.match(message.response.headers.get('anthropic-ratelimit-requests-reset'), /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/)
  t.equal(message.response.headers.get('x-ratelimit-limit-requests'), null)

  const refused = (await failure(openai.chat.completions.create(ask))) as InstanceType<typeof OpenAI.RateLimitError>
  t.ok(refused instanceof OpenAI.RateLimitError)
  t.ok(Number(refused.headers.get('retry-after')) > 0)
  t.equal(refused.headers.get('x-ratelimit-remaining-tokens'), '0')
  t.match(refused.message, /may use 12 output tokens with the model "corral\/tiny-chat" per day.*T00:00:00Z/)
  const other = (await failure(anthropic.messages.create(ask))) as InstanceType<typeof Anthropic.RateLimitError>
  t.ok(other instanceof Anthropic.RateLimitError)
  t.equal(other.headers.get('anthropic-ratelimit-output-tokens-remaining'), '0')
  t.equal(other.headers.get('anthropic-ratelimit-requests-remaining'), '2', 'refused requests are not charged')
  t.match(await rowOf(corral, 'erin'), { requests: 3, tokens_out: 15 })
  const tokens = await openai.post('/tokenize', { body: { model: DEMO, content: 'x' } })
  t.ok(tokens, 'requests without tokens continue')
})

t.test('usage is shown by role, also on the command line', async t => {
  const corral = await startCorral(t, { config: DEFAULTS })
  const ask = { model: DEMO, messages: [question], stream: false, options: { max_tokens: 3 } }
  t.equal((await corral.json('/api/chat', ask)).status, 200)
  const key = async (name: string, role: string) =>
    (await corral.json('/api/keys', { name, role }, { local: true })).body.key as string
  const [alice, bob, carol] = [await key('alice', 'user'), await key('bob', 'user'), await key('carol', 'operator')]
  for (const each of [alice, bob, bob]) t.equal((await corral.json('/api/chat', ask, bearer(each!))).status, 200)
  const namesOf = async (each: string, query = '') =>
    (await usageOf(corral, query, each)).usage.map(({ name, requests }: any) => `${name}: ${requests}`)
  t.same(await namesOf(alice), ['alice: 1'], 'a user sees its own')
  t.same(await namesOf(alice, '?by=model'), [`${DEMO}: 1`])
  t.same(await namesOf(bob, '?since=1d'), ['bob: 2'])
  t.same(await namesOf(carol), ['(no key): 1', 'alice: 1', 'bob: 2'], 'an operator sees all')
  const today = new Date().toISOString().slice(0, 10)
  t.same(await namesOf(carol, `?by=day&since=${today}`), [`${today}: 4`])
  for (const query of readCases<string[]>('people-cases.yaml', 'wrongUsageQueries')) {
    t.match(await corral.json(`/api/usage?${query}`, undefined, bearer(carol)), { status: 400 }, query)
  }
  t.equal((await corral.json('/api/usage')).status, 401)

  const { stdout, code } = await command(['usage', '--by', 'key', '--since', '7d'], { home: corral.home })
  t.equal(code, 0)
  t.match(stdout, /^KEY +REQUESTS +IN +CACHED +OUT\n\(no key\) +1 +\d+ +\d+ +3\nalice +1 .*\nbob +2 .*\ntotal +4 /)
  const asJson = await command(['usage', '--by', 'model', '--json'], { home: corral.home })
  t.match(JSON.parse(asJson.stdout), { by: 'model', usage: [{ name: DEMO, requests: 4 }], total: { tokens_out: 12 } })
  t.equal((await command(['usage', '--by', 'colour'], { home: corral.home })).code, 2)
})
