import { setTimeout as sleep } from 'node:timers/promises'
import OpenAI from 'openai'
import type { ResponseStreamEvent } from 'openai/resources/responses/responses'
import t from 'tap'
import { CorralError } from '../../../../core/errors.ts'
import { DEMO } from '../../../support/corral.ts'
import { each } from '../../../support/each.ts'
import { failure } from '../../../support/failure.ts'
import { checkEvents, collectEvents, mustBe, typeFaults } from './declared-types.ts'
import { eventStream, fakeEngine, jsonResponse, type Responder, startService, TOOL, variantOf } from './support.ts'

// Features that the demo model lacks, tested with scripted engines.
const CAPITAL = 'What is the capital of France?'

t.test('reasoning is returned, counted and continued', async t => {
  const chunk = (delta: object, predicted_n: number, more: object = {}) =>
    `data: ${JSON.stringify({
      choices: [{ index: 0, delta, finish_reason: null, ...more }],
      timings: { cache_n: 3, prompt_n: 4, prompt_ms: 1, predicted_n, predicted_ms: 1 }
    })}\n\n`
  const asked: any[] = []
  const respond: Responder = request => {
    asked.push(JSON.parse(String(request.body)))
    const response = eventStream()
    response.body.write(chunk({ reasoning_content: 'France ' }, 2))
    response.body.write(chunk({ reasoning_content: 'has Paris.' }, 5))
    response.body.write(chunk({ content: 'Paris.' }, 9))
    response.body.end(`${chunk({}, 10, { finish_reason: 'stop' })}data: [DONE]\n\n`)
    return response
  }
  const { url } = await startService(t, {
    variants: [variantOf('corral', 'thinker', { capabilities: ['completion', 'thinking'] })],
    startEngine: async spec => fakeEngine(spec, respond)
  })
  const thinking = new OpenAI({ baseURL: url, apiKey: 'any', maxRetries: 0 })
  const model = 'corral/thinker'
  const first = await thinking.responses.create({ model, input: CAPITAL, reasoning: { effort: 'low' } })
  mustBe('Response', first)
  t.equal(first.output_text, 'Paris.')
  t.match(first.output[0], { type: 'reasoning', content: [{ type: 'reasoning_text', text: 'France has Paris.' }] })
  t.match(first.usage, {
    input_tokens: 7,
    input_tokens_details: { cached_tokens: 3 },
    output_tokens: 10,
    output_tokens_details: { reasoning_tokens: 5 }
  })
  t.match(first.reasoning, { effort: 'low' })
  t.match(asked[0], { thinking_budget_tokens: 1536, timings_per_token: true, stream: true })

  const events = await collectEvents(
    await thinking.responses.create({ model, input: 'And Italy?', previous_response_id: first.id, stream: true })
  )
  checkEvents(t, events)
  t.equal(
    events.flatMap(event => (event.type === 'response.reasoning_text.delta' ? [event.delta] : [])).join(''),
    'France has Paris.'
  )
  t.strictSame(asked[1].messages, [
    { role: 'user', content: CAPITAL },
    { role: 'assistant', reasoning_content: 'France has Paris.', content: 'Paris.' },
    { role: 'user', content: 'And Italy?' }
  ])
})

t.test('images are passed to the engine, and invalid ones are refused', async t => {
  const asked: any[] = []
  const { json } = await startService(t, {
    variants: [variantOf('corral', 'seer', { capabilities: ['completion', 'vision'] })],
    startEngine: async spec =>
      fakeEngine(spec, request => {
        asked.push(JSON.parse(String(request.body)))
        const response = eventStream()
        response.body.end('data: {"choices":[{"index":0,"delta":{"content":"Red."},"finish_reason":"stop"}]}\n\n')
        return response
      })
  })
  const ask = (image_url: unknown) =>
    json('/responses', {
      model: 'corral/seer',
      instructions: 'Look.',
      input: [
        {
          role: 'user',
          content: [
            { type: 'input_text', text: 'Which colour?' },
            { type: 'input_image', image_url }
          ]
        }
      ]
    })
  const pixel =
    'data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=='
  const seen = await ask(pixel)
  t.match(seen, { status: 200, body: { output: [{ content: [{ text: 'Red.' }] }] } })
  t.strictSame(asked[0].messages[1].content, [
    { type: 'text', text: 'Which colour?' },
    { type: 'image_url', image_url: { url: pixel } }
  ])
  for (const [image, message] of [
    ['http://169.254.169.254/', /is a URL/],
    ['file:///etc/passwd', /is a URL/],
    [undefined, /no data/],
    ['data:image/png;base64,AAAA', /PNG/]
  ] as const) {
    t.match(await ask(image), {
      status: 400,
      body: { error: { code: 'invalid_request', param: 'input[0].content[1]', message } }
    })
  }
  t.equal(asked.length, 1)
})

t.test('a failed load after the headers is reported as an event', async t => {
  const { url, send } = await startService(t, {
    variants: [variantOf('corral', 'tiny-chat')],
    heartbeat: 20,
    startEngine: async () => {
      await sleep(200)
      throw new CorralError('load_failed', 'It did not load.')
    }
  })
  const text = await (await send('/responses', { model: DEMO, input: 'Hi', stream: true })).text()
  t.match(text, /^: /, 'comments are sent while the model loads')
  const impatient = new OpenAI({ baseURL: url, apiKey: 'any', maxRetries: 0 })
  const events: ResponseStreamEvent[] = []
  const stream = impatient.responses.stream({ model: DEMO, input: 'Hi' })
  stream.on('event', event => void events.push(event))
  const error = await failure(stream.finalResponse())
  t.ok(error instanceof OpenAI.APIError)
  t.match(error, { code: 'load_failed', message: /did not load/ })
  checkEvents(t, events)
  t.strictSame([...new Set(each(events, 'type'))], ['response.created', 'response.in_progress', 'response.failed'])
})

const CODEX = { originator: 'codex_exec' }

t.test('Codex gets failures of the server in the stream, with codes that say whether to ask again', async t => {
  const ask = async (failure: CorralError, headers: Record<string, string> = {}) => {
    const startEngine = () => Promise.reject(failure)
    const { send } = await startService(t, { variants: [variantOf('corral', 'tiny-chat')], startEngine })
    const reply = await send('/responses', { model: DEMO, input: 'Hi', stream: true }, { headers })
    return { status: reply.status, retryAfter: reply.headers.get('retry-after'), text: await reply.text() }
  }
  const broken = new CorralError('load_failed', 'It did not load.')
  t.match(await ask(broken), { status: 500, text: /"code":"load_failed"/ })
  t.match(await ask(broken, CODEX), {
    status: 200,
    text: /^event: response.created\n[\s\S]*"error":{"code":"invalid_prompt","message":"It did not load[\s\S]*event: error\n/
  })
  const away = new CorralError('engine_unreachable', 'It is away.', { retryAfter: 5 })
  t.match(await ask(away), { status: 503, retryAfter: '5' })
  t.match(await ask(away, CODEX), { status: 200, text: /"error":{"code":"server_error","message":"It is away/ })
  const long = new CorralError('context_exceeded', 'It is too long.')
  t.match(await ask(long, CODEX), { status: 200, text: /"error":{"code":"context_length_exceeded"/ })
  const full = new CorralError('queue_full', 'All are busy.', { retryAfter: 2 })
  const later = '"error":{"code":"rate_limit_exceeded","message":"All are busy. Try again in 2 s."'
  t.match(await ask(full, CODEX), { status: 200, text: later })
})

t.test('a summary replaces the conversation', async t => {
  const asked: any[] = []
  let summary = '<summary>We name a boat.</summary>'
  const respond: Responder = ({ path, body }) => {
    const request = JSON.parse(String(body))
    if (path.endsWith('/input_tokens')) return jsonResponse(200, { input_tokens: 500 })
    asked.push(request)
    const text = /Write a summary of this conversation/.test(JSON.stringify(request.messages.at(-1)))
      ? summary
      : 'Anna.'
    const response = eventStream()
    const timings = { cache_n: 3, prompt_n: 4, prompt_ms: 1, predicted_n: 5, predicted_ms: 1 }
    response.body.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: text } }] })}\n\n`)
    const end = { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }], timings }
    response.body.end(`data: ${JSON.stringify(end)}\n\ndata: [DONE]\n\n`)
    return response
  }
  const { url, json } = await startService(t, {
    variants: [variantOf('corral', 'tiny-chat')],
    startEngine: async spec => fakeEngine(spec, respond)
  })
  const client = new OpenAI({ baseURL: url, apiKey: 'any', maxRetries: 0 })
  const input: OpenAI.Responses.ResponseInput = [
    { role: 'developer', content: 'Be brief.' },
    { role: 'user', content: 'Name my boat.' },
    { type: 'function_call', call_id: 'call_1', name: 'look', arguments: '{}' },
    { type: 'function_call_output', call_id: 'call_1', output: 'blue' },
    { role: 'assistant', content: 'Which colour?' },
    { role: 'user', content: 'Blue.' }
  ]
  const request = { model: DEMO, input, tools: [TOOL as never], instructions: 'You are Leo.' }
  const whole = await client.responses.compact({ ...request, stream: false } as never)
  t.match(whole, { object: 'response.compaction', usage: { input_tokens: 7, output_tokens: 5 } })
  t.strictSame(each(whole.output, 'type'), ['message', 'message', 'compaction'])
  t.match(asked[0].messages[0], { role: 'system', content: /^You are Leo/ })
  t.match(asked[0], { tool_choice: 'none', tools: [{ function: { name: 'look' } }] }, 'the prompt stays in the cache')
  t.notMatch(JSON.stringify(whole.output.at(-1)), /boat/)

  // As Codex sends it, and reads the answer.
  const trigger = { type: 'compaction_trigger' as const }
  const events = await collectEvents(
    await client.responses.create({ ...request, input: [...input, trigger], store: false, stream: true })
  )
  checkEvents(t, events)
  const done = events.filter(event => event.type === 'response.output_item.done')
  t.match(done, [{ item: { type: 'compaction', encrypted_content: /./ } }])
  t.match(events.at(-1), { type: 'response.completed', response: { usage: { input_tokens: 7 } } })
  const { item } = done[0] as { item: { encrypted_content: string } }

  const continued = [...input, item as never, { role: 'user' as const, content: 'Well?' }]
  t.equal((await client.responses.create({ ...request, input: continued })).output_text, 'Anna.')
  const { messages } = asked.at(-1)
  t.strictSame(each(messages, 'role'), ['system', 'user', 'user'])
  t.match(messages[0].content, /You are Leo.*Be brief/s)
  t.match(messages[1].content, /We name a boat.*Name my boat.*Blue\./s, 'the latest messages are kept word for word')
  const window = [...whole.output, { role: 'user' as const, content: 'Well?' }]
  await client.responses.create({ ...request, input: window as never })
  t.match(asked.at(-1).messages[1].content, /We name a boat.*Name my boat/s, 'the compacted window means the same')

  const marked = (text: string) => `corral-summary:${Buffer.from(text).toString('base64')}`
  const huge = marked(JSON.stringify({ text: 'x'.repeat(100_000), keep: 1 }))
  for (const encrypted_content of ['gAAAAforeign', 'corral-summary:', marked('[1]'), marked('{"text": 7}'), huge]) {
    await client.responses.create({ ...request, input: [...input, { type: 'compaction', encrypted_content }] })
    t.strictSame(each(asked.at(-1).messages, 'role'), ['system', 'user', 'assistant', 'tool', 'assistant', 'user'])
  }

  const managed = (compact_threshold: number) => ({
    ...request,
    context_management: [{ type: 'compaction', compact_threshold }]
  })
  const above = await collectEvents(await client.responses.create({ ...managed(499), stream: true }))
  checkEvents(t, above)
  const { response } = above.at(-1) as { response: OpenAI.Responses.Response }
  t.strictSame(each(response.output, 'type'), ['compaction', 'message'])
  t.match(asked.at(-1).messages, [{ role: 'system' }, { role: 'user', content: /We name a boat.*Blue\./s }])
  mustBe('Response', response)
  t.equal(asked.at(-1).messages.length, 2)
  const below = await client.responses.create(managed(500))
  t.strictSame(each(below.output, 'type'), ['message'])
  const more = await client.responses.create({ ...request, input: 'And?', previous_response_id: response.id })
  t.equal(more.output_text, 'Anna.')
  t.match(asked.at(-1).messages.slice(1), [{ content: /We name a boat/ }, { content: 'Anna.' }, { content: 'And?' }])

  summary = '<summary> </summary>'
  t.match(await json('/responses/compact', request), { status: 400, body: { error: { message: /wrote no summary/ } } })
  t.match(await json('/responses', { ...request, context_management: [{ type: 'other' }] }), {
    status: 400,
    body: { error: { param: 'context_management[0].type' } }
  })
})

t.test('replies have the types that the official client declares', async t => t.equal(typeFaults(), ''))
