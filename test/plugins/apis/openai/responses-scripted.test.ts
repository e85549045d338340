import { setTimeout as sleep } from 'node:timers/promises'
import OpenAI from 'openai'
import type { ResponseStreamEvent } from 'openai/resources/responses/responses'
import t from 'tap'
import { CorralError } from '../../../../core/errors.ts'
import { DEMO } from '../../../support/corral.ts'
import { each } from '../../../support/each.ts'
import { failure } from '../../../support/failure.ts'
import { mustBe, typeFaults } from './declared-types.ts'
import { checkEvents, collectEvents } from './response-events.ts'
import { eventStream, fakeEngine, type Responder, startService, variantOf } from './support.ts'

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
  t.match(asked[0], { reasoning_effort: 'low', timings_per_token: true, stream: true })

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

t.test('replies have the types that the official client declares', async t => t.equal(typeFaults(), ''))
