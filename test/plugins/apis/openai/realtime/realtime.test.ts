import { once } from 'node:events'
import { connect } from 'node:net'
import OpenAI from 'openai'
import { OpenAIRealtimeWS } from 'openai/realtime/ws'
import t, { type Test } from 'tap'
import { WebSocket } from 'ws'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, endless, startCorral, until } from '../../../../support/corral.ts'
import { importModels, MODELS, wavBytes, writeModels } from '../media/support.ts'

// The weights of the model that hears are random, so its transcripts are meaningless.
const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n  max_tokens: 16\n  num_ctx: 1024\n' })
await importModels(corral, await writeModels(t.testdir()))

interface Session {
  events: any[]
  send(type: string, more?: object): void
  /** Waits for the next event of a type. */
  next(type: string): Promise<any>
  socket: WebSocket
}

async function open(t: Test, query: string, headers: Record<string, string> = {}): Promise<Session> {
  const socket = new WebSocket(`${corral.url.replace('http', 'ws')}/v1/realtime?${query}`, { headers })
  t.teardown(() => socket.terminate())
  const events: any[] = []
  let seen = 0
  socket.on('message', data => events.push(JSON.parse(data.toString())))
  const session: Session = {
    events,
    socket,
    send: (type, more = {}) => socket.send(JSON.stringify({ type, ...more })),
    async next(type) {
      const find = () => events.findIndex((event, at) => at >= seen && event.type === type)
      await until(`an event ${type}: ${JSON.stringify(events.slice(seen)).slice(0, 500)}`, () => find() !== -1)
      const at = find()
      seen = at + 1
      return events[at]
    }
  }
  await once(socket, 'open')
  return session
}

const part = (content: object) => ({ type: 'message', role: 'user', content: [content] })
const said = (text: string) => ({ item: part({ type: 'input_text', text }) })
const tone = (seconds: number) =>
  wavBytes(1.5 * seconds)
    .subarray(44)
    .toString('base64')
const manual = { audio: { input: { turn_detection: null } } }

t.test('a session answers texts of the conversation', async t => {
  const session = await open(t, `model=${DEMO}`)
  t.match(await session.next('session.created'), { session: { type: 'realtime', model: DEMO } })
  session.send('session.update', { session: { type: 'realtime', output_modalities: ['text'], ...manual } })
  t.match(await session.next('session.updated'), {
    session: { output_modalities: ['text'], audio: { input: { turn_detection: null, format: { rate: 24_000 } } } }
  })
  session.send('conversation.item.create', said(CAPITAL_QUESTION.content))
  t.match(await session.next('conversation.item.added'), { previous_item_id: null, item: { role: 'user' } })
  session.send('response.create')
  t.match(await session.next('response.created'), { response: { status: 'in_progress' } })
  const done = await session.next('response.done')
  const usage = { input_tokens: Number, output_tokens: Number, total_tokens: Number }
  t.match(done.response, {
    status: 'completed',
    output: [{ role: 'assistant', content: [{ type: 'output_text', text: CAPITAL_ANSWER }] }],
    usage
  })
  t.ok(done.response.usage.output_tokens > 3)
  const deltas = session.events.filter(({ type }) => type === 'response.output_text.delta')
  t.equal(deltas.map(({ delta }) => delta).join(''), CAPITAL_ANSWER)
  const order = session.events.map(({ type }) => type).filter(type => /^response\.(?!output_text.delta)/.test(type))
  t.same(order, [
    'response.created',
    'response.output_item.added',
    'response.content_part.added',
    'response.output_text.done',
    'response.content_part.done',
    'response.output_item.done',
    'response.done'
  ])
  t.equal(new Set(session.events.map(({ event_id }) => event_id)).size, session.events.length, 'each event has an id')
  session.send('conversation.item.delete', { item_id: done.response.output[0].id })
  await session.next('conversation.item.deleted')
})

t.test('a session for transcription writes down committed recordings', async t => {
  const session = await open(t, 'intent=transcription')
  t.match(await session.next('session.created'), { session: { type: 'transcription' } })
  const transcription = { model: MODELS.hearing, language: 'en' }
  session.send('session.update', { session: { audio: { input: { transcription, turn_detection: null } } } })
  await session.next('session.updated')
  for (let piece = 0; piece < 4; piece++) session.send('input_audio_buffer.append', { audio: tone(0.5) })
  session.send('input_audio_buffer.commit')
  const { item_id } = await session.next('input_audio_buffer.committed')
  t.match(await session.next('conversation.item.added'), { item: { id: item_id, content: [{ type: 'input_audio' }] } })
  const completed = await session.next('conversation.item.input_audio_transcription.completed')
  t.match(completed, { item_id, content_index: 0, transcript: String, usage: { input_tokens: Number } })
  t.ok(completed.usage.input_tokens > 100, 'the audio was heard')
  session.send('input_audio_buffer.append', { audio: tone(1) })
  session.send('input_audio_buffer.clear')
  await session.next('input_audio_buffer.cleared')
  session.send('input_audio_buffer.commit')
  t.match(await session.next('error'), { error: { message: /shorter than 100 ms/ } })
  session.send('response.create')
  t.match(await session.next('error'), { error: { message: /no responses/ } })
  session.send('session.update', { session: { audio: { input: { transcription: { model: 'nobody/none' } } } } })
  await session.next('session.updated')
  session.send('input_audio_buffer.append', { audio: tone(1) })
  session.send('input_audio_buffer.commit')
  const failed = await session.next('conversation.item.input_audio_transcription.failed')
  t.match(failed, { error: { message: /nobody\/none/ } })
})

t.test('a session detects when someone has spoken', async t => {
  const session = await open(t, 'intent=transcription')
  const input = { transcription: { model: MODELS.hearing } }
  session.send('session.update', { session: { audio: { input } } })
  const silence = Buffer.alloc(48_000).toString('base64')
  session.send('input_audio_buffer.append', { audio: silence })
  session.send('input_audio_buffer.append', { audio: tone(1) })
  await session.next('input_audio_buffer.speech_started')
  t.notOk(session.events.some(({ type }) => type === 'input_audio_buffer.committed'))
  session.send('input_audio_buffer.append', { audio: silence })
  await session.next('input_audio_buffer.speech_stopped')
  await session.next('input_audio_buffer.committed')
  await session.next('conversation.item.input_audio_transcription.completed')
})

t.test('a cleared recording ends no speech', async t => {
  const session = await open(t, 'intent=transcription')
  session.send('input_audio_buffer.append', { audio: tone(1) })
  await session.next('input_audio_buffer.speech_started')
  session.send('input_audio_buffer.clear')
  session.send('input_audio_buffer.append', { audio: Buffer.alloc(48_000).toString('base64') })
  session.send('input_audio_buffer.clear')
  await session.next('input_audio_buffer.cleared')
  await session.next('input_audio_buffer.cleared')
  t.notOk(
    session.events.some(({ type }) => /error|speech_stopped/.test(type)),
    JSON.stringify(session.events)
  )
})

t.test('a response can be cancelled, and the session continues', async t => {
  const session = await open(t, `model=${DEMO}`)
  session.send('session.update', { session: { output_modalities: ['text'], max_output_tokens: 900 } })
  session.send('conversation.item.create', said(endless(DEMO).messages.at(-1)!.content as string))
  session.send('response.create')
  session.send('response.create')
  t.match(await session.next('error'), { error: { message: /in progress/ } })
  session.send('response.cancel', { event_id: 'mine' })
  t.match(await session.next('response.done'), { response: { status: 'cancelled' } })
  session.send('response.cancel', { event_id: 'mine' })
  t.match(await session.next('error'), { error: { event_id: 'mine', message: /no response/ } })
})

t.test('wrong events are refused and change nothing', async t => {
  const session = await open(t, `model=${DEMO}`)
  await session.next('session.created')
  const cases: [string | object, RegExp][] = [
    ['{', /not valid JSON/],
    ['[]', /no event of the type/],
    [{ type: 'constructor' }, /no event of the type/],
    [{ type: 'input_audio_buffer.append' }, /16 bits/],
    [{ type: 'input_audio_buffer.append', audio: 'AAAA' }, /16 bits/],
    [{ type: 'session.update', session: { audio: { input: { format: { type: 'audio/pcmu' } } } } }, /audio\/pcm/],
    [{ type: 'session.update', session: { tools: [{ type: 'function', name: 'x' }] } }, /no tools/],
    [{ type: 'conversation.item.create', item: { type: 'function_call_output' } }, /"message"/],
    [{ type: 'conversation.item.create', ...said('x'.repeat(300_000)) }, /262144/],
    [{ type: 'session.update', session: { instructions: 'x'.repeat(300_000) } }, /settings have more/],
    [{ type: 'session.update', session: { [`x${'x'.repeat(300_000)}`]: 1 } }, /settings have more/],
    [{ type: 'conversation.item.create', item: part({ type: 'x'.repeat(300_000), text: 'x' }) }, /must be one of/],
    [
      { type: 'conversation.item.create', item: part({ type: 'input_audio', transcript: 'x'.repeat(300_000) }) },
      /262144/
    ],
    [{ type: 'conversation.item.delete', item_id: 'x' }, /no item/]
  ]
  for (const [event, message] of cases) {
    session.socket.send(typeof event === 'string' ? event : JSON.stringify(event))
    t.match(await session.next('error'), { error: { message } }, JSON.stringify(event).slice(0, 100))
  }
  // The samples and the models for speech are missing, so the failure is reported in the response.
  session.send('conversation.item.create', said('Hello.'))
  session.send('response.create')
  const { response } = await session.next('response.done')
  t.match(response, { status: 'failed', status_details: { error: { code: 'model_not_found', message: /can speak/ } } })
  const none = await open(t, 'model=nobody/none')
  none.send('conversation.item.create', said('Hello.'))
  none.send('response.create', { response: { output_modalities: ['text'] } })
  t.match(await none.next('response.done'), { response: { status_details: { error: { message: /nobody\/none/ } } } })
})

t.test('a long conversation loses its oldest items', async t => {
  const session = await open(t, `model=${DEMO}`)
  const ids = Array.from({ length: 20 }, (_, at) => `item ${at}`)
  for (const id of ids) {
    const { item } = said('x'.repeat(250_000))
    session.send('conversation.item.create', { item: { id, ...item } })
  }
  session.send('conversation.item.delete', { item_id: ids[0] })
  t.match(await session.next('error'), { error: { message: /no item/ } })
  session.send('conversation.item.delete', { item_id: ids[19] })
  await session.next('conversation.item.deleted')
})

t.test('the OpenAI SDK holds a conversation', async t => {
  const client = new OpenAI({ baseURL: `${corral.url}/v1`, apiKey: 'any' })
  // The SDK insists on TLS. This leaves its requests as they are, and takes them to the test's server.
  const port = Number(new URL(corral.url).port)
  const createConnection = (() => connect(port, '127.0.0.1')) as never
  const realtime = new OpenAIRealtimeWS({ model: DEMO, options: { createConnection } }, client)
  t.teardown(() => realtime.close())
  realtime.on('error', error => t.fail(error.message))
  let text = ''
  realtime.on('response.output_text.delta', ({ delta }) => {
    text += delta
  })
  realtime.once('session.created', () => {
    realtime.send({ type: 'session.update', session: { type: 'realtime', output_modalities: ['text'] } })
    const content = [{ type: 'input_text' as const, text: CAPITAL_QUESTION.content }]
    realtime.send({ type: 'conversation.item.create', item: { type: 'message', role: 'user', content } })
    realtime.send({ type: 'response.create' })
  })
  await new Promise<void>(resolve => realtime.on('response.done', () => resolve()))
  t.equal(text, CAPITAL_ANSWER)
})

t.test('sessions are limited, and only for clients that may use the server', async t => {
  const status = async (query: string, headers = {}) => {
    const socket = new WebSocket(`${corral.url.replace('http', 'ws')}/v1/realtime?${query}`, { headers })
    t.teardown(() => socket.terminate())
    const [error] = await Promise.race([once(socket, 'error'), once(socket, 'open').then(() => [new Error('open')])])
    return error.message as string
  }
  t.match(await status('', { origin: 'https://evil.example' }), /403/)
  const plain = await corral.json('/v1/realtime', undefined)
  t.match(plain, { status: 426, body: { error: { code: 'websocket_refused', message: /only for WebSockets/ } } })
  const sessions: Session[] = []
  await until('the sessions of other tests have ended', async () => {
    const { length } = sessions
    if (length === 8) return true
    sessions.push(await open(t, `model=${DEMO}`))
    return false
  })
  t.match(await status(`model=${DEMO}`), /503|429/)
  sessions[0]!.socket.close()
  await until('one more is allowed', async () => (await status(`model=${DEMO}`)) === 'open')
})

t.test('sessions end when the server stops', async t => {
  const session = await open(t, `model=${DEMO}`)
  const closed = once(session.socket, 'close')
  void corral.end()
  t.equal((await closed)[0], 1001)
})
