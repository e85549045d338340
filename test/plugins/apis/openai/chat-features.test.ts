import type OpenAI from 'openai'
import t from 'tap'
import { ChatCompletion } from '../../../../plugins/apis/openai/schemas.ts'
import { readCases } from '../../../support/cases.ts'
import { failure } from '../../../support/failure.ts'
import { thorough } from '../../../support/thorough.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { typeFaults } from './declared-types.ts'
import { randomMessages } from './random-items.ts'
import { conforms, MODEL, question, startRealEngine } from './real-engine.ts'
import { variantOf } from './support.ts'

// Features of OpenAI's chats that llama-server lacks or handles differently.
const { client, service, events, idle } = await startRealEngine(t, [variantOf('corral', 'tiny-chat')])
const ANSWER = 'The capital of France is Paris.'
const CASES = readCases('openai-requests')
const weather = {
  type: 'function' as const,
  function: {
    name: 'get_weather',
    description: 'Get the current weather in a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
  }
}
const add = {
  type: 'function' as const,
  function: {
    name: 'add',
    description: 'Add two numbers',
    parameters: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] }
  }
}
const chat = (fields: object = {}) => ({ model: MODEL, messages: [question], ...fields })

t.test('n returns several choices and their usage', async t => {
  const two = (await client.chat.completions.create(chat({ n: 2, seed: 5 }) as never)) as OpenAI.ChatCompletion
  t.match(two.id, /^chatcmpl-\w{32}$/)
  t.ok(two.system_fingerprint)
  conforms(t, ChatCompletion, two, 'ChatCompletion')
  t.ok(two.choices.every(({ message }) => message.refusal === null))
  t.match(two.usage, { prompt_tokens: 19, completion_tokens: 18, total_tokens: 37 })

  const streamed = await events(t, '/chat/completions', chat({ n: 2, stream_options: { include_usage: true } }))
  t.strictSame(
    streamed.filter(event => event.usage).map(event => [event.choices, event.usage.completion_tokens]),
    [[[], 18]],
    'usage is sent once, at the end'
  )
  t.ok(streamed.at(-1).usage)
  for (const index of [0, 1]) {
    const pieces = streamed.flatMap(({ choices }) => choices).filter(choice => choice.index === index)
    t.equal(pieces.map(({ delta }) => delta.content ?? '').join(''), ANSWER)
    t.equal(pieces.at(-1).finish_reason, 'stop')
  }
  t.equal(new Set(streamed.map(({ id }) => id)).size, 1)

  for (const stream of [false, true]) {
    const many = await failure(client.chat.completions.create(chat({ n: 3, stream }) as never))
    t.match(many, { status: 400, param: 'n', message: /at most 2.*num_parallel/ })
  }
  await idle()
})

t.test('logprobs lists the tokens and their alternatives', async t => {
  const whole = (await client.chat.completions.create(
    chat({ logprobs: true, top_logprobs: 2 }) as never
  )) as OpenAI.ChatCompletion
  const tokens = whole.choices[0]!.logprobs!.content!
  conforms(t, ChatCompletion, whole, 'ChatCompletion')
  for (const { token, bytes, logprob, top_logprobs } of tokens) {
    t.equal(Buffer.from(bytes!).toString(), token)
    t.equal(top_logprobs[0]!.logprob, logprob, 'temperature 0 chooses the most likely token')
  }
  const plain = (await client.chat.completions.create(chat({ logprobs: true }) as never)) as OpenAI.ChatCompletion
  t.strictSame(
    plain.choices[0]!.logprobs!.content!.map(({ top_logprobs }) => top_logprobs),
    tokens.map(() => [])
  )
  const stream = await events(t, '/chat/completions', chat({ logprobs: true, top_logprobs: 2 }))
  const told = stream.flatMap(event => event.choices[0]?.logprobs?.content ?? [])
  t.strictSame(
    told.map(({ token, top_logprobs }) => [token, top_logprobs.length]),
    tokens.map(({ token }) => [token, 2])
  )
  const called = await client.chat.completions
    .stream({
      model: MODEL,
      messages: [{ role: 'user', content: 'What is the weather in Paris?' }],
      tools: [weather],
      logprobs: true
    })
    .finalChatCompletion()
  t.match(called.choices[0], {
    finish_reason: 'tool_calls',
    message: { tool_calls: [{ function: { name: 'get_weather' } }] }
  })
})

t.test('tools are called, and tool_choice is respected', async t => {
  const messages = [{ role: 'user' as const, content: 'What is the weather in Paris and Rome?' }]
  const both = await client.chat.completions.create({ model: MODEL, messages, tools: [weather] })
  t.equal(both.choices[0]!.message.content, null)
  conforms(t, ChatCompletion, both, 'ChatCompletion')
  const streamed = await events(t, '/chat/completions', { model: MODEL, messages, tools: [weather] })
  const pieces = streamed.flatMap(({ choices }) => choices[0]?.delta.tool_calls ?? [])
  t.strictSame([...new Set(pieces.map(({ index }) => index))], [0, 1])
  for (const index of [0, 1]) {
    const own = pieces.filter(piece => piece.index === index)
    t.strictSame(
      own.map(({ id, type }) => [typeof id, type]),
      own.map((_, at) => (at === 0 ? ['string', 'function'] : ['undefined', undefined])),
      'the first piece has id and type'
    )
    t.strictSame(JSON.parse(own.map(piece => piece.function.arguments ?? '').join('')), {
      city: ['Paris', 'Rome'][index]
    })
  }
  const one = [{ role: 'user' as const, content: 'What is the weather in Paris?' }]
  const choose = async (tool_choice: unknown, tools = [weather, add]) =>
    (
      (await client.chat.completions.create({
        model: MODEL,
        messages: one,
        tools,
        tool_choice
      } as never)) as OpenAI.ChatCompletion
    ).choices[0]!
  t.match(await choose('auto'), { finish_reason: 'tool_calls' })
  t.match(await choose('required'), { message: { tool_calls: [{ function: { name: 'get_weather' } }] } })
})

t.test('freeform tools are called, and their calls stay in the history', async t => {
  const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'List the files.' }]
  const tools: OpenAI.ChatCompletionTool[] = [weather, { type: 'custom', custom: { name: 'patch' } }]
  const tool_choice = { type: 'custom', custom: { name: 'patch' } } as const
  const asked = { model: MODEL, messages, tools, tool_choice, max_tokens: 60 }
  const { choices } = await client.chat.completions.create(asked)
  const [call] = choices[0]!.message.tool_calls ?? []
  if (call?.type !== 'custom') return t.fail(`no call: ${JSON.stringify(choices)}`)
  t.equal(call.custom.name, 'patch')
  let input = ''
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
    for (const piece of chunk.choices[0]?.delta.tool_calls ?? []) {
      input += (piece as unknown as { custom: { input: string } }).custom.input
    }
  }
  t.equal(input, call.custom.input, 'a stream has the same input')
  for (const [syntax, definition, expected] of [
    ['regex', '[A-Z]{3}-\\d{4}', /^[A-Z]{3}-\d{4}$/],
    ['regex', '(?<year', /./],
    ['lark', 'start: line~2\nline: "+" /[A-Z"\\\\]{3}/ LF\n%import common.LF', /^(\+[A-Z"\\]{3}\n){2}$/],
    ['lark', 'start: "(" start ")" | "x"', /./]
  ] as const) {
    const format = { type: 'grammar', grammar: { syntax, definition } } as const
    const tools = [{ type: 'custom', custom: { name: 'patch', format } }] as const
    const { choices } = await client.chat.completions.create({ ...asked, tools: [...tools] })
    const [written] = choices[0]!.message.tool_calls ?? []
    t.match(written, { custom: { input: expected } }, `${syntax}: ${definition}`)
  }
  messages.push(choices[0]!.message, { role: 'tool', tool_call_id: call.id, content: 'Done' })
  const next = await service.send('/chat/completions', {
    model: MODEL,
    messages,
    tools: [...tools, { type: 'web_search' }],
    max_tokens: 5
  })
  t.equal(next.status, 200)
  t.equal(next.headers.get('x-corral-ignored-tools'), 'web_search')
  return undefined
})

t.test("the template renders every history that the SDK's types allow", async t => {
  for (let seed = 1; seed <= trialCount(60); seed++) {
    const made = randomMessages(t, seed)
    // The newest message of a user may be refused, because the model cannot see images.
    const ends = made.filter(({ role }) => role !== 'user')
    const messages = seed % 2 || ends.length === 0 ? [...made, question] : ends
    const counted = await service.send('/chat/completions/input_tokens', { model: MODEL, messages })
    const text = await counted.text()
    t.equal(counted.status, 200, `seed ${seed}: ${text} for ${JSON.stringify(messages)}`)
  }
})

t.test('the older functions are called', async t => {
  const older = {
    model: MODEL,
    messages: [{ role: 'user' as const, content: 'What is the weather in Paris?' }],
    functions: [weather.function]
  }
  const whole = await client.chat.completions.create(older)
  t.match(whole.choices[0], { finish_reason: 'function_call', message: { function_call: { name: 'get_weather' } } })
  t.strictSame(JSON.parse(whole.choices[0]!.message.function_call!.arguments), { city: 'Paris' })
  t.notOk(whole.choices[0]!.message.tool_calls)
  conforms(t, ChatCompletion, whole, 'ChatCompletion')
  const stream = await events(t, '/chat/completions', older)
  const pieces = stream.flatMap(event => event.choices[0]?.delta.function_call ?? [])
  t.equal(pieces[0].name, 'get_weather')
  t.strictSame(JSON.parse(pieces.map(piece => piece.arguments ?? '').join('')), { city: 'Paris' })
  const answered = await client.chat.completions.create({
    ...older,
    messages: [
      ...older.messages,
      { role: 'assistant', content: null, function_call: { name: 'get_weather', arguments: '{"city":"Paris"}' } },
      { role: 'function', name: 'get_weather', content: 'sunny' }
    ]
  })
  t.equal(answered.choices[0]!.message.content, 'The weather in Paris is sunny.')
})

t.test('response_format, stop, developer messages and ignored fields work', async t => {
  const ask = async (fields: object) =>
    (await client.chat.completions.create(chat({ max_tokens: 60, ...fields }) as never)) as OpenAI.ChatCompletion
  const object = await ask({ response_format: { type: 'json_object' } })
  if (object.choices[0]!.finish_reason === 'stop') JSON.parse(object.choices[0]!.message.content!)
  t.match(object.choices[0]!.message.content, /^\s*\{/)
  const schema = {
    type: 'object',
    properties: { city: { enum: ['Paris', 'Rome'] }, sure: { type: 'boolean' } },
    required: ['city', 'sure'],
    additionalProperties: false
  }
  const called = await ask({ response_format: { type: 'json_object', value: schema } })
  t.match(
    Object.keys(JSON.parse(called.choices[0]!.message.content!)),
    ['city', 'sure'],
    "Hugging Face's form of a schema"
  )
  const strict = await ask({
    response_format: { type: 'json_schema', json_schema: { name: 'city', schema, strict: true } }
  })
  t.match(JSON.parse(strict.choices[0]!.message.content!), { city: /Paris|Rome/, sure: Boolean })
  t.equal((await ask({ response_format: { type: 'text' } })).choices[0]!.message.content, ANSWER)
  const impossible = { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'secret' } } }
  t.match(await failure(ask({ response_format: impossible })), { status: 400, code: 'invalid_request' })

  t.equal((await ask({ stop: ['', ' is', 'Paris'] })).choices[0]!.message.content, 'The capital of France')
  t.equal((await ask({ stop: ' of' })).choices[0]!.message.content, 'The capital')
  const developer = [
    { role: 'developer', content: 'You are Leo.' },
    { role: 'user', content: 'Who are you?' }
  ]
  t.equal((await ask({ messages: developer })).choices[0]!.message.content, 'I am Leo.')
  const parts = [{ role: 'user', content: [{ type: 'text', text: 'What is the capital of France?' }] }]
  t.equal((await ask({ messages: parts })).choices[0]!.message.content, ANSWER)
  t.equal((await ask(CASES.ignored)).choices[0]!.message.content, ANSWER)
  const { body } = await service.json('/tokenize', { model: MODEL, content: ' Paris' })
  const biased = await ask({ logit_bias: { [body.tokens[0]]: -100 } })
  t.notMatch(biased.choices[0]!.message.content, 'Paris')
})

t.test('replies have the types that the official client declares', thorough, async t => t.equal(typeFaults(), ''))
