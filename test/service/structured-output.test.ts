import { Ajv2020 } from 'ajv/dist/2020.js'
import t from 'tap'
import { DEMO, startCorral } from '../support/corral.ts'
import { readCases, readFixture } from '../support/fixture.ts'
import { sample } from '../support/thorough.ts'

const corral = await startCorral(t)
const ajv = new Ajv2020({ strict: false, validateFormats: false })
const { schemas, invalid_formats } = readFixture<{ schemas: Record<string, object>; invalid_formats: unknown[] }>(
  'answer-schemas.yaml'
)

const word = { type: 'string', maxLength: 12 }
const object = (properties: Record<string, object>) => {
  return { type: 'object', properties, required: Object.keys(properties), additionalProperties: false }
}
const names = { enum: Array.from({ length: 1000 }, (_, index) => `name${index}`) }

const questions = ['Tell me a story about a fox.', 'What is 3 + 4?', '{"a":', 'Count to 12.']

t.test('a JSON schema makes every answer valid', async t => {
  await Promise.all(
    Object.entries({ ...schemas, 'a thousand names': object({ name: names }) }).map(async ([name, format]) => {
      const isValid = ajv.compile(format)
      for (const [seed, question] of sample([...questions.entries()], 2)) {
        const options = { seed, temperature: seed * 0.6, max_tokens: 1000 }
        const asks = [
          ['/api/chat', { messages: [{ role: 'user', content: question }], format }],
          ['/api/generate', { prompt: question, format }],
          ['/ollama/api/chat', { messages: [{ role: 'user', content: question }], format }]
        ] as const
        const [path, body] = asks[seed % asks.length]!
        const reply = await corral.json(path, { model: DEMO, ...body, options, stream: false })
        const answer = reply.body.message?.content ?? reply.body.response
        t.match(reply, { status: 200 }, `${name}: ${JSON.stringify(reply.body)}`)
        // Only recursive schemas may fail to end.
        if (name.includes('itself') && reply.body.done_reason === 'length') continue
        t.equal(reply.body.done_reason, 'stop', name)
        t.ok(isValid(JSON.parse(answer)), `${name}: ${answer}`)
      }
    })
  )
})

t.test('the format "json" gives JSON, streamed and whole', async t => {
  const ask = { model: DEMO, prompt: 'What is the capital of France? Answer in JSON.', format: 'json' }
  const options = { temperature: 0, max_tokens: 400 }
  const { body } = await corral.json('/api/generate', { ...ask, options, stream: false })
  if (body.done_reason === 'stop') t.type(JSON.parse(body.response), 'object')
  else t.equal(body.done_reason, 'length')
  t.match(body.response, /^\s*\{/)
  const streamed = await corral.events('/api/generate', { ...ask, options })
  t.equal(streamed.map(event => event.response).join(''), body.response)
})

t.test('an answer truncated by max_tokens is reported as truncated and not changed', async t => {
  const format = object({ items: { type: 'array', items: word, minItems: 50, maxItems: 60 } })
  for (const stream of [false, true]) {
    const ask = { model: DEMO, messages: [{ role: 'user', content: 'Count.' }], format, options: { max_tokens: 12 } }
    const reply = stream
      ? await corral.events('/api/chat', ask)
      : [(await corral.json('/api/chat', { ...ask, stream })).body]
    t.match(reply.at(-1), { done: true, done_reason: 'length', eval_count: 12 })
    const answer = reply.map(event => event.message?.content ?? '').join('')
    t.match(answer, /^\s*\{/)
    t.throws(() => JSON.parse(answer), 'it is not closed artificially')
  }
  const chat = { model: DEMO, messages: [{ role: 'user', content: 'Count.' }], max_tokens: 12 }
  const { body } = await corral.json('/v1/chat/completions', {
    ...chat,
    response_format: { type: 'json_schema', json_schema: { name: 'a', schema: format } }
  })
  t.equal(body.choices[0].finish_reason, 'length')
})

t.test('an invalid schema is refused', async t => {
  const chat = { model: DEMO, messages: [{ role: 'user', content: 'Hello' }], stream: false }
  for (const format of invalid_formats) {
    const { status, body } = await corral.json('/api/chat', { ...chat, format })
    t.match({ status, body }, { status: 400, body: { code: 'invalid_request' } }, JSON.stringify({ format, body }))
  }
})

t.test('an answer with a response format can be continued unless it has special tokens', async t => {
  const format = object({ a: word })
  const chat = (content: string) => ({
    model: DEMO,
    messages: [
      { role: 'user', content: 'Hello' },
      { role: 'assistant', content }
    ],
    max_tokens: 100,
    response_format: { type: 'json_schema', json_schema: { name: 'a', schema: format } }
  })
  const { body } = await corral.json('/v1/chat/completions', chat('{"a'))
  t.match(JSON.parse(body.choices[0].message.content), { a: String })
  const before = corral.enginePids()
  for (const marked of ['{"a</s>', '<|im_end|>']) {
    t.match(await corral.json('/v1/chat/completions', chat(marked)), {
      status: 400,
      body: { error: { code: 'invalid_request', param: 'messages', message: /special tokens of the model/ } }
    })
  }
  const native = { model: DEMO, messages: chat('</s>').messages, format, stream: false }
  t.match(await corral.json('/api/chat', native), { status: 400, body: { code: 'invalid_request' } })
  t.same(corral.enginePids(), before, 'no engine ended because of it')
  const tool = { type: 'function', function: { name: 'f', parameters: { type: 'object', properties: {} } } }
  const unread = { model: DEMO, messages: chat('<tool_call>').messages, tools: [tool], temperature: 0, max_tokens: 30 }
  t.match(await corral.json('/v1/chat/completions', unread), {
    status: 400,
    body: { error: { code: 'unsupported_capability' } }
  })
})

t.test('unenforced parts of a JSON schema are reported on every API', async t => {
  const schema = object({ price: { type: 'number', minimum: 2.5 } })
  const messages = [{ role: 'user', content: 'What does it cost?' }]
  const named = { type: 'json_schema', name: 'a', schema }
  const asks: [path: string, body: object][] = [
    ['/api/chat', { messages, format: schema }],
    ['/api/generate', { prompt: 'x', format: schema }],
    ['/v1/chat/completions', { messages, response_format: { type: 'json_schema', json_schema: named } }],
    ['/v1/responses', { input: 'x', text: { format: named } }],
    ['/v1/messages', { messages, max_tokens: 5, output_config: { format: named } }]
  ]
  for (const [path, body] of asks) {
    for (const stream of [false, true]) {
      const reply = await corral.send(path, { model: DEMO, ...body, stream, options: { max_tokens: 5 } })
      t.equal(reply.status, 200, await reply.text())
      for (const name of ['x-corral-unenforced-schema', 'x-corral-unheeded-schema']) {
        t.equal(reply.headers.get(name), '#/properties/price/minimum', `${path}, stream ${stream}`)
      }
    }
  }
})

t.test('contradictory schemas are refused by every API and affect no other client', async t => {
  const asks = readCases<[path: string, body: object, place?: RegExp][]>('service-cases.yaml', 'contradictions')
  const ended = new AbortController()
  const story = {
    model: DEMO,
    messages: [{ role: 'user', content: 'Tell me a story.' }],
    options: { num_predict: -1, ignore_eos: true }
  }
  const reply = await corral.send('/api/chat', story, { signal: ended.signal })
  const reader = reply.body!.getReader()
  await reader.read()
  const engines = corral.enginePids()
  for (const [path, body, place = /#\/properties\/code\/minLength /] of asks) {
    const { status, body: answer } = await corral.json(path, { model: DEMO, ...body })
    const text = JSON.stringify(answer).replaceAll('\\"', '"')
    t.equal(status, 400, `${path} ${Object.keys(body)}: ${text}`)
    t.match(text, /invalid_request/, path)
    t.match(text, place, path)
  }
  t.same(corral.enginePids(), engines)
  t.notOk((await reader.read()).done, 'the other answer continues')
  ended.abort()
})
