import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { request as httpRequest, type IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import t from 'tap'
import { CorralError } from '../../../../core/errors.ts'
import type { EngineRequest } from '../../../../runtimes/llama-server/upstream.ts'
import { until } from '../../../support/corral.ts'
import { engineBody } from '../../../support/engine-body.ts'
import { checkEvents } from './declared-types.ts'
import { answers, chat, DONE, event, MODEL, neverLoads, scriptedService, splitError } from './scripted-service.ts'
import { closed, eventStream, fakeEngine, jsonResponse, type Responder, type ServiceOptions } from './support.ts'

t.test('a disconnecting client ends its answer in the engine', async t => {
  const requests: EngineRequest[] = []
  const bodies: Readable[] = []
  const fixture = await scriptedService(t, [
    request => {
      // The tokens of an aborted answer are counted.
      if (request.path.endsWith('/input_tokens')) return jsonResponse(200, { input_tokens: 7 })
      requests.push(request)
      const response = eventStream()
      bodies.push(response.body)
      if (JSON.parse(String(request.body)).messages[0].content === 'hi') response.body.write(event('a'))
      return response
    }
  ])
  for (const [what, body] of [
    ['before the first byte of a stream', { ...chat, messages: [{ role: 'user', content: 'wait' }] }],
    ['before a whole answer', { ...chat, messages: [{ role: 'user', content: 'wait' }], stream: false }],
    ['in the middle', chat]
  ] as const) {
    const count = requests.length
    const controller = new AbortController()
    const reply = fixture.send('/chat/completions', body, { signal: controller.signal })
    if (body === chat) await (await reply).body!.getReader().read()
    else reply.catch(() => {})
    await until('the engine received the request', () => requests.length > count)
    t.notOk(bodies.at(-1)!.destroyed)
    controller.abort()
    await closed(bodies.at(-1)!)
    t.ok(bodies.at(-1)!.destroyed)
    await fixture.idle()
    t.pass(what)
  }
  t.notOk(
    fixture.log.some(line => line.includes('"level":50')),
    'no error is logged'
  )
})

t.test('a client that disconnects while the model loads leaves the queue', async t => {
  const fixture = await scriptedService(t, [], { startEngine: neverLoads })
  const controller = new AbortController()
  const reply = fixture.send('/chat/completions', chat, { signal: controller.signal })
  reply.catch(() => {})
  await until('the model is loading', () => fixture.scheduler.loading()[0]?.queued === 1)
  controller.abort()
  await until('the queue is empty', () => (fixture.scheduler.loading()[0]?.queued ?? 0) === 0)
  t.notOk(
    fixture.log.some(line => line.includes('"level":50')),
    'no error is logged'
  )
})

t.test('a slow reader causes back-pressure and loses nothing', async t => {
  const block = event(randomBytes(32 * 1024).toString('hex'))
  const total = 500
  let taken = 0
  const { url, idle } = await scriptedService(t, [
    () => {
      const source = function* () {
        for (; taken < total; taken++) yield Buffer.from(block)
        yield Buffer.from(DONE)
      }
      return { status: 200, body: engineBody(Readable.from(source(), { objectMode: false })) }
    }
  ])
  const request = httpRequest(`${url}/chat/completions`, { method: 'POST' })
  request.end(JSON.stringify(chat))
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  response.pause()
  let before = -1
  await until('the engine is no longer read', async () => {
    const still = taken === before
    before = taken
    await new Promise(resolve => setTimeout(resolve, 200))
    return still
  })
  t.ok(taken < total / 2, `${taken} of ${total} blocks were read from the engine`)
  let bytes = 0
  let tail = ''
  for await (const chunk of response) {
    bytes += chunk.length
    tail = (tail + chunk.toString('latin1')).slice(-DONE.length)
  }
  t.equal(bytes, total * block.length + DONE.length)
  t.equal(tail, DONE)
  await idle()
})

t.test('heartbeats contain the status, and later failures are sent in the stream', async t => {
  const slow = (end: 'loads' | 'fails'): Partial<ServiceOptions> => ({
    heartbeat: 30,
    startEngine: async (spec, { onProgress }) => {
      onProgress?.({ phase: 'building', subject: 'llama.cpp', fraction: 0.12 })
      await new Promise(resolve => setTimeout(resolve, 200))
      onProgress?.({ phase: 'loading', subject: '', fraction: 0.42 })
      await new Promise(resolve => setTimeout(resolve, 200))
      if (end === 'fails') throw new CorralError('load_failed', 'It is broken.')
      return fakeEngine(spec, answers(event('a'), DONE))
    }
  })
  const loading = await scriptedService(t, [], slow('loads'))
  const text = await (await loading.send('/chat/completions', chat)).text()
  t.match(text, /^(: [^\n]+\n\n)+data: /)
  t.match(text, ': building llama.cpp 12%\n\n')
  t.match(text, ': loading 42%\n\n')
  t.ok(text.endsWith(event('a') + DONE))

  const failing = await scriptedService(t, [], slow('fails'))
  const response = await failing.send('/chat/completions', chat)
  t.equal(response.status, 200)
  t.match(splitError(await response.text()).error, { code: 'load_failed', message: /broken/ })

  const early = await scriptedService(t, [], { ...slow('fails'), heartbeat: 10_000 })
  const status = await early.json('/chat/completions', chat)
  t.match(status, { status: 500, body: { error: { code: 'load_failed' } } })
  t.equal(status.headers.get('x-should-retry'), 'false')
})

t.test('a request is retried even after its stream has begun', async t => {
  const role =
    'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null}}],"id":"chatcmpl-00000000000000000000000000000000"}\n\n'
  const answer = answers(':\n\n', role + event('a'), event('b'), DONE)
  const retried = async (path: string, body: object, headers = {}) => {
    const crashes: Responder = async (_request, engine) => {
      await new Promise(resolve => setTimeout(resolve, 120))
      engine.crash()
      return await new Promise(() => {})
    }
    const { send, engines } = await scriptedService(t, [crashes, answer], { heartbeat: 30 })
    const text = await (await send(path, body, { headers })).text()
    t.equal(engines.length, 2)
    t.match(text, /^: [a-z]+\n\n/)
    const data = [...text.matchAll(/^data: (\{.*)$/gm)].map(([, json]) => JSON.parse(json!))
    return { text, data }
  }
  const roles = (data: any[]) => data.map(({ choices }) => choices[0].delta.role).filter(Boolean)
  // The engine's bytes are passed on unparsed, then parsed because of "functions".
  for (const more of [{}, { functions: [{ name: 'f', parameters: { type: 'object' } }] }]) {
    const { text, data } = await retried('/chat/completions', { ...chat, ...more })
    t.strictSame(roles(data), ['assistant'], 'the role is sent once')
    t.equal(new Set(data.slice(0, -2).map(({ id }) => id)).size, 1, 'with one id')
    t.equal(data.map(({ choices }) => choices[0].delta.content ?? '').join(''), 'ab')
    t.ok(text.endsWith(DONE))
  }
  const resumable = await retried('/chat/completions', chat, { 'x-corral-resumable': 'true' })
  const ids = [...resumable.text.matchAll(/^id: (\d+)$/gm)].map(([, id]) => Number(id))
  t.strictSame(
    ids,
    ids.map((_, index) => index + 1)
  )
  t.strictSame(roles(resumable.data), ['assistant'])
  const { data: events } = await retried('/responses', { model: MODEL, input: 'hi', stream: true })
  checkEvents(t, events)
  t.equal(events.filter(({ type }) => type === 'response.created').length, 1)
  t.match(events.at(-1), { type: 'response.completed', response: { output: [{ content: [{ text: 'ab' }] }] } })
})

t.test('a full queue refuses requests', async t => {
  const { json, send, scheduler } = await scriptedService(t, [], { maxQueue: 1, startEngine: neverLoads })
  const controller = new AbortController()
  const first = send('/chat/completions', chat, { signal: controller.signal })
  first.catch(() => {})
  await until('the first request waits', () => scheduler.loading()[0]?.queued === 1)
  const reply = await json('/chat/completions', chat)
  t.equal(reply.status, 503)
  t.match(reply.body.error, { code: 'queue_full', type: 'rate_limit_error' })
  t.ok(Number(reply.headers.get('retry-after')) >= 1)
  t.notOk(reply.headers.get('x-should-retry'))
  controller.abort()
})

t.test('concurrent requests share one engine', async t => {
  const { send, engines } = await scriptedService(t, [answers(event('a'), DONE)])
  const replies = await Promise.all(
    Array.from({ length: 50 }, async () => (await send('/chat/completions', chat)).text())
  )
  for (const text of replies) t.equal(text, event('a') + DONE)
  t.equal(engines.length, 1)
})

t.test('keep_alive sets when the model is unloaded', async t => {
  const { send, scheduler, idle } = await scriptedService(t, [answers(event('a'), DONE)])
  await (await send('/chat/completions', { ...chat, keep_alive: -1 })).text()
  await idle()
  t.equal(scheduler.running()[0]!.expiresAt, undefined)
  await (await send('/chat/completions', { ...chat, keep_alive: '0' })).text()
  await until('the model is unloaded', () => scheduler.running().length === 0)
})
