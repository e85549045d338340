import { readFileSync } from 'node:fs'
import t from 'tap'
import { CAPITAL_QUESTION, DEMO, startCorral } from '../support/corral.ts'
import { clientFrom } from '../support/other-client.ts'

/* Load options as a weapon: endless reloads, options that slow others down, and sizes that take all memory. */

const messages = [CAPITAL_QUESTION]
const ask = (options: object) => ({ model: DEMO, messages, stream: false, options })

t.test('alternating options are refused after a while, and other clients are answered', async t => {
  const corral = await startCorral(t, {
    config: 'limits: { reloads: 3 }\ndefaults: { num_ctx: 512, num_parallel: 2, temperature: 0 }'
  })
  const greedy = clientFrom(t, corral, '127.0.0.2')
  const honest = clientFrom(t, corral, '127.0.0.3')
  t.equal((await honest.json('/api/chat', ask({}))).status, 200)
  let goesOn = true
  const refusals: any[] = []
  const attack = (async () => {
    for (let round = 0; goesOn && refusals.length < 5; round++) {
      const type = round % 2 === 0 ? 'q8_0' : 'f32'
      const reply = await greedy.json('/api/chat', ask({ cache_type_k: type }))
      if (reply.status !== 200) refusals.push(reply)
    }
  })()
  const answers: number[] = []
  while (refusals.length === 0 && answers.length < 200) answers.push((await honest.json('/api/chat', ask({}))).status)
  goesOn = false
  await attack
  t.ok(
    answers.every(status => status === 200),
    'others are answered all the time'
  )
  for (const { status, body, headers } of refusals) {
    t.match([status, body], [429, { code: 'rate_limited', error: /limits\.reloads allows each client 3 reloads/ }])
    t.ok(Number(headers.get('retry-after')) > 60, 'the error says when to try again')
  }
  t.equal((await greedy.json('/api/chat', ask({}))).status, 200, 'without the options it is answered')
  const loads = corral.log().match(/"loaded corral\/tiny-chat"/g)?.length ?? 0
  t.ok(loads <= 1 + 2 * 3, `${loads} loads: the first, three reloads, and back to the defaults`)
})

t.test('options that one client chooses do not affect others', async t => {
  const corral = await startCorral(t, { config: 'defaults: { num_ctx: 512, num_parallel: 2, temperature: 0 }' })
  const greedy = clientFrom(t, corral, '127.0.0.2')
  const honest = clientFrom(t, corral, '127.0.0.3')
  const long = {
    ...ask({}),
    messages: [{ role: 'user', content: `${'Well. '.repeat(60)}What is the capital of France?` }]
  }
  await greedy.json('/api/chat', ask({ num_ctx: 32, max_tokens: 2 }))
  t.equal((await honest.json('/api/chat', long)).status, 200, 'a context that is too small')
})

t.test('sizes are clamped to their limits, and the reply says so', async t => {
  const config = `defaults: { num_ctx: 512, num_parallel: 2, temperature: 0 }
limits: { num_ctx: 1024, num_parallel: 3 }
models: { "${DEMO}": { limits: { num_ctx: 768 } } }`
  const corral = await startCorral(t, { config })
  const monster = { num_ctx: 2_147_483_647, max_tokens: 4 }
  const calls: [string, object][] = [
    ['/api/chat', ask(monster)],
    ['/api/chat', { ...ask(monster), stream: true }],
    ['/api/generate', { model: DEMO, prompt: 'a', options: monster }],
    ['/api/load', { model: DEMO, options: { num_ctx: 100_000 } }],
    ['/v1/chat/completions', { model: DEMO, messages, stream: true, ...monster }],
    ['/v1/completions', { model: DEMO, prompt: 'a', ...monster }],
    ['/v1/embeddings', { model: DEMO, input: 'a', num_ctx: 5000 }],
    ['/ollama/api/chat', { model: DEMO, messages, options: monster }]
  ]
  for (const [path, body] of calls) {
    const response = await corral.send(path, body)
    t.equal(response.status, 200, path)
    t.equal(response.headers.get('x-corral-clamped'), 'num_ctx=768', path)
    await response.text()
  }
  const within = await corral.send('/api/chat', ask({ num_ctx: 768 }))
  t.equal(within.headers.get('x-corral-clamped'), null, 'nothing to say')
  t.equal(corral.log().match(/num_ctx was reduced to its limit/g)?.length, 1, 'one line for all requests of one client')
  await within.text()
  for (const { options } of (await corral.json('/api/ps')).body.models) t.equal(options.num_ctx, 768)
  t.match(await corral.json('/api/chat', ask({ num_parallel: 256 })), { status: 400, body: { code: 'over_limit' } })

  const parameters = { num_ctx: 2_147_483_647, num_parallel: 256 }
  const made = await corral.json('/ollama/api/create', { model: 'monster', from: DEMO, parameters, stream: false })
  t.equal(made.status, 200)
  t.equal((await corral.json('/ollama/api/chat', { ...ask({}), model: 'monster' })).status, 200)
  const entry = (await corral.json('/api/ps')).body.models.find(({ model }: any) => /monster/.test(model))
  t.match(entry.options, { num_ctx: 1024, num_parallel: 3 }, 'defaults of a model that was made')
})

t.test("the attack's sizes use no more memory than is reserved", async t => {
  const corral = await startCorral(t, { config: 'scheduler: { memory: 1GiB }' })
  const { status, body } = await corral.json('/api/chat', ask({ num_ctx: 2_147_483_647, num_parallel: 64 }))
  t.match([status, body], [503, { code: 'insufficient_memory' }])
  t.equal((await corral.json('/api/chat', ask({ max_tokens: 4 }))).status, 200)
  const resident = corral.enginePids().map(pid => {
    const pages = Number(readFileSync(`/proc/${pid}/statm`, 'utf8').split(' ')[1])
    return pages * 4096
  })
  t.ok(
    resident.every(bytes => bytes < 2 ** 30),
    `${resident} bytes`
  )
})
