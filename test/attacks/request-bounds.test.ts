import t from 'tap'
import { DEMO, startCorral } from '../support/corral.ts'
import { readCases, readFixture } from '../support/fixture.ts'
import { thorough } from '../support/thorough.ts'

const CONFIG = `limits: { max_tokens: 12, n: 2, prompts: 3, num_parallel: 4, keep_alive: 10m }
defaults: { max_tokens: -1, num_ctx: 512, num_parallel: 2 }
models: { "${DEMO}": { limits: { max_tokens: 8 } } }`

const messages = [{ role: 'user', content: 'Count to 30.' }]
const model = DEMO

/** Requests above a limit: path, fields, the limit, and the field at fault. */
const OVER: [string, object, string, string][] = readCases('attack-cases.yaml', 'overLimit')
OVER.push(['/api/embed', { input: Array(20_000).fill('a') }, 'prompts', 'input'])

/** Requests whose answers end at the limit, as do those of the fixture. */
const ENDLESS: [string, object][] = readFixture<any>('attack-cases.yaml').endlessRequests
const TOO_MANY: [string, object][] = readCases('attack-cases.yaml', 'tooManyTokens')

/** The number of tokens and the reason of an answer that ends at its limit, on any API. */
const COUNT = /"(eval_count|completion_tokens|output_tokens)":8\b/
const REASON = /"(done_reason|finish_reason)":"length"|"stop_reason":"max_tokens"|"reason":"max_output_tokens"/

/** Everyday tests share this server. */
const corral = await startCorral(t, { config: CONFIG })

t.test('the limits of requests apply on every API', async t => {
  for (const [path, fields, bound, param] of OVER) {
    const { status, body } = await corral.json(path, { model, ...fields })
    const text = JSON.stringify(body)
    t.equal(status, 400, `${path} ${JSON.stringify(fields).slice(0, 80)}: ${text.slice(0, 200)}`)
    t.match(text, `limits.${bound}`, path)
    t.match(text, `\\"${param}`, path)
  }
  t.same(corral.enginePids(), [], 'no engine was started for any of them')

  for (const [path, fields] of [...ENDLESS, ...TOO_MANY]) {
    const options = { ...(fields as { options?: object }).options, ignore_eos: true }
    for (const stream of [false, true]) {
      const stream_options = stream ? { include_usage: true } : undefined
      const reply = await corral.send(path, { model, ...fields, options, stream, stream_options })
      const text = await reply.text()
      const name = `${path} ${JSON.stringify(fields).slice(-60)}, stream: ${stream}`
      t.equal(reply.status, 200, `${name}: ${text}`)
      t.equal(reply.headers.get('x-corral-max-tokens'), TOO_MANY.some(([, more]) => more === fields) ? '8' : null, name)
      t.match(text, COUNT, name)
      t.match(text, REASON, name)
    }
  }
})

t.test('fields that would affect other requests or take memory are dropped', async t => {
  await corral.reload('defaults: { num_ctx: 512, num_parallel: 2, max_tokens: 8 }')
  const hostile = {
    ...{ id_slot: 1, slot_id: 1, n_cmpl: 2, lora: [{ id: 0, scale: 5 }], grammar_lazy: true },
    ...{ grammar_triggers: [{ type: 2, value: '(a*)*b' }], preserved_tokens: ['a'], chat_format: 7 },
    ...{ response_fields: ['content'], sse_ping_interval: 0, n_cache_reuse: 1 }
  }
  const asked: [string, object][] = [
    ['/api/chat', { messages, stream: false, options: hostile }],
    ['/api/generate', { prompt: 'a', raw: true, stream: false, options: hostile }],
    ['/v1/chat/completions', { messages, ...hostile }],
    ['/v1/chat/completions', { messages, options: hostile }],
    ['/v1/completions', { prompt: 'a', ...hostile }],
    ['/v1/responses', { input: 'a', ...hostile }],
    ['/v1/responses', { input: 'a', options: hostile }],
    ['/v1/messages', { messages, max_tokens: 8, options: hostile }]
  ]
  for (const [path, fields] of asked) {
    const { status, body } = await corral.json(path, { model, ...fields })
    t.equal(status, 200, `${path}: ${JSON.stringify(body).slice(0, 200)}`)
  }
  t.ok(await answersInEverySlot(), 'a request cannot choose the slot of another request')

  const lookingBack = { repeat_last_n: 2 ** 31 - 1, dry_penalty_last_n: 2 ** 31 - 1, dry_multiplier: 1 }
  const [pid] = corral.enginePids()
  const { status, body } = await corral.json('/api/chat', { model, messages, stream: false, options: lookingBack })
  t.equal(status, 200, JSON.stringify(body))
  t.same(corral.enginePids(), [pid], 'the engine still runs')

  const lists: object[] = [
    { stop: Array.from({ length: 300 }, (_, index) => `s${index}`) },
    { samplers: Array(100).fill('top_k') },
    { samplers: 'k'.repeat(100) },
    { dry_sequence_breakers: Array(300).fill('a') },
    { logit_bias: Object.fromEntries(Array.from({ length: 20_000 }, (_, index) => [index, 1])) },
    { n_probs: 100_000 }
  ]
  for (const options of lists) {
    const { status, body } = await corral.json('/api/chat', { model, messages, options })
    t.equal(status, 400, JSON.stringify(body))
    t.equal(body.code ?? body.error?.code, 'over_limit')
  }
})

t.test('an answer that repeats itself is ended, unless the limit is 0', thorough, async t => {
  const config = 'defaults: { num_ctx: 12288, num_parallel: 1, max_tokens: -1 }'
  await corral.reload(config)
  const grammar = 'root ::= "one two three four five six seven eight nine ten " root'
  const own = { model, messages, options: { grammar } }
  const stream = { ...own, stream: true, stream_options: { include_usage: true } }
  const text = await (await corral.send('/v1/chat/completions', stream)).text()
  t.match(text, /^: x-corral-stopped: repeats$/m)
  const events = text.split('\n\n').flatMap(event => (event.startsWith('data: {') ? JSON.parse(event.slice(6)) : []))
  const [last, usage] = events.slice(-2)
  t.match(last.choices, [{ finish_reason: 'length', delta: {} }])
  t.same(events.filter(({ choices }) => choices[0]?.delta.role).length, 1)
  t.match(text, /data: \[DONE\]\n\n$/)
  const { completion_tokens: tokens, prompt_tokens } = usage.usage
  t.ok(tokens > 2000 && tokens < 11_000, `${tokens} tokens`)

  const whole = await corral.send('/api/chat', { ...own, stream: false })
  t.equal(whole.headers.get('x-corral-stopped'), 'repeats')
  const { eval_count, prompt_eval_count, done_reason } = (await whole.json()) as any
  t.same([done_reason, prompt_eval_count], ['length', prompt_tokens])
  t.ok(eval_count > 2000 && eval_count < 11_000, `${eval_count} tokens`)
  t.match(corral.log(), /repeats the same passage/)

  await corral.reload(`${config}\nlimits: { repeats: 0, max_tokens: ${eval_count + 100} }`)
  t.equal((await corral.json('/api/chat', { ...own, stream: false })).body.eval_count, eval_count + 100)
})

/** Two requests that name the same slot are answered in parallel. */
async function answersInEverySlot(): Promise<boolean> {
  const options = { id_slot: 0, max_tokens: 400, ignore_eos: true, temperature: 0 }
  const answers = await Promise.all(
    [0, 1].map(() => corral.events('/api/chat', { model, messages, options, stream: true }))
  )
  return answers.every(events => events.at(-1).done)
}

t.test('no grammar or schema freezes a model', async t => {
  await corral.json('/api/stop', { model })
  await corral.reload('defaults: { num_ctx: 2048, num_parallel: 2, max_tokens: 30 }')
  for (const [path, fields] of readFixture<any>('attack-cases.yaml').endlessGrammars) {
    const { status, body } = await corral.json(path, { model, ...fields })
    t.equal(status, 400, `${path} ${Object.keys(fields)}: ${JSON.stringify(body).slice(0, 200)}`)
    t.match(JSON.stringify(body), 'limits.grammar_repetition', path)
  }
  t.same(corral.enginePids(), [], 'no engine was started for any of them')

  const honest: object[] = [
    { grammar: 'root ::= [a-z]{1,500}' },
    { grammar: 'root ::= ("- " [^\\n]+ "\\n")+' },
    { json_schema: { type: 'array', maxItems: 100, items: { type: 'string', maxLength: 500 } } },
    { json_schema: { type: 'string', pattern: '^[a-z]{3,9}-[0-9]{2}$' } }
  ]
  for (const options of honest) {
    const asked = { model, messages: [{ role: 'user', content: 'aaaaaaaaaaaaaaaa' }], stream: false, options }
    const { status, body } = await corral.json('/api/chat', asked)
    t.equal(status, 200, JSON.stringify(body))
    t.ok(body.message.content.length > 0)
  }
})

t.test('the configuration raises and lowers the grammar limit', thorough, async t => {
  const corral = await startCorral(t, {
    config: 'limits: { grammar_size: 100, grammar_repetition: 500 }\ndefaults: { max_tokens: 8 }'
  })
  const ask = (grammar: string) => corral.json('/api/chat', { model, messages, stream: false, options: { grammar } })
  t.equal((await ask('root ::= [a-z]* [a-z]*')).status, 200)
  t.match((await ask('root ::= [a-z]* [a-z]* [a-z]*')).body, { code: 'over_limit' })
  t.match((await ask(`root ::= "${'a'.repeat(100)}"`)).body, { code: 'over_limit', error: /limits\.grammar_size/ })
})
