import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, type Corral, DEMO, endless, startCorral, until } from '../support/corral.ts'

/** Every rule may be empty, and repetitions are nested. They are small, so that a raised limit admits them. */
const GRAMMAR = 'root ::= a a a a a a a a\na ::= b{0,2}\nb ::= c{0,2}\nc ::= [a-z]? [0-9]?'
const SCHEMA = { type: 'string', pattern: '^(([a-z]?[0-9]?){0,5}){0,5}$' }
const CONFIG = 'limits: { stuck_after: 1s, grammar_repetition: 9000000000000000 }'

const chat = (more: object = {}) => ({
  model: DEMO,
  messages: [CAPITAL_QUESTION],
  stream: false,
  options: { temperature: 0 },
  ...more
})
const harmful = (grammar = GRAMMAR) => chat({ options: { grammar } })
const honest = async (corral: Corral) => (await corral.json('/api/chat', chat())).body.message?.content
const COLOUR = { type: 'object', properties: { colour: { enum: ['red', 'blue'] } }, required: ['colour'] }

t.test('a grammar that freezes the engine is stopped, and refused the second time', async t => {
  const corral = await startCorral(t, { config: CONFIG })
  t.equal(await honest(corral), CAPITAL_ANSWER)
  const [first] = corral.enginePids()
  const attack = corral.json('/api/chat', harmful())
  await until('it has reached the engine', async () => (await corral.json('/api/ps')).body.models[0]?.running !== 0)
  await sleep(100)
  const others = [honest(corral), corral.json('/api/chat', chat({ format: COLOUR }))] as const
  const { status, body } = await attack
  t.same([status, body.code, body.cause], [500, 'engine_crashed', 'stuck'])
  t.match(body.error, /stuck: for 1 s .*grammar of this request, which is not tried again/)
  t.equal(await others[0], CAPITAL_ANSWER, 'waiting clients are answered by the next engine')
  t.equal((await others[1]).status, 200, 'also with its own schema')
  t.notOk(corral.enginePids().includes(first!), 'the engine has ended')

  const [second] = corral.enginePids()
  t.equal((await corral.json('/api/chat', harmful())).body.cause, 'stuck')
  const refused = await corral.json('/api/chat', harmful())
  t.same([refused.status, refused.body.code], [400, 'input_blocked'])
  t.match(refused.body.error, /grammar of this request \(\w+\) has made the engine .* 2 times, and is refused until/)
  t.equal((await corral.json('/api/chat', harmful(GRAMMAR.replaceAll('\n', '\n\n  ')))).status, 400, 'other blanks')
  t.equal(await honest(corral), CAPITAL_ANSWER)
  t.equal((await corral.json('/api/chat', chat({ format: COLOUR }))).status, 200, 'other schemas are not refused')
  t.notOk(corral.enginePids().includes(second!))
  const { engines } = (await corral.json(`/api/logs/${DEMO}`, undefined, { local: true })).body
  const found = engines.map(({ failure }: any) => failure?.cause)
  t.same(found, [undefined, 'stuck', 'stuck'], 'it ended only engines that it was sent to')
})

t.test('honest requests are answered while several suspects are narrowed down', async t => {
  const corral = await startCorral(t, { config: CONFIG })
  const [attack, plain, format] = await Promise.all([
    corral.json('/api/chat', harmful()),
    honest(corral),
    corral.json('/api/chat', chat({ format: COLOUR }))
  ])
  t.match(attack, { status: 500, body: { cause: 'stuck' } })
  t.equal(plain, CAPITAL_ANSWER)
  t.equal(format.status, 200)
})

t.test('the engine stops when the client of a freezing request disconnects', async t => {
  const corral = await startCorral(t, { config: CONFIG })
  t.equal(await honest(corral), CAPITAL_ANSWER)
  const [pid] = corral.enginePids()
  const leaving = new AbortController()
  const abandoned = corral.send('/api/chat', harmful(), { signal: leaving.signal }).catch(() => 'abandoned')
  await until('it has reached the engine', async () => (await corral.json('/api/ps')).body.models[0]?.running !== 0)
  await sleep(200)
  leaving.abort()
  await abandoned
  await until('the engine is ended', () => !corral.enginePids().includes(pid!), 20_000)
  const ended = async () =>
    (await corral.json(`/api/logs/${DEMO}`, undefined, { local: true })).body.engines.at(-1).failure
  t.match(await until('its end is recorded', ended), { cause: 'stuck' })
  t.equal(await honest(corral), CAPITAL_ANSWER)
})

t.test('a harmful JSON schema runs alone and ends no other answer', async t => {
  const corral = await startCorral(t, { config: CONFIG })
  const running = corral.events('/api/chat', endless(DEMO, { max_tokens: 3000 }))
  const attacks = [
    ['/api/chat', chat({ format: SCHEMA })],
    [
      '/v1/chat/completions',
      { ...chat(), response_format: { type: 'json_schema', json_schema: { name: 'x', schema: SCHEMA } } }
    ]
  ] as const
  await until('an answer is running', async () => (await corral.json('/api/ps')).body.models[0]?.running > 0)
  const { status, body } = await corral.json(...attacks[0])
  t.same([status, body.cause], [500, 'stuck'])
  t.match(body.error, /JSON schema/)
  t.match((await running).at(-1), { done_reason: 'length', eval_count: 3000 })
  const hosted = await corral.json(...attacks[1])
  t.equal(hosted.status, 500)
  t.equal(hosted.body.error.code, 'engine_crashed')
  t.equal(await honest(corral), CAPITAL_ANSWER)
})

t.test('a long prompt and a long answer are not mistaken for a hang', async t => {
  const corral = await startCorral(t, { config: 'limits: { stuck_after: 300ms }' })
  const content = 'one two three four five six seven eight nine ten '.repeat(300)
  const long = { ...chat({ options: { num_ctx: 16384, max_tokens: 50 } }), messages: [{ role: 'user', content }] }
  t.equal((await corral.json('/api/chat', long)).status, 200)
  t.equal((await corral.json('/v1/completions', { model: DEMO, prompt: content, max_tokens: 3 })).status, 200)
  const { engines } = (await corral.json(`/api/logs/${DEMO}`, undefined, { local: true })).body
  t.equal(engines[0].failure, undefined)
})
