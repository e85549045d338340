import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { readCases } from '../../../support/cases.ts'
import { until } from '../../../support/corral.ts'
import { answers, chat, DONE, event, MODEL, scriptedService, splitError } from './scripted-service.ts'
import { eventStream, jsonResponse, type Responder, variantOf } from './support.ts'

t.test('bytes of the engine pass through unchanged', async t => {
  const text = `${event('ä')}: a comment\n${event('b')}${DONE}`
  const { send, idle } = await scriptedService(t, [answers(text)])
  const response = await send('/chat/completions', chat, { headers: { accept: 'application/json' } })
  t.equal(response.status, 200)
  t.equal(response.headers.get('content-type'), 'text/event-stream')
  t.equal(response.headers.get('cache-control'), 'no-cache, no-transform')
  t.equal(response.headers.get('x-accel-buffering'), 'no')
  t.ok(response.headers.get('x-request-id'))
  t.equal(await response.text(), text)
  await idle()
  const tagged = await send('/chat/completions', { ...chat, model: 'Corral/Tiny-Chat:latest' })
  t.equal(await tagged.text(), text.replaceAll(`"model":"${MODEL}"`, '"model":"Corral/Tiny-Chat:latest"'))
})

t.test('a stream that ends early ends with an error and without [DONE]', async t => {
  for (const [what, chunks, before] of [
    ['between events', [event('a')], event('a')],
    ['within an event', [event('a'), event('b').slice(0, 20)], event('a')],
    ['after one line feed', [event('a'), event('b').slice(0, -1)], event('a')]
  ] as const) {
    const { send, idle } = await scriptedService(t, [answers(...chunks)])
    const text = await (await send('/chat/completions', chat)).text()
    const found = splitError(text)
    t.equal(found.before, before, what)
    t.match(found.error, {
      code: 'engine_crashed',
      type: 'server_error',
      param: null,
      message: /ended its answer early/
    })
    await idle()
  }
})

t.test('an empty stream is retried once, then answered with an error status', async t => {
  let asked = 0
  const { send, engines } = await scriptedService(t, [
    (request, engine) => {
      asked++
      return answers()(request, engine)
    }
  ])
  const response = await send('/chat/completions', chat)
  t.equal(response.status, 500)
  t.equal(asked, 2)
  t.match(await response.json(), { error: { code: 'engine_crashed' } })
  t.notOk(response.headers.get('x-should-retry'), 'a client may retry')
  t.equal(engines.length, 1)
})

t.test('headers that come too late are comments of the stream', async t => {
  let asked = 0
  const full = { type: 'exceed_context_size_error', message: 'Full.', n_prompt_tokens: 9000, n_ctx: 4096 }
  const { send } = await scriptedService(
    t,
    [
      async () => {
        if (asked++ > 0) {
          const response = eventStream()
          response.body.end(`${event('a')}${DONE}`)
          return response
        }
        await sleep(200)
        return jsonResponse(400, { error: full })
      }
    ],
    { heartbeat: 20 }
  )
  const turns = ['user', 'assistant', 'user'].map(role => ({ role, content: 'a' }))
  const long = { ...chat, messages: turns, context_overflow: 'drop_oldest' }
  const text = await (await send('/chat/completions', long)).text()
  t.match(text, /\n: x-corral-dropped-messages: 2\n\ndata: .*"content":"a"/)
})

t.test('an answer that repeats itself ends as if it had reached its limit', async t => {
  const sentence = 'Wait, I should read the file again before I change anything in it. '
  const endless: Responder = ({ path }) => {
    if (path.endsWith('/input_tokens')) return jsonResponse(200, { input_tokens: 7 })
    const response = eventStream()
    for (let count = 0; count < 5000; count++) response.body.write(event(sentence))
    return response
  }
  const { send, idle } = await scriptedService(t, [endless])
  const text = await (await send('/chat/completions', { ...chat, stream_options: { include_usage: true } })).text()
  const last = text.split('\n\n').slice(-6)
  t.match(last[0], sentence, 'the answer itself is complete up to there')
  t.equal(last[1], ': x-corral-stopped: repeats')
  t.match(JSON.parse(last[2]!.slice(6)), { choices: [{ finish_reason: 'length', delta: {} }] })
  const { prompt_tokens, completion_tokens } = JSON.parse(last[3]!.slice(6)).usage
  t.equal(prompt_tokens, 7)
  t.ok(completion_tokens > 1000 && completion_tokens < 4000, `${completion_tokens} tokens`)
  t.same(text.slice(-14), 'data: [DONE]\n\n')
  await idle()

  const whole = await send('/chat/completions', { ...chat, stream: false })
  t.equal(whole.headers.get('x-corral-stopped'), 'repeats')
  t.match(await whole.json(), { choices: [{ finish_reason: 'length', message: { content: sentence.repeat(500) } }] })
  await idle()
})

t.test('an engine that dies before it answers is replaced once', async t => {
  const dies: Responder = (_request, engine) => {
    engine.crash()
    return new Promise(() => {})
  }
  const fine = await scriptedService(t, [dies, answers(event('a'), DONE)])
  const response = await fine.send('/chat/completions', chat)
  t.equal(await response.text(), event('a') + DONE)
  t.equal(fine.engines.length, 2)

  const whole = await scriptedService(t, [dies, answers(event('back'), DONE)])
  t.match(await whole.json('/chat/completions', { ...chat, stream: false }), {
    status: 200,
    body: { choices: [{ message: { content: 'back' } }] }
  })
  t.equal(whole.engines.length, 2)

  const hopeless = await scriptedService(t, [dies])
  const failed = await hopeless.json('/chat/completions', chat)
  t.equal(failed.status, 500)
  t.match(failed.body.error, { code: 'engine_crashed', type: 'server_error' })
  t.equal(hopeless.engines.length, 2)
})

t.test('a crash in the middle of an answer ends the stream with an error', async t => {
  const { send, engines, idle } = await scriptedService(t, [
    async (_request, engine) => {
      const response = eventStream()
      response.body.write(event('a'))
      setTimeout(() => engine.crash(), 20)
      return response
    },
    answers(event('new'), DONE)
  ])
  const found = splitError(await (await send('/chat/completions', chat)).text())
  t.equal(found.before, event('a'))
  t.match(found.error, { code: 'engine_crashed' })
  await idle()
  t.equal(engines.length, 1, 'an answer that has started is not retried')
  t.equal(await (await send('/chat/completions', chat)).text(), event('new') + DONE, 'the next request is answered')
})

t.test("the engine's own error in a stream is reported", async t => {
  const error = '{"error":{"code":500,"message":"Compute error.","type":"server_error"}}'
  const { send, log, idle } = await scriptedService(t, [answers(event('a'), `${event('b')}data: ${error}\n\n`)])
  const found = splitError(await (await send('/chat/completions', chat)).text())
  t.equal(found.before, event('a') + event('b'))
  t.match(found.error, { code: 'internal', type: 'server_error', message: /Compute error/ })
  t.ok(
    log.some(line => line.includes('Compute error')),
    'the error is logged'
  )
  await idle()
})

t.test('engine errors become an error status, streamed or not', async t => {
  for (const [status, body, wanted, { message, ...fields }] of readCases('openai-answer').engineFaults) {
    const { json, idle } = await scriptedService(t, [() => jsonResponse(status, body)])
    for (const stream of [true, false]) {
      const reply = await json('/chat/completions', { ...chat, stream })
      t.equal(reply.status, wanted)
      t.match(reply.headers.get('content-type'), 'application/json')
      t.match(reply.body.error, { ...fields, message: new RegExp(message) })
      t.equal(reply.headers.get('x-should-retry'), wanted === 500 ? 'false' : null)
      t.equal(reply.headers.get('retry-after'), wanted === 503 ? '1' : null)
    }
    await idle()
  }
})

t.test('an answer ends when its model is stopped, deleted or shut down', async t => {
  const hangs: Responder = () => {
    const response = eventStream()
    response.body.write(event('a'))
    return response
  }
  const silent: Responder = () => new Promise(() => {})
  const name = { owner: 'corral', name: 'tiny-chat' }
  type Fixture = Awaited<ReturnType<typeof scriptedService>>
  for (const [code, act] of [
    ['model_stopped', (fixture: Fixture) => fixture.scheduler.stop(name)],
    ['model_deleted', (fixture: Fixture) => fixture.storage.drop('corral/tiny-chat:f16')],
    ['shutting_down', (fixture: Fixture) => fixture.scheduler.close(1)]
  ] as const) {
    const begun = await scriptedService(t, [hangs])
    const response = await begun.send('/chat/completions', chat)
    await act(begun)
    const found = splitError(await response.text())
    t.equal(found.before, event('a'))
    t.match(found.error, { code, type: 'server_error' })

    for (const stream of [true, false]) {
      const waiting = await scriptedService(t, [silent])
      const reply = waiting.json('/chat/completions', { ...chat, stream })
      await until('the request runs', () => waiting.scheduler.running()[0]?.running === 1)
      await act(waiting)
      t.match(await reply, { status: 503, body: { error: { code } } })
      t.equal((await reply).headers.get('x-should-retry'), 'false')
    }
  }
})

t.test('settings of the model and the server are the defaults of a request', async t => {
  const bodies: Record<string, unknown>[] = []
  const { json } = await scriptedService(
    t,
    [
      request => {
        bodies.push(JSON.parse(String(request.body)))
        return jsonResponse(200, { model: MODEL })
      }
    ],
    { defaults: { temperature: 0.1, min_p: 0.05 }, models: { 'CORRAL/tiny-chat': { options: { top_k: 7 } } } }
  )
  await json('/chat/completions', { ...chat, stream: false, options: { top_p: 0.5 } })
  t.match(bodies[0], { temperature: 0.1, min_p: 0.05, top_k: 7, top_p: 0.5, max_tokens: 2048, seed: -1 })
  for (const name of ['num_ctx', 'options', 'keep_alive', 'dtype']) t.notOk(name in bodies[0]!)
})

t.test('invalid requests are refused without loading a model', async t => {
  const { json, send, url } = await scriptedService(t, [answers(event('a'), DONE)])
  const deep = `{"model":"${MODEL}","messages":[{"content":"x"}],"x":${'['.repeat(200_000)}${']'.repeat(200_000)}}`
  const table: [path: string, body: unknown, status: number, error: object][] = [
    ['/nothing', undefined, 404, { code: 'route_not_found', type: 'not_found_error', message: String, param: null }],
    ['', undefined, 404, { code: 'route_not_found' }],
    ['/chat/completions', undefined, 405, { code: 'method_not_allowed', type: 'invalid_request_error' }],
    ['/models', {}, 405, { code: 'method_not_allowed' }],
    ['/chat/completions', '{"model":', 400, { code: 'invalid_json' }],
    ['/chat/completions', '', 400, { code: 'missing_body' }],
    ['/chat/completions', '[]', 400, { code: 'invalid_request' }],
    ['/chat/completions', '{}', 400, { code: 'invalid_request', param: 'messages' }],
    ['/chat/completions', { messages: chat.messages }, 400, { code: 'invalid_model_name', param: 'model' }],
    ['/chat/completions', { ...chat, model: 'no/such' }, 404, { code: 'model_not_found', type: 'not_found_error' }],
    ['/chat/completions', { ...chat, model: 'no/such' }, 404, { param: 'model' }],
    ['/chat/completions', { ...chat, model: 'a/../b' }, 400, { code: 'invalid_model_name' }],
    ['/chat/completions', { ...chat, temperature: 'x' }, 400, { code: 'invalid_option', param: 'temperature' }],
    ['/chat/completions', { ...chat, user: 'x'.repeat(2 ** 20) }, 413, { code: 'body_too_large' }],
    ['/chat/completions', deep, 400, { code: 'over_limit' }]
  ]
  for (const [path, body, status, error] of table) t.match(await json(path, body), { status, body: { error } }, path)
  t.equal((await json('/chat/completions')).headers.get('allow'), 'POST')
  const form = await send(
    '/chat/completions',
    { ...chat, stream: false },
    { headers: { 'content-type': 'text/plain' } }
  )
  t.equal(form.status, 200, 'a body is parsed as JSON regardless of its type')
  t.equal(
    (await fetch(`${url}/chat/completions/`, { method: 'POST', body: '{}' })).status,
    400,
    'a trailing slash is accepted'
  )
})

t.test('a model without text generation refuses chats and can tokenize', async t => {
  const { json } = await scriptedService(t, [() => jsonResponse(200, { tokens: [] })], {
    variants: [variantOf('corral', 'tiny-chat', { capabilities: ['embedding'] })]
  })
  t.match(await json('/chat/completions', chat), { status: 400, body: { error: { code: 'unsupported_capability' } } })
  t.match(await json('/tokenize', { model: MODEL, content: 'x' }), { status: 200, body: { tokens: [] } })
})
