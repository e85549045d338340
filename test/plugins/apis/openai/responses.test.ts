import OpenAI from 'openai'
import type {
  FunctionTool,
  ResponseCreateParams,
  ResponseCreateParamsNonStreaming,
  ResponseInputItem,
  ResponseStreamEvent,
  Tool
} from 'openai/resources/responses/responses'
import t from 'tap'
import { readCases } from '../../../support/cases.ts'
import { activeRequests, CAPITAL_ANSWER, DEMO, startCorral, until } from '../../../support/corral.ts'
import { each } from '../../../support/each.ts'
import { failure } from '../../../support/failure.ts'
import { thorough } from '../../../support/thorough.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { checkEvents, collectEvents, mustBe, typeFaults } from './declared-types.ts'
import { randomItems } from './random-items.ts'

// Runs the official client against a corral with the real engine.
const corral = await startCorral(t, {
  config: 'defaults:\n  num_ctx: 2048\n  num_parallel: 2\n  temperature: 0\napi-openai:\n  stored_responses: 200KiB\n'
})
const client = new OpenAI({ baseURL: `${corral.url}/v1`, apiKey: 'any', maxRetries: 0 })
const CAPITAL = 'What is the capital of France?'
const WEATHER = 'What is the weather in Paris?'
const getWeather: FunctionTool = {
  type: 'function',
  name: 'get_weather',
  description: 'Current weather of a city',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  strict: true
}

const create = (fields: Omit<ResponseCreateParamsNonStreaming, 'model'>) =>
  client.responses.create({ model: DEMO, ...fields })
const options = { ignore_eos: true, max_tokens: 20_000, num_ctx: 32_000 }
const ENDLESS = { model: DEMO, input: 'Count to 30.', options }

const idle = () => until('all slots are free', async () => (await activeRequests(corral)) === 0)

t.test('compacts a conversation of any length, and continues it', async t => {
  const input = Array.from({ length: 40 }, (_, index) => [
    { role: 'user' as const, content: `Note ${index}: ${'green bottles '.repeat(20)}` },
    { role: 'assistant' as const, content: 'Noted.' }
  ]).flat()
  const body = { model: DEMO, input: [...input, { role: 'user' as const, content: CAPITAL }] }
  const { output, usage } = await client.responses.compact(body)
  t.equal(output.at(-1)!.type, 'compaction')
  t.ok(usage.input_tokens > 100 && usage.output_tokens > 0)
  const window = [...output, { role: 'user', content: CAPITAL }] as ResponseInputItem[]
  t.match(await create({ input: window, max_output_tokens: 5 }), { object: 'response' })
})

t.test('the Responses API creates a response', async t => {
  const response = await create({ input: CAPITAL, metadata: { of: 'mine' }, user: 'me' })
  t.equal(response.output_text, CAPITAL_ANSWER)
  mustBe('Response', response)
  t.match(response, {
    status: 'completed',
    model: DEMO,
    metadata: { of: 'mine' },
    temperature: 0,
    top_p: 0.9,
    usage: { input_tokens: 19, output_tokens: 9, total_tokens: 28, output_tokens_details: { reasoning_tokens: 0 } }
  })
  const again = await create({ input: [{ role: 'user', content: CAPITAL }] })
  t.ok(again.usage!.input_tokens_details.cached_tokens > 0)
  t.equal(again.usage!.input_tokens, 19)
  const count = await client.responses.inputTokens.count({ model: DEMO, input: CAPITAL })
  t.strictSame({ ...count }, { object: 'response.input_tokens', input_tokens: 19 })
  const named = await client.responses.create({
    model: 'CORRAL/tiny-chat:latest',
    instructions: 'You are Leo.',
    input: 'Who are you?'
  })
  t.match(named, { output_text: 'I am Leo.', model: 'CORRAL/tiny-chat:latest', instructions: 'You are Leo.' })
})

t.test('the Responses API streams a response', async t => {
  const raw = await corral.send('/v1/responses', { model: DEMO, input: CAPITAL, stream: true })
  t.equal(raw.headers.get('content-type'), 'text/event-stream')
  t.equal(raw.headers.get('cache-control'), 'no-cache, no-transform')
  const blocks = (await raw.text()).trimEnd().split('\n\n')
  for (const block of blocks) {
    const [, name, data] = /^event: (\S+)\ndata: (.*)$/.exec(block)!
    t.equal(JSON.parse(data!).type, name)
  }
  const stream = client.responses.stream({ model: DEMO, input: CAPITAL })
  let text = ''
  stream.on('response.output_text.delta', ({ delta, snapshot }) => {
    text += delta
    t.equal(snapshot, text)
  })
  const events = await collectEvents(stream)
  checkEvents(t, events)
  t.equal(events.length, blocks.length)
  t.equal(text, CAPITAL_ANSWER)
  const final = await stream.finalResponse()
  t.equal(final.output_text, CAPITAL_ANSWER)
  t.equal(final.usage!.output_tokens, 9)
  mustBe('Response', final)
})

t.test('functions: a call, and an answer based on its result', async t => {
  const asked = await create({ input: WEATHER, tools: [getWeather] })
  mustBe('Response', asked)
  const [call] = asked.output
  if (call?.type !== 'function_call') return t.fail(`no call: ${JSON.stringify(asked.output)}`)
  t.match(call, { id: /^fc_/, call_id: /^call_/, name: 'get_weather', status: 'completed' })
  t.strictSame(JSON.parse(call.arguments), { city: 'Paris' })
  const result = { type: 'function_call_output' as const, call_id: call.call_id, output: 'sunny' }

  const chained = await create({ previous_response_id: asked.id, input: [result], tools: [getWeather] })
  t.equal(chained.output_text, 'The weather in Paris is sunny.')
  t.equal(chained.previous_response_id, asked.id)
  const history: ResponseInputItem[] = [{ role: 'user', content: WEATHER }, ...asked.output, result] as never
  const whole = await create({ input: history, tools: [getWeather] })
  t.equal(whole.output_text, chained.output_text, 'the same if the client sends the conversation')
  t.equal(whole.usage!.input_tokens, chained.usage!.input_tokens)
  const referring = await create({
    input: [
      { role: 'user', content: WEATHER },
      { type: 'item_reference', id: call.id! },
      { ...result, output: [{ type: 'input_text', text: 'sunny' }] }
    ],
    tools: [getWeather]
  })
  t.equal(referring.output_text, chained.output_text, 'the same if the client refers to the call')
  return undefined
})

t.test("the template renders every history that the SDK's types allow", async t => {
  for (let seed = 1; seed <= trialCount(60); seed++) {
    const items = randomItems(t, seed)
    // The newest message of a user may be refused, because the model cannot see images.
    const ends = items.filter(({ role }) => role !== 'user')
    const input = seed % 2 || ends.length === 0 ? [...items, { role: 'user', content: CAPITAL }] : ends
    const { status, body } = await corral.json('/v1/responses/input_tokens', { model: DEMO, input })
    t.equal(status, 200, `seed ${seed}: ${JSON.stringify(body)} for ${JSON.stringify(input)}`)
  }
})

t.test('freeform tools and tools that the client runs', async t => {
  const tools: Tool[] = [
    { type: 'custom', name: 'apply_patch', description: 'Patches.', format: { type: 'text' } },
    { type: 'shell' },
    { type: 'web_search' }
  ]
  const ask = (input: ResponseInputItem[], tool_choice: ResponseCreateParams['tool_choice']) =>
    client.responses.stream({ model: DEMO, input, tools, tool_choice, max_output_tokens: 60 })
  const question: ResponseInputItem = { role: 'user', content: 'List the files.' }
  const history: ResponseInputItem[] = [question]
  for (const [choice, type] of [
    [{ type: 'custom', name: 'apply_patch' }, 'custom_tool_call'],
    [{ type: 'shell' }, 'shell_call']
  ] as const) {
    const stream = ask(history, choice)
    const events = await collectEvents(stream)
    checkEvents(t, events)
    const { output, tools: shown } = await stream.finalResponse()
    t.strictSame(each(shown, 'type'), ['custom', 'shell'])
    const call = output.at(-1)!
    t.equal(call.type, type)
    if (call.type === 'custom_tool_call') {
      const deltas = events.flatMap(event =>
        event.type === 'response.custom_tool_call_input.delta' ? [event.delta] : []
      )
      t.ok(deltas.length > 0 && deltas.join('') === call.input, `the pieces of ${JSON.stringify(call.input)}`)
      history.push(call as ResponseInputItem, {
        type: 'custom_tool_call_output',
        call_id: call.call_id,
        output: 'Done'
      })
    } else if (call.type === 'shell_call') {
      const outcome = { type: 'exit', exit_code: 0 } as const
      const results = [{ stdout: 'a', stderr: '', outcome }]
      history.push(call as ResponseInputItem, { type: 'shell_call_output', call_id: call.call_id, output: results })
    }
  }
  const { response } = await client.responses
    .create({ model: DEMO, input: history, tools, max_output_tokens: 5 })
    .withResponse()
  t.equal(response.headers.get('x-corral-ignored-tools'), 'web_search')
})

t.test('functions: two parallel calls, streams and tool_choice', async t => {
  const stream = client.responses.stream({
    model: DEMO,
    input: 'What is the weather in Paris and Rome?',
    tools: [getWeather]
  })
  const events = await collectEvents(stream)
  checkEvents(t, events)
  const { output } = await stream.finalResponse()
  t.strictSame(
    output.map(item => item.type === 'function_call' && JSON.parse(item.arguments)),
    [{ city: 'Paris' }, { city: 'Rome' }]
  )
  const pieces = (index: number) =>
    events.flatMap(event =>
      event.type === 'response.function_call_arguments.delta' && event.output_index === index ? [event.delta] : []
    )
  for (const [index, item] of output.entries()) {
    t.ok(pieces(index).length > 1, 'arguments arrive in pieces')
    t.equal(pieces(index).join(''), item.type === 'function_call' && item.arguments)
  }
  const text = await create({ input: WEATHER, tools: [getWeather], tool_choice: 'none' })
  t.strictSame(each(text.output, 'type'), ['message'])
  const chosen = await create({
    input: WEATHER,
    tools: [getWeather, { ...getWeather, name: 'get_time' }],
    tool_choice: { type: 'function', name: 'get_weather' }
  })
  t.match(chosen.output.at(-1), { type: 'function_call', name: 'get_weather' })
  t.match(chosen.tool_choice, { type: 'function', name: 'get_weather' })
})

t.test('log probabilities, also with functions', async t => {
  for (const tools of [[], [getWeather]]) {
    const response = await create({ input: CAPITAL, tools, top_logprobs: 2, include: ['message.output_text.logprobs'] })
    mustBe('Response', response)
    const [message] = response.output
    const part = message?.type === 'message' ? message.content[0] : undefined
    if (part?.type !== 'output_text') return t.fail('no text')
    t.equal(part.text, CAPITAL_ANSWER)
    t.equal(Buffer.concat(part.logprobs!.map(({ bytes }) => Buffer.from(bytes))).toString(), part.text)
    for (const { logprob, top_logprobs } of part.logprobs!) {
      t.equal(top_logprobs.length, 2)
      t.ok(logprob <= 0 && top_logprobs[0]!.logprob === logprob, 'temperature 0 chooses the most likely token')
    }
  }
  return undefined
})

t.test('an answer that reaches its token limit is incomplete', async t => {
  const request = { model: DEMO, input: 'Count to 12.', max_output_tokens: 5 }
  const response = await client.responses.create(request)
  t.match(response, {
    status: 'incomplete',
    incomplete_details: { reason: 'max_output_tokens' },
    max_output_tokens: 5,
    usage: { output_tokens: 5 },
    output: [{ status: 'incomplete' }]
  })
  mustBe('Response', response)
  const events = await collectEvents(await client.responses.create({ ...request, stream: true }))
  checkEvents(t, events)
  t.equal(events.at(-1)!.type, 'response.incomplete')
})

t.test('the Responses API stores responses, continues them and deletes them', async t => {
  t.match(await create({ input: [], instructions: 'Be kind.' }), { output_text: /./ }, 'instructions alone')
  const first = await create({ input: 'My name is Rosa.', instructions: 'Be kind.' })
  const stream = client.responses.stream({ model: DEMO, input: 'What is my name?', previous_response_id: first.id })
  const second = await stream.finalResponse()
  t.equal(second.output_text, 'Your name is Rosa.')
  t.equal(second.instructions, null, 'instructions are not carried over')

  t.strictSame({ ...(await client.responses.retrieve(first.id)) }, { ...first })
  t.equal((await client.responses.retrieve(second.id)).output_text, 'Your name is Rosa.')
  const items = await client.responses.inputItems.list(second.id)
  t.strictSame(
    items.data.map(item => item.type === 'message' && [item.role, (item.content[0] as { text: string }).text]),
    [
      ['user', 'What is my name?'],
      ['assistant', first.output_text],
      ['user', 'My name is Rosa.']
    ]
  )
  for (const item of items.data) mustBe('ResponseItem', item)
  const one = []
  for await (const { id } of client.responses.inputItems.list(second.id, { limit: 1, order: 'asc' })) one.push(id)
  t.strictSame(one, items.data.map(({ id }) => id).reverse(), 'page by page')

  t.match(await failure(client.responses.cancel(first.id)), { status: 400, code: 'invalid_request', message: /ended/ })
  t.match(await failure(client.responses.retrieve(first.id, { stream: true })), {
    status: 400,
    code: 'unsupported_capability'
  })
  await client.responses.delete(first.id)
  for (const gone of [
    () => client.responses.retrieve(first.id),
    () => client.responses.inputItems.list(first.id),
    () => client.responses.delete(first.id),
    () => client.responses.cancel(first.id),
    () => create({ input: 'Hi', previous_response_id: first.id })
  ]) {
    const error = await failure(gone())
    t.ok(error instanceof OpenAI.NotFoundError)
    t.match(error, { code: 'response_not_found', message: /only in memory/ })
  }
  const third = await create({ input: 'What is my name?', previous_response_id: second.id })
  t.equal(third.output_text, 'Your name is Rosa.', 'a later response keeps the items that it needs')

  const secret = await create({ input: CAPITAL, store: false })
  t.match(secret, { store: false })
  t.match(await failure(client.responses.retrieve(secret.id)), { status: 404 })

  const long = 'word '.repeat(300)
  for (let count = 0; count < 30; count++) {
    const metadata = Object.fromEntries(Array.from({ length: 16 }, (_, index) => [`${index}`, 'x'.repeat(512)]))
    await create({ input: long, max_output_tokens: 1, metadata })
  }
  t.match(await failure(client.responses.retrieve(second.id)), { status: 404 }, 'the oldest response was removed')
})

t.test('the SDK throws the right error class', async t => {
  for (const [given, expected] of readCases('responses-errors').cases) {
    // `words` stands for a text with this many words.
    const { words, ...rest } = { model: DEMO, ...given }
    const request = words ? { ...rest, input: 'word '.repeat(words) } : rest
    for (const stream of [false, true]) {
      const error = await failure(client.responses.create({ stream, ...request } as never))
      t.ok(
        error instanceof (error.status === 404 ? OpenAI.NotFoundError : OpenAI.BadRequestError),
        `${JSON.stringify(request).slice(0, 200)}: ${error}`
      )
      t.match(error, expected, JSON.stringify(request).slice(0, 200))
    }
  }
  const malformed = await corral.json('/v1/responses', '{"model":')
  t.match(malformed, { status: 400, body: { error: { code: 'invalid_json', type: 'invalid_request_error' } } })
  await idle()
})

t.test('truncation drops the oldest messages of a long conversation', thorough, async t => {
  const turns = Array.from({ length: 8 }, (_, index) => [
    { role: 'user' as const, content: `${index} ${'word '.repeat(200)}` },
    { role: 'assistant' as const, content: 'Yes.' }
  ]).flat()
  const input = [...turns, { role: 'user' as const, content: CAPITAL }]
  const request = { model: DEMO, input, max_output_tokens: 20 }
  t.match(await failure(client.responses.create({ ...request, truncation: 'disabled' })), {
    code: 'context_length_exceeded'
  })
  const { data, response } = await client.responses.create({ ...request, truncation: 'auto' }).withResponse()
  t.equal(data.truncation, 'auto')
  t.ok(Number(response.headers.get('x-corral-dropped-messages')) >= 2)
  t.ok(data.usage!.input_tokens < 2048)
})

t.test('an aborted request without a stream frees its slot', async t => {
  const leaving = new AbortController()
  const unstreamed = failure(client.responses.create(ENDLESS as never, { signal: leaving.signal }))
  await until('the request runs', async () => (await activeRequests(corral)) === 1)
  leaving.abort()
  t.ok((await unstreamed) instanceof OpenAI.APIUserAbortError)
  await idle()
})

t.test('stopping a model ends its response with an error', async t => {
  const events: ResponseStreamEvent[] = []
  let stopped: Promise<unknown> | undefined
  const error = await failure(
    (async () => {
      const stream = await client.responses.create({ ...ENDLESS, stream: true } as never)
      for await (const event of stream as unknown as AsyncIterable<ResponseStreamEvent>) {
        if (event.type === 'response.output_text.delta') stopped ??= corral.json('/api/stop', { model: DEMO })
        events.push(event)
      }
    })()
  )
  t.ok(error instanceof OpenAI.APIError)
  t.match(error, { code: 'model_stopped', type: 'server_error' })
  await stopped
  checkEvents(t, events)
  const last = events.at(-1)!
  t.match(last, { type: 'response.failed', response: { status: 'failed', error: { code: 'server_error' } } })
  if (last.type !== 'response.failed') return
  t.match(
    await failure(client.responses.retrieve(last.response.id)),
    { status: 404 },
    'a failed response is not stored'
  )
})

t.test('replies have the types that the official client declares', async t => t.equal(typeFaults(), ''))
