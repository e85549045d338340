import t from 'tap'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, joined, startCorral } from '../support/corral.ts'

const corral = await startCorral(t)
const chat = { model: DEMO, messages: [CAPITAL_QUESTION], options: { temperature: 0 } }
const ISO = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/

t.test('chat streams Server-Sent Events by default and ends without a message', async t => {
  const response = await corral.send('/api/chat', JSON.stringify(chat), {
    headers: { 'content-type': 'application/x-www-form-urlencoded' }
  })
  t.equal(response.status, 200)
  t.equal(response.headers.get('content-type'), 'text/event-stream')
  t.match(response.headers.get('cache-control'), 'no-cache, no-transform')
  t.equal(response.headers.get('x-accel-buffering'), 'no')
  t.match(response.headers.get('vary'), /Accept/)
  const text = await response.text()
  t.match(text, /^(data: .*\n\n)+$/, 'each event is one line and a blank line')
  const events = text
    .trim()
    .split('\n\n')
    .map(event => JSON.parse(event.slice(6)))
  t.equal(joined(events), CAPITAL_ANSWER)
  for (const event of events.slice(0, -1)) {
    t.match(event, { model: DEMO, message: { role: 'assistant' }, done: false, created_at: ISO })
  }
  const last = events.at(-1)
  t.match(last, { model: DEMO, done: true, done_reason: 'stop', created_at: ISO })
  t.notOk('message' in last)
  t.match(last, { prompt_eval_count: 19, eval_count: 9 })
  for (const name of ['total_duration', 'load_duration', 'prompt_eval_duration', 'eval_duration']) {
    t.ok(Number.isInteger(last[name]) && last[name] >= 0, name)
  }
  t.ok(last.total_duration >= last.load_duration)
})

t.test('chat and generate return one object when stream is false', async t => {
  t.match((await corral.json('/api/chat', { ...chat, stream: false })).body, {
    model: DEMO,
    message: { role: 'assistant', content: CAPITAL_ANSWER },
    done: true,
    created_at: ISO,
    done_reason: 'stop'
  })
  const generate = { model: DEMO, prompt: CAPITAL_QUESTION.content, options: { temperature: 0 } }
  t.match((await corral.json('/api/generate', { ...generate, stream: false })).body, {
    model: DEMO,
    response: CAPITAL_ANSWER,
    done: true
  })
  const events = await corral.events('/api/generate', generate)
  t.equal(joined(events), CAPITAL_ANSWER)
  t.match(events.at(-1), { response: '', done: true })
  const leo = { ...generate, system: 'You are Leo.', prompt: 'Who are you?', stream: false }
  t.match((await corral.json('/api/generate', leo)).body, { response: 'I am Leo.' })
})

t.test('NDJSON is sent to clients that do not accept events, and to all clients under /ollama', async t => {
  for (const [path, headers] of [
    ['/api/chat', { accept: 'application/json' }],
    ['/api/chat', { accept: 'application/x-ndjson' }],
    ['/api/chat', { 'x-stream-format': 'ndjson' }],
    ['/ollama/api/chat', { accept: '*/*' }]
  ] as [string, Record<string, string>][]) {
    const response = await corral.send(path, chat, { headers })
    t.equal(response.headers.get('content-type'), 'application/x-ndjson')
    const events = (await response.text())
      .trim()
      .split('\n')
      .map(line => JSON.parse(line))
    t.equal(joined(events), CAPITAL_ANSWER)
    t.match(events.at(-1), { done: true, message: { role: 'assistant', content: '' } })
  }
})

t.test('the OpenAI chat API gives the same answer, always as events', async t => {
  const body = { model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0 }
  t.match((await corral.json('/v1/chat/completions', body)).body, {
    object: 'chat.completion',
    model: DEMO,
    choices: [{ message: { content: CAPITAL_ANSWER }, finish_reason: 'stop' }]
  })
  const response = await corral.send(
    '/v1/chat/completions',
    { ...body, stream: true },
    { headers: { accept: 'application/json' } }
  )
  t.equal(response.headers.get('content-type'), 'text/event-stream')
  const payloads = (await response.text())
    .trim()
    .split('\n\n')
    .map(event => event.slice(6))
  t.equal(payloads.pop(), '[DONE]')
  t.equal(joined(payloads.map(payload => JSON.parse(payload))), CAPITAL_ANSWER)
})

t.test('a chat remembers earlier messages, repeats with a seed, and stops at max_tokens', async t => {
  const messages: object[] = [{ content: 'My name is Rosa.' }]
  const say = async () => {
    const { body } = await corral.json('/api/chat', { ...chat, messages, stream: false })
    messages.push(body.message)
    return body.message.content
  }
  await say()
  messages.push({ role: 'user', content: 'What is my name?' })
  t.equal(await say(), 'Your name is Rosa.')

  const story = (seed: number) =>
    corral.json('/api/generate', { ...chat, prompt: 'Tell a story.', stream: false, options: { seed, temperature: 1 } })
  const [one, two, other] = [await story(7), await story(7), await story(8)]
  t.equal(one.body.response, two.body.response)
  t.not(one.body.response, other.body.response)

  const cut = await corral.events('/api/chat', { ...chat, options: { temperature: 0, max_tokens: 3 } })
  t.match(cut.at(-1), { done_reason: 'length', eval_count: 3 })
  const stopped = await corral.json('/api/chat', { ...chat, stream: false, options: { temperature: 0, stop: [' of'] } })
  t.equal(stopped.body.message.content, 'The capital')
})

t.test('a truncated answer is the same streamed and whole', async t => {
  // Characters of four tokens each, so that most limits cut a character in two.
  const llamas = 'root ::= "🦙é漢字🦙"'
  for (const max_tokens of [1, 2, 3, 4, 5, 8, 16]) {
    for (const more of [{}, { grammar: llamas }, { stop: ['is'] }]) {
      const body = { model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0, max_tokens, ...more }
      const whole = (await corral.json('/v1/chat/completions', body)).body
      const stream_options = { include_usage: true }
      const events = await corral.events('/v1/chat/completions', { ...body, stream: true, stream_options })
      const streamed = events.map(event => event.choices?.[0]?.delta?.content ?? '').join('')
      t.equal(whole.choices[0].message.content, streamed, JSON.stringify({ max_tokens, ...more }))
      t.equal(whole.choices[0].finish_reason, events.findLast(event => event.choices?.[0])?.choices[0].finish_reason)
      t.match(whole.usage, { completion_tokens: events.find(event => event.usage)?.usage.completion_tokens })
    }
  }
})

t.test('tools are called with arguments, and their results are used', async t => {
  const tools = [
    {
      type: 'function',
      function: {
        name: 'get_weather',
        description: 'Get the weather',
        parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
      }
    }
  ]
  const ask = { role: 'user', content: 'What is the weather in Paris?' }
  const call = { function: { name: 'get_weather', arguments: { city: 'Paris' } } }
  const events = await corral.events('/api/chat', { ...chat, messages: [ask], tools })
  const called = events.flatMap(event => event.message?.tool_calls ?? [])
  t.match(called, [call])
  const { body } = await corral.json('/api/chat', { ...chat, messages: [ask], tools, stream: false })
  t.match(body.message.tool_calls, [call])
  const second = await corral.json('/api/chat', {
    ...chat,
    messages: [ask, body.message, { role: 'tool', tool_name: 'get_weather', content: 'sunny' }],
    tools,
    stream: false
  })
  t.equal(second.body.message.content, 'The weather in Paris is sunny.')
})

t.test('format constrains the answer', async t => {
  const format = {
    type: 'object',
    properties: { city: { type: 'string', enum: ['Paris', 'Rome'] }, sum: { type: 'integer', minimum: 0, maximum: 9 } },
    required: ['city', 'sum']
  }
  const { body } = await corral.json('/api/chat', { ...chat, stream: false, format })
  t.match(JSON.parse(body.message.content), { city: /^(Paris|Rome)$/, sum: Number })
})

t.test('load, ps, keep_alive and unload agree on what is loaded', async t => {
  const { body } = await corral.json('/api/ps')
  t.match(body, {
    models: [{ name: DEMO, model: DEMO, format: 'gguf', expires_at: ISO, context_length: 4096 }],
    loading: []
  })
  t.ok(body.models[0].size > 0 && body.models[0].size_vram <= body.models[0].size)
  const total = (list: { size?: number; reserved?: number }[]) =>
    list.reduce((sum, { size = 0, reserved = 0 }) => sum + size + reserved, 0)
  t.equal(total(body.memory), total(body.models), 'the memory of all models is what is reserved')
  t.match((await corral.json('/api/chat', { model: DEMO, messages: [], keep_alive: -1, stream: false })).body, {
    done: true,
    done_reason: 'load'
  })
  const forEver = '2999-12-31T23:59:59.000Z'
  t.equal((await corral.json('/api/ps')).body.models[0].expires_at, forEver)
  await corral.json('/api/chat', { model: DEMO, keep_alive: 1e300, stream: false })
  t.equal((await corral.json('/api/ps')).body.models[0].expires_at, forEver, 'longer than dates can represent')
  t.match(await corral.events('/api/generate', { model: DEMO, keep_alive: 0 }), [{ done: true, done_reason: 'unload' }])
  t.match((await corral.json('/api/load', { model: DEMO, options: { num_ctx: 1000, num_parallel: 2 } })).body, {
    status: 'ready'
  })
  const [loaded] = (await corral.json('/api/ps')).body.models
  t.equal(loaded.options.num_parallel, 2)
  t.match((await corral.json('/api/stop', { model: DEMO })).body, { status: 'stopped' })
  t.same((await corral.json('/api/ps')).body.models, [])
  const steps = await corral.events('/api/load', { model: DEMO, stream: true })
  t.match(steps[0], { status: 'loading' })
  t.match(steps.at(-1), { status: 'ready' })
})

t.test('fifty concurrent first requests start one engine and get fifty answers', async t => {
  await corral.json('/api/stop', { model: DEMO })
  const asks = Array.from({ length: 50 }, () => corral.json('/api/chat', { ...chat, stream: false }))
  const answers = await Promise.all(asks)
  t.ok(answers.every(({ body }) => body.message.content === CAPITAL_ANSWER))
  t.equal(corral.enginePids().length, 1)
  t.equal((await corral.json('/api/ps')).body.models.length, 1)
})
