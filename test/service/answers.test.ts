import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { callArguments } from '../../core/answers/call-arguments.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, joined, startCorral } from '../support/corral.ts'
import { readCases, readFixture } from '../support/fixture.ts'

/** All tests share this server. */
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

/* Counts of tokens. */

const messages = [CAPITAL_QUESTION]
const system = 'You are Leo.'

interface Counts {
  prompt: number
  completion: number
}

const native = (body: any): Counts => ({ prompt: body.prompt_eval_count, completion: body.eval_count })
const hosted = ({ usage }: any): Counts => {
  t.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
  return { prompt: usage.prompt_tokens, completion: usage.completion_tokens }
}
const responses = ({ usage }: any): Counts => {
  t.equal(usage.total_tokens, usage.input_tokens + usage.output_tokens)
  return { prompt: usage.input_tokens, completion: usage.output_tokens }
}
// Anthropic counts cached tokens separately.
const anthropic = ({ usage }: any): Counts => ({
  prompt: usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens,
  completion: usage.output_tokens
})

const options = { temperature: 0 }
const instructed = [{ role: 'system', content: system }, ...messages]
const inLast = (events: any[]) => events.at(-1)
/** Every API with one system message and one question, how it counts, and which event of a stream has the counts. */
const ways: [path: string, body: object, count: (body: any) => Counts, ending: (events: any[]) => any][] = [
  ['/api/chat', { messages: instructed, options }, native, inLast],
  ['/api/generate', { system, prompt: CAPITAL_QUESTION.content, options }, native, inLast],
  ['/ollama/api/chat', { messages: instructed, options }, native, inLast],
  [
    '/v1/chat/completions',
    { messages: instructed, temperature: 0, stream_options: { include_usage: true } },
    hosted,
    events => events.findLast(event => event.usage)
  ],
  [
    '/v1/responses',
    { instructions: system, input: messages, ...options },
    responses,
    events => inLast(events).response
  ],
  [
    '/v1/messages',
    { system, messages, temperature: 0, max_tokens: 100 },
    anthropic,
    events => {
      const begun = events.find(event => event.type === 'message_start').message.usage
      return { usage: { ...begun, ...events.find(event => event.type === 'message_delta').usage } }
    }
  ]
]

async function readEvents(path: string, body: object): Promise<any[]> {
  const response = await corral.send(path, { model: DEMO, stream: true, ...body })
  const lines = (await response.text()).split('\n').map(line => line.replace(/^data: /, ''))
  return lines.filter(line => line.startsWith('{')).map(line => JSON.parse(line))
}

t.test('every API counts the same tokens, streamed and whole', async t => {
  const counted: Record<string, Counts> = {}
  for (const [path, body, count, ending] of ways) {
    const reply = await corral.json(path, { model: DEMO, stream: false, ...body })
    t.equal(reply.status, 200, `${path}: ${JSON.stringify(reply.body)}`)
    counted[path] = count(reply.body)
    counted[`${path} streamed`] = count(ending(await readEvents(path, body)))
  }
  const expected = counted['/api/chat']!
  t.ok(expected.prompt > 20 && expected.completion === 9, JSON.stringify(expected))
  for (const [way, counts] of Object.entries(counted)) t.same(counts, expected, way)
})

t.test('tokens counted beforehand equal those of the answer', async t => {
  const { body } = await corral.json('/v1/messages', { model: DEMO, ...ways.at(-1)![1] })
  const expected = anthropic(body).prompt
  const counts = await corral.json('/v1/messages/count_tokens', { model: DEMO, system, messages })
  t.match(counts, { status: 200, body: { input_tokens: expected } })
  const input = await corral.json('/v1/responses/input_tokens', { model: DEMO, instructions: system, input: messages })
  t.match(input, { status: 200, body: { input_tokens: expected } })
})

t.test("token counts equal the engine's", async t => {
  const { body } = await corral.json('/v1/chat/completions', { model: DEMO, messages, temperature: 0 })
  const { usage, timings } = body
  t.equal(usage.prompt_tokens, timings.cache_n + timings.prompt_n)
  t.equal(usage.prompt_tokens_details.cached_tokens, timings.cache_n)
  t.equal(usage.completion_tokens, timings.predicted_n)

  const two = await corral.json('/v1/embeddings', { model: DEMO, input: ['Hello', 'The capital of France'] })
  const one = await corral.json('/v1/embeddings', { model: DEMO, input: 'Hello' })
  const other = await corral.json('/v1/embeddings', { model: DEMO, input: 'The capital of France' })
  t.equal(two.body.usage.prompt_tokens, one.body.usage.prompt_tokens + other.body.usage.prompt_tokens)
  const native = await corral.json('/api/embed', { model: DEMO, input: ['Hello', 'The capital of France'] })
  t.equal(native.body.prompt_eval_count, two.body.usage.prompt_tokens)
})

/* Tools and calls in requests. */

const user = { role: 'user', content: 'hi' }
const parameters = { type: 'object', properties: { a: { type: 'string' } } }
const tool = { type: 'function', function: { name: 'save', parameters } }
type Api = { path: string; short: object; tools: object; off?: object; history: object }
/** The history contains a call with these arguments. */
const APIS = readFixture<{ tool_apis: Api[] }>('service-cases.yaml').tool_apis.map(api => ({
  ...api,
  history: (given: unknown): object =>
    JSON.parse(JSON.stringify(api.history), (_, value) => (value === '$given' ? given : value))
}))

const DEEP = `{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}`

t.test('arguments of earlier calls become the JSON text of an object', async t => {
  const cases: [given: unknown, text: string][] = [
    ...readCases<[unknown, string][]>('service-cases.yaml', 'call_arguments'),
    [undefined, '{}'],
    [null, '{}'],
    [DEEP, JSON.stringify({ arguments: DEEP })]
  ]
  for (const [given, text] of cases) t.equal(callArguments(given), text, String(given).slice(0, 40))
})

t.test('every API answers a history with malformed tool arguments', async t => {
  await corral.json('/api/chat', { model: DEMO, messages: [user], stream: false })
  const before = corral.enginePids()
  for (const { path, short, history } of APIS) {
    for (const given of ['', '{"city": "Os', '[1]', [1], 7, null, undefined, '{"a":"\\ud800"}', '{"a":1e999}']) {
      const { status, body } = await corral.json(path, { model: DEMO, ...short, ...history(given) })
      t.equal(status, 200, `${path} ${JSON.stringify(given)}: ${JSON.stringify(body).slice(0, 200)}`)
    }
    const { status } = await corral.json(path, { model: DEMO, ...short, ...history(DEEP) })
    t.equal(status, 400, `${path}: deeply nested arguments are only too long`)
  }
  t.same(corral.enginePids(), before, 'no engine crashed')
})

t.test('every API answers a history that ends with a call', async t => {
  for (const { path, short, history } of APIS) {
    const entries = Object.entries(history({})).map(([name, list]) => [name, (list as object[]).slice(0, -1)])
    const { status, body } = await corral.json(path, { model: DEMO, ...short, ...Object.fromEntries(entries) })
    t.equal(status, 200, `${path}: ${JSON.stringify(body).slice(0, 200)}`)
  }
})

t.test('a truncated call that the client answered stays in the history', async t => {
  const call = { type: 'function_call', status: 'incomplete', name: 'now', call_id: 'c', arguments: '{"a' }
  const output = { type: 'function_call_output', call_id: 'c', output: 'unreadable' }
  const renderPrompt = async (...items: object[]) => {
    const { body } = await corral.json('/v1/responses/input_tokens', { model: DEMO, input: [user, ...items, user] })
    return body.input_tokens as number
  }
  t.equal(await renderPrompt(call), await renderPrompt(), 'a call without output was never made')
  t.equal(await renderPrompt(call, output), await renderPrompt({ ...call, status: 'completed' }, output))
})

t.test('every API refuses tools for a model whose template does not support them', async t => {
  const model = 'plain'
  const template = "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}bot:"
  const made = await corral.json('/ollama/api/create', { model, from: DEMO, template, stream: false })
  t.equal(made.status, 200, JSON.stringify(made.body))
  for (const { path, short, tools, off } of APIS) {
    for (const stream of [false, true]) {
      const { status, body } = await corral.json(path, { model, ...short, ...tools, stream })
      t.equal(status, 400, path)
      t.match(JSON.stringify(body), /does not support tools/, path)
    }
    if (off) t.equal((await corral.json(path, { model, ...short, ...tools, ...off })).status, 200, `${path}: no choice`)
    t.equal((await corral.json(path, { model: DEMO, ...short, ...tools })).status, 200, `${path}: a model with tools`)
  }
  const { body } = await corral.json('/v1/chat/completions', { model, messages: [user], tools: [tool] })
  t.match(body, { error: { code: 'unsupported_capability', param: 'tools' } })
  const count = { model, messages: [user], tools: [{ name: 'save', input_schema: parameters }] }
  t.equal((await corral.json('/v1/messages/count_tokens', count)).status, 400)
})

t.test('a freeform tool obeys its grammar if that is regular and cheap', async t => {
  const { tools } = JSON.parse(readFileSync(join(packageRoot, 'test', 'fixtures', 'agents', 'codex.json'), 'utf8'))
  const patch = tools.find(({ type }: { type: string }) => type === 'custom')
  const ask = async (format: object) => {
    const { status, body } = await corral.json('/v1/responses', {
      model: DEMO,
      input: 'Add a file.',
      tools: [{ ...patch, format }],
      tool_choice: { type: 'custom', name: patch.name },
      max_output_tokens: 120,
      temperature: 0
    })
    t.equal(status, 200, JSON.stringify(body).slice(0, 300))
    return body.output.find(({ type }: { type: string }) => type === 'custom_tool_call')?.input
  }
  t.match(await ask(patch.format), /^\*\*\* Begin Patch\n\*\*\* (Add|Delete|Update) File: ./)
  t.notMatch(await ask({ type: 'grammar', syntax: 'regex', definition: '(([a-z]?){0,30}){0,30}\\.' }), /^[a-z]*\.$/)
})
