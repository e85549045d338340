import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { SseParser } from '../../../../core/answers/openai-events.ts'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, endlessHosted, startCorral, until } from '../../../support/corral.ts'
import { RECORDED, type RecordedRequest } from '../../../support/llama-page.ts'
import { fetch } from '../../../support/quick-fetch.ts'
import { startBare } from './bare-server.ts'
import { follow } from './feed.ts'

const corral = await startCorral(t)
const bare = await startBare(t, join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf'))
const GREEDY = { temperature: 0, n_predict: 4 }
const PROMPT = 'The capital of France'
const messages = [CAPITAL_QUESTION]

async function ofBare(path: string, body?: object): Promise<any> {
  const init = body ? { method: 'POST', body: JSON.stringify(body) } : {}
  return await (await fetch(bare + path, init)).json()
}

async function eventsOf(address: string, body: object): Promise<any[]> {
  const reply = await fetch(address, { method: 'POST', body: JSON.stringify(body) })
  const lines = new SseParser()
  const events: any[] = []
  for await (const chunk of reply.body!) {
    for (const payload of lines.push(Buffer.from(chunk))) if (payload !== '[DONE]') events.push(JSON.parse(payload))
  }
  return events
}

/** Returns the names of fields that only the first object has. */
const missing = (wanted: object, got: object) => Object.keys(wanted).filter(name => !(name in got))

t.test('the llama-server API serves health, tools and router properties', async t => {
  t.strictSame((await corral.json('/health')).body, { status: 'ok' })
  t.strictSame((await corral.json('/v1/health')).body, { status: 'ok' })
  t.strictSame((await corral.json('/tools')).body, [])
  const { body } = await corral.json('/props')
  t.match(body, {
    role: 'router',
    models_autoload: true,
    max_instances: 3,
    model_path: 'none',
    default_generation_settings: { params: {}, n_ctx: 0 },
    ui_settings: {},
    build_info: /^corral-/,
    cors_proxy_enabled: false
  })
})

t.test('the feed reports loads and unloads', async t => {
  const row = async () => (await corral.json('/models')).body.data.find(({ id }: { id: string }) => id === DEMO)
  t.match(await row(), {
    status: { value: 'unloaded' },
    architecture: { input_modalities: ['text'], output_modalities: ['text'] },
    meta: { n_ctx: Number },
    aliases: [],
    tags: []
  })
  t.strictSame((await corral.json('/slots')).body, [])
  t.match(await corral.json(`/slots?model=${DEMO}`), {
    status: 404,
    body: { error: { corral_code: 'model_not_loaded' } }
  })
  const props = await corral.json(`/props?model=${DEMO}&autoload=false`)
  t.match(props, {
    status: 404,
    body: { error: { code: 404, type: 'not_found_error', corral_code: 'model_not_loaded' } }
  })
  t.match(await corral.json('/models/unload', { model: DEMO }), { status: 404 })

  const feed = await follow(corral)
  const other = await follow(corral)
  t.equal(feed.reply.headers.get('content-type'), 'text/event-stream')
  t.strictSame((await corral.json('/models/load', { model: DEMO })).body, { success: true })
  await until('the feed reports that the model is loaded', () => feed.statuses().includes('loaded'))
  t.strictSame([...new Set(feed.statuses())], ['loading', 'loaded'])
  t.match(feed.events[0], {
    model: DEMO,
    event: 'model_status',
    data: { status: 'loading', progress: { stages: Array } }
  })
  const loading = feed.events.filter(({ data }) => data.status === 'loading')
  t.ok(
    loading.every(({ data }) => typeof data.progress.value === 'number'),
    'every event has a progress value'
  )
  t.match(await row(), { status: { value: 'loaded' } })
  t.match((await corral.json(`/v1/models/${DEMO}`)).body, { status: { value: 'loaded' }, meta: { n_ctx: Number } })
  t.match(await corral.json('/models/load', { model: DEMO }), {
    status: 400,
    body: { error: { code: 400, type: 'invalid_request_error', message: /already/, param: 'model' } }
  })

  t.strictSame((await corral.json('/models/unload', { model: DEMO })).body, { success: true })
  await until('the feed reports that the model is unloaded', () => feed.statuses().at(-1) === 'unloaded')
  await until('the other feed reports it too', () => other.statuses().at(-1) === 'unloaded')
  t.match(feed.events.at(-1), { data: { exit_code: 0 } })
  feed.leave()
  other.leave()
  await Promise.all([feed.read, other.read])
  t.match(await corral.json('/models/load', { model: 'no/such-model' }), {
    status: 404,
    body: { error: { code: 404, corral_code: 'model_not_found' } }
  })
  t.match(await corral.json('/models/load', {}), {
    status: 400,
    body: { error: { corral_code: 'invalid_model_name' } }
  })
})

t.test('props and slots match those of llama-server', async t => {
  const { status, body } = await corral.json(`/props?model=${DEMO}`)
  t.equal(status, 200, 'the model is loaded automatically')
  const wanted = await ofBare('/props')
  t.strictSame(missing(wanted, body), ['media_marker'])
  t.strictSame(missing(wanted.default_generation_settings, body.default_generation_settings), [])
  t.match(body, { total_slots: Number, chat_template: wanted.chat_template, model_path: DEMO, model_alias: DEMO })
  t.match(body, { modalities: { vision: false, audio: false }, default_generation_settings: { n_ctx: Number } })
  t.equal(body.ui, true, "llama.cpp's page hides models with another value")

  const slots = (await corral.json('/slots')).body
  t.equal(slots.length, body.total_slots)
  t.strictSame(missing((await ofBare('/slots'))[0], slots[0]), [])
  t.match((await corral.json(`/slots?model=${DEMO}`)).body, slots)
  t.notMatch(JSON.stringify(slots), /prompt/)
})

t.test("completions match llama-server's own format", async t => {
  const whole = { prompt: PROMPT, ...GREEDY }
  const [own, wanted] = [
    (await corral.json('/completion', { model: DEMO, ...whole })).body,
    await ofBare('/completion', whole)
  ]
  t.strictSame(missing(wanted, own), [])
  t.strictSame(missing(wanted.generation_settings, own.generation_settings), [])
  const { content, stop_type, tokens_predicted } = wanted
  t.match(own, { content, stop: true, stop_type, tokens_predicted, model: DEMO, tokens: [] })
  t.equal(own.tokens_evaluated, wanted.tokens_evaluated)

  const tokens = { ...whole, return_tokens: true, n_probs: 2 }
  const [listed, bareListed] = [
    (await corral.json('/completions', { model: DEMO, ...tokens })).body,
    await ofBare('/completions', tokens)
  ]
  t.strictSame(listed.tokens, bareListed.tokens)
  t.equal(listed.completion_probabilities.length, bareListed.completion_probabilities.length)
  t.strictSame(missing(bareListed.completion_probabilities[0], listed.completion_probabilities[0]), [])

  const few = { ...whole, response_fields: ['content', 'generation_settings/n_predict'] }
  t.strictSame((await corral.json('/completion', { model: DEMO, ...few })).body, await ofBare('/completion', few))
  const all = (await corral.json('/completion', { model: DEMO, ...whole, response_fields: [] })).body
  t.match(all, { content, generation_settings: Object }, 'an empty list selects all fields')

  const events = await eventsOf(`${corral.url}/completion`, { model: DEMO, ...whole, stream: true })
  const bareEvents = await eventsOf(`${bare}/completion`, { ...whole, stream: true })
  t.strictSame(
    events.map(({ content, tokens, stop }) => [content, tokens, stop]),
    bareEvents.map(({ content, tokens, stop }) => [content, tokens, stop])
  )
  t.strictSame(missing(bareEvents[0], events[0]), [])
  t.strictSame(missing(bareEvents.at(-1), events.at(-1)), [])

  const several = { ...whole, prompt: [PROMPT, [1, 'The capital'], [1, 5, 9]] }
  const answers = (await corral.json('/completion', { model: DEMO, ...several })).body
  const bareAnswers = await ofBare('/completion', several)
  t.strictSame(
    answers.map(({ index, content }: any) => [index, content]),
    bareAnswers.map(({ index, content }: any) => [index, content])
  )
  t.match(await corral.json('/completion', { model: DEMO, prompt: [1, 'The capital'], ...GREEDY }), {
    status: 200,
    body: { content: bareAnswers[1].content }
  })
  const stopped = await corral.json('/completion', {
    model: DEMO,
    prompt: (await corral.json('/apply-template', { model: DEMO, messages })).body.prompt,
    temperature: 0,
    stop: [' of']
  })
  t.match(stopped.body, { content: 'The capital', stop_type: 'word', stopping_word: ' of' })
})

t.test("all routes return errors in llama-server's format", async t => {
  const error = (await ofBare('/completion', {})).error
  const own = (await corral.json('/completion', { model: DEMO })).body.error
  t.strictSame(missing(error, own), [])
  t.match(own, { code: 400, type: 'invalid_request_error', corral_code: 'invalid_request', param: 'prompt' })
  for (const path of ['/chat/completions', '/tokenize', '/apply-template', '/completion', '/embedding']) {
    const body = { model: 'no/such-model', messages, content: 'a', prompt: 'a' }
    t.match(
      await corral.json(path, body),
      { status: 404, body: { error: { code: 404, type: 'not_found_error', corral_code: 'model_not_found' } } },
      path
    )
  }
  const long = { model: DEMO, prompt: 'word '.repeat(40_000), stream: true }
  t.match((await corral.json('/completion', long)).body, {
    error: { code: 400, corral_code: 'context_exceeded', type: 'exceed_context_size_error', n_ctx: Number }
  })
  t.match((await corral.json('/v1/chat/completions', { model: 'no/such-model', messages })).body, {
    error: { code: 'model_not_found' }
  })
  t.match(await corral.json('/infill', { model: DEMO, input_prefix: 'a', input_suffix: 'b' }), {
    status: 400,
    body: { error: { corral_code: 'unsupported_capability' } }
  })
  for (const multimodal_data of [['AAAA'], 'AAAA', { data: 'AAAA' }]) {
    const picture = { prompt_string: 'a', multimodal_data }
    t.match(
      await corral.json('/completion', { model: DEMO, prompt: picture }),
      { status: 400, body: { error: { corral_code: 'unsupported_capability', param: 'prompt' } } },
      `refuses an image in a prompt, sent as ${JSON.stringify(multimodal_data)}`
    )
  }
  for (const multimodal_data of [[], null]) {
    const prompt = { prompt_string: 'a', multimodal_data }
    t.match(await corral.json('/completion', { model: DEMO, prompt, n_predict: 1 }), { status: 200 }, 'none')
  }
})

t.test('chat, token and embedding routes match those of llama-server', async t => {
  const chat = await corral.json('/chat/completions', { model: DEMO, messages, temperature: 0 })
  t.equal(chat.body.choices[0].message.content, CAPITAL_ANSWER)
  const same = async (path: string, body: object) =>
    t.strictSame((await corral.json(path, { model: DEMO, ...body })).body, await ofBare(path, body), path)
  await same('/apply-template', { messages })
  await same('/v1/chat/completions/input_tokens', { messages })
  await same('/chat/completions/input_tokens', { messages })
  await same('/tokenize', { content: PROMPT, with_pieces: true })
  await same('/detokenize', { tokens: [1, 5, 9] })
  for (const [path, body] of [
    ['/embedding', { content: 'a text' }],
    ['/embeddings', { input: ['a text', 'another'] }]
  ] as const) {
    const { body: vectors } = await corral.json(path, { model: DEMO, ...body })
    t.match(vectors[0], { index: 0, embedding: [Array] }, path)
    t.equal(vectors[0].embedding[0].length, 256)
    t.equal(vectors.length, path === '/embedding' ? 1 : 2)
  }
  t.match(await corral.json('/embedding', { model: DEMO }), { status: 400, body: { error: { param: 'content' } } })
  t.match(await corral.json('/rerank', { model: DEMO, query: 'a', documents: ['b'] }), {
    status: 400,
    body: { error: { code: 400, corral_code: 'unsupported_capability' } }
  })
})

t.test('a finished conversation can be read again from any byte', async t => {
  const conversation = '0b9a::corral/tiny-chat'
  const ask = { model: DEMO, messages, temperature: 0, stream: true }
  const send = (id: string) =>
    fetch(`${corral.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'x-conversation-id': id },
      body: JSON.stringify(ask)
    })
  const whole = await (await send(conversation)).text()
  const lookup = async (...conversation_ids: string[]) =>
    (await corral.json('/v1/streams/lookup', { conversation_ids })).body
  t.match(await lookup('0b9a', 'other'), [
    {
      conversation_id: conversation,
      is_done: true,
      total_bytes: Buffer.byteLength(whole),
      started_at: Number,
      completed_at: Number
    }
  ])
  const query = `conv_id=${encodeURIComponent(conversation)}`
  const rest = await corral.send(`/v1/stream?${query}&from=100`)
  t.equal(await rest.text(), Buffer.from(whole).subarray(100).toString())
  t.equal(await (await corral.send(`/v1/stream?${query}`)).text(), whole)
  t.equal((await corral.send(`/v1/stream?${query}`, undefined, { method: 'DELETE' })).status, 204)
  t.equal((await corral.send(`/v1/stream?${query}`, undefined, { method: 'DELETE' })).status, 204)
  t.match(await corral.json(`/v1/stream?${query}`), {
    status: 404,
    body: { error: { corral_code: 'stream_not_found' } }
  })
  t.strictSame(await lookup('0b9a'), [])
  t.match(await corral.json('/v1/stream'), { status: 400, body: { error: { code: 400 } } })
})

t.test('a stream resumes after its connection is lost', async t => {
  const conversation = '77aa::corral/tiny-chat'
  const ask = { ...endlessHosted(DEMO), max_tokens: 400 }
  const headers = { 'x-conversation-id': conversation }
  const query = `/v1/stream?conv_id=${encodeURIComponent(conversation)}`
  const leaving = new AbortController()
  const first = await corral.send('/v1/chat/completions', ask, { headers, signal: leaving.signal })
  let read = Buffer.alloc(0)
  try {
    for await (const chunk of first.body!) {
      read = Buffer.concat([read, chunk])
      if (read.length > 2000) leaving.abort()
    }
  } catch {
    // The client disconnected.
  }
  const [record] = (await corral.json('/v1/streams/lookup', { conversation_ids: ['77aa'] })).body
  t.match(record, { conversation_id: conversation, is_done: false, completed_at: 0 })
  const rest = Buffer.from(await (await corral.send(`${query}&from=${read.length}`)).arrayBuffer())
  const whole = Buffer.concat([read, rest]).toString()
  t.match(whole, /data: \[DONE\]\n\n$/)
  const said = (text: string) => {
    const lines = text.split('\n').filter(line => line.startsWith('data: {'))
    return lines.map(line => JSON.parse(line.slice(6)).choices[0]?.delta.content ?? '').join('')
  }
  const unbroken = await (await corral.send('/v1/chat/completions', ask)).text()
  t.equal(said(whole), said(unbroken))

  const again = new AbortController()
  const endless = corral.send('/v1/chat/completions', endlessHosted(DEMO), { headers, signal: again.signal })
  await endless
  const busy = async () => (await corral.json('/slots')).body.some(({ is_processing }: any) => is_processing)
  t.ok(await busy())
  again.abort()
  t.equal((await corral.send(query, undefined, { method: 'DELETE' })).status, 204)
  await until('the slot is free', async () => !(await busy()))
})

// Requests of llama.cpp's own page, which test/long/llama-page.test.ts recorded in a browser.
const recorded = JSON.parse(readFileSync(RECORDED, 'utf8')) as RecordedRequest[]
const chats = recorded.filter(({ body }) => body?.stream === true)

/** Sends a request and returns the reply as text, except for the endless feed. */
async function replay({ method, url, conversation, body }: RecordedRequest) {
  const leaving = new AbortController()
  const reply = await corral.send(url, body, {
    method,
    signal: leaving.signal,
    headers: { ...(conversation && { 'x-conversation-id': conversation }) }
  })
  if (url === '/models/sse') {
    leaving.abort()
    return { status: reply.status, text: '' }
  }
  return { status: reply.status, text: await reply.text() }
}

t.ok(chats.length >= 2, 'the recording contains conversations')

for (const request of recorded) {
  t.test(request.kind, async t => {
    // A stream needs an earlier conversation, and a loaded model cannot be loaded again.
    if (request.url.startsWith('/v1/stream?')) await replay(chats[0]!)
    if (request.url === '/models/load') await corral.json('/models/unload', request.body)
    const { status, text } = await replay(request)
    // The page looks for folders with a tool, which corral does not have. It works without.
    t.equal(status, request.method === 'DELETE' ? 204 : request.kind.startsWith('POST /tools') ? 405 : 200, text)
    if (request.url === '/models/load') await corral.json(`/props?model=${DEMO}`)
    if (request.body?.n_predict === 0)
      t.ok(JSON.parse(text).usage.completion_tokens <= 1, 'only the prompt is processed')
    if (request.body?.stream !== true && request.method + request.url.slice(0, 12) !== 'GET/v1/stream?') return
    const payloads = new SseParser().push(Buffer.from(text))
    t.equal(payloads.pop(), '[DONE]', 'without it the page requests the rest')
    const events = payloads.map(payload => JSON.parse(payload))
    for (const { id, model, choices } of events) {
      t.match(id, /^chatcmpl-/, 'the page sends this id to end the thinking')
      t.equal(model, DEMO, 'the page only accepts names that it lists')
      t.ok(Array.isArray(choices))
    }
    t.ok(
      events.some(({ prompt_progress }) => prompt_progress),
      'prompt progress is reported'
    )
    t.ok(
      events.some(({ timings }) => timings?.predicted_n > 0),
      'timings are reported'
    )
  })
}

t.test('the number of feed listeners is limited, and closed ones are forgotten', async t => {
  const feeds = []
  for (let count = 0; count < 16; count++) feeds.push(await follow(corral))
  const { reply } = await follow(corral)
  t.equal(reply.status, 429)
  for (const { leave } of feeds) leave()
  await Promise.all(feeds.map(({ read }) => read))
  await until('another listener is accepted', async () => {
    const next = await follow(corral)
    next.leave()
    return next.reply.status === 200
  })
  const last = await follow(corral)
  t.equal(await corral.end('SIGTERM'), 0)
  await last.read
  t.pass('the stream ends when the server stops')
})
