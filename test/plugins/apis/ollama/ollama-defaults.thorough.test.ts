import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Ollama } from 'ollama'
import t from 'tap'
import { randomEncoder } from '../../../../scripts/random-models.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral } from '../../../support/corral.ts'

// Ollama's undocumented defaults that its clients rely on.

const corral = await startCorral(t)
const client = new Ollama({ host: `${corral.url}/ollama` })
const greedy = { temperature: 0 }
const models = t.testdir()
writeFileSync(join(models, 'encoder.gguf'), randomEncoder('embedding', 1))
await corral.json('/api/import', { model: 'random/encoder', path: join(models, 'encoder.gguf') })

t.test('texts to embed that are too long are truncated unless the request disables it', async t => {
  const long = 'The sky is blue. '.repeat(5000)
  const embed = (path: string, body: object) => corral.json(path, { model: 'random/encoder', ...body })
  const cut = await embed('/ollama/api/embed', { input: [long, 'short'] })
  t.equal(cut.status, 200)
  t.equal(cut.body.embeddings.length, 2)
  t.equal((await embed('/ollama/api/embeddings', { prompt: long })).status, 200)
  const same = await client.embed({ model: 'random/encoder', input: [long, 'short'] })
  t.strictSame(same.embeddings, cut.body.embeddings)
  const refusal = { status: 400, body: { code: 'context_exceeded' } }
  t.match(await embed('/ollama/api/embed', { input: long, truncate: false }), refusal)
  t.match(await embed('/api/embed', { input: long }), refusal, 'the native API refuses the text')
  t.match(await embed('/v1/embeddings', { input: long }), { status: 400 })
  t.equal((await embed('/api/embed', { input: long, truncate: true })).status, 200)
})

t.test('num_ctx limits the length of texts to embed', async t => {
  const text = 'The sky is blue and the sea is green and the sun is yellow.'
  const embed = async (fields: object) => await corral.json('/ollama/api/embed', { model: 'random/encoder', ...fields })
  const whole = await embed({ input: text })
  const bounded = await embed({ input: text, options: { num_ctx: 5 } })
  t.equal(bounded.status, 200)
  t.equal(bounded.body.prompt_eval_count, 5)
  t.not(whole.body.prompt_eval_count, 5)
  t.match(await embed({ input: text, truncate: false, options: { num_ctx: 5 } }), {
    status: 400,
    body: { code: 'context_exceeded', n_prompt_tokens: whole.body.prompt_eval_count, n_ctx: 5 }
  })
  t.match(await embed({ input: text, options: { num_ctx: 2 } }), {
    status: 400,
    body: { code: 'context_exceeded', n_ctx: 2, error: /^input after truncation exceeds maximum context length\. / }
  })
  const fits = await embed({ input: text, truncate: false, options: { num_ctx: whole.body.prompt_eval_count } })
  t.strictSame(fits.body.embeddings, whole.body.embeddings)
})

t.test('conversations that are too long lose their oldest messages unless the request disables it', async t => {
  const turns = Array.from({ length: 60 }, (_, index) => [
    { role: 'user', content: `Tell me a story about fox number ${index}, and about the bear that it met.` },
    { role: 'assistant', content: 'Once upon a time there was a fox who met a bear in the forest by the river.' }
  ]).flat()
  const body = {
    model: DEMO,
    messages: [...turns, CAPITAL_QUESTION],
    stream: false,
    options: { ...greedy, num_ctx: 512 }
  }
  const cut = await corral.send('/ollama/api/chat', body)
  t.equal(cut.status, 200)
  t.match(cut.headers.get('x-corral-dropped-messages'), /^[1-9]/)
  t.equal(((await cut.json()) as any).message.content, CAPITAL_ANSWER)
  const refusal = { status: 400, body: { code: 'context_exceeded' } }
  t.match(await corral.json('/ollama/api/chat', { ...body, truncate: false }), refusal)
  t.match(await corral.json('/api/chat', body), refusal, 'the native API refuses the conversation')
})

t.test('generate returns a context that continues the conversation', async t => {
  const first = await client.generate({ model: DEMO, prompt: CAPITAL_QUESTION.content, options: greedy })
  t.equal(first.response, CAPITAL_ANSWER)
  t.ok(first.context.length > 2 && first.context.every(number => Number.isInteger(number) && number >= 0))
  const streamed = await client.generate({
    model: DEMO,
    prompt: 'And of Italy?',
    context: first.context,
    stream: true,
    options: greedy
  })
  let answer = ''
  let context: number[] = []
  for await (const part of streamed) {
    answer += part.response
    if (part.done) ({ context } = part)
  }
  const chat = await client.chat({
    model: DEMO,
    messages: [
      CAPITAL_QUESTION,
      { role: 'assistant', content: CAPITAL_ANSWER },
      { role: 'user', content: 'And of Italy?' }
    ],
    options: greedy
  })
  t.equal(answer, chat.message.content, 'the same answer as in a chat')
  t.ok(context.length > first.context.length)

  const generate = (fields: object, path = '/ollama/api/generate') =>
    corral.json(path, { model: DEMO, prompt: CAPITAL_QUESTION.content, stream: false, options: greedy, ...fields })
  t.notOk('context' in (await generate({ raw: true })).body, 'raw requests have no context')
  t.notOk('context' in (await generate({}, '/api/generate')).body, 'the native API returns no context')
  const foreign = await generate({ context: [1, 2, 3] })
  t.equal(foreign.body.response, CAPITAL_ANSWER, "another server's context is ignored")
  const changed = first.context.map((number, index) => (index > 1 ? number ^ 0xffff : number))
  for (const context of [changed, first.context.slice(0, 4), [...first.context.slice(0, 2), -1e300, 2.5]]) {
    t.match(await generate({ context }), { status: 400, body: { code: 'invalid_request', error: /"context"/ } })
  }
})

t.test('all 64-bit seeds repeat an answer, and repeat_last_n accepts -1', async t => {
  const ask = async (path: string, fields: object, more: object = {}) => {
    const messages = [{ role: 'user', content: 'Tell me a story.' }]
    const { status, body } = await corral.json(path, { model: DEMO, messages, stream: false, ...more, ...fields })
    t.equal(status, 200, JSON.stringify(body.error))
    return body.message?.content ?? body.choices[0].message.content
  }
  for (const seed of ['9223372036854775807', '-7', '-9223372036854775808', '4294967295', '18446744073709551615']) {
    const raw = `{"model":"${DEMO}","messages":[{"role":"user","content":"Tell me a story."}],"stream":false`
    for (const [path, body] of [
      ['/ollama/api/chat', `${raw},"options":{"seed":${seed}}}`],
      ['/v1/chat/completions', `${raw},"seed":${seed}}`]
    ] as const) {
      const texts = []
      for (let time = 0; time < 2; time++) {
        const reply = await corral.json(path, body)
        t.equal(reply.status, 200, `${path} with ${seed}`)
        texts.push(reply.body.message?.content ?? reply.body.choices[0].message.content)
      }
      t.equal(texts[0], texts[1], `${seed} repeats`)
    }
  }
  const options = { seed: -7, repeat_last_n: -1, repeat_penalty: 1.1, num_predict: 20 }
  await ask('/ollama/api/chat', { options })
  await client.create({ model: 'leo', from: DEMO, parameters: options })
  t.equal(
    await ask('/ollama/api/chat', { model: 'leo' }),
    await ask('/ollama/api/chat', { model: 'leo' }),
    'seeds of created models are repeatable too'
  )
  for (const seed of [1.5, 2 ** 65, '7', true]) {
    t.match(await corral.json('/api/chat', { model: DEMO, messages: [CAPITAL_QUESTION], options: { seed } }), {
      status: 400,
      body: { code: 'invalid_option' }
    })
  }
})

t.test('logprobs without top_logprobs list no alternatives', async t => {
  const ask = async (fields: object) => {
    const { body } = await corral.json('/ollama/api/chat', {
      model: DEMO,
      messages: [CAPITAL_QUESTION],
      stream: false,
      options: greedy,
      ...fields
    })
    return body.logprobs
  }
  const alone = await ask({ logprobs: true })
  t.ok(alone.length > 3)
  for (const token of alone) t.notOk('top_logprobs' in token)
  for (const token of await ask({ logprobs: true, top_logprobs: 2 })) t.equal(token.top_logprobs.length, 2)
  t.equal(await ask({}), undefined)
})

t.test('streams are JSON lines regardless of the Accept header', async t => {
  const accept = { headers: { accept: 'text/event-stream' } }
  const body = { model: DEMO, messages: [CAPITAL_QUESTION], options: greedy }
  const lines = await corral.send('/ollama/api/chat', body, accept)
  t.match(lines.headers.get('content-type'), 'application/x-ndjson')
  await lines.text()
  const events = await corral.send('/api/chat', body, accept)
  t.match(events.headers.get('content-type'), 'text/event-stream')
  await events.text()
})

t.test('load_duration is never 0', async t => {
  const chat = { model: DEMO, messages: [CAPITAL_QUESTION], stream: false, options: greedy }
  for (const [path, body] of [
    ['/ollama/api/chat', chat],
    ['/ollama/api/chat', chat],
    ['/ollama/api/generate', { ...chat, prompt: 'Hello' }],
    ['/ollama/api/embed', { model: 'random/encoder', input: 'blue' }]
  ] as const) {
    const { load_duration, total_duration } = (await corral.json(path, body)).body
    t.ok(load_duration > 0 && total_duration >= load_duration, `${path}: ${load_duration} of ${total_duration}`)
  }
})
