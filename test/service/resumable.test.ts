import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { activeRequests, CAPITAL_QUESTION, type Corral, DEMO, endless, startCorral, until } from '../support/corral.ts'
import { thorough } from '../support/thorough.ts'

const RESUMABLE = { 'x-corral-resumable': 'true' }
const STORY = { role: 'user', content: 'Tell me a story about a fox.' }

/** Number of streams for each API. */
const TRIES = Number(process.env.CORRAL_STREAM_TRIALS ?? 2)

interface Part {
  status: number
  id: string | null
  bytes: Buffer
}

/** Reads at most this many bytes of a stream, then closes the connection. */
async function read(
  corral: Corral,
  path: string,
  body: object | undefined,
  most = Number.POSITIVE_INFINITY,
  headers = {}
): Promise<Part> {
  const controller = new AbortController()
  const response = await corral.send(path, body, {
    headers: { ...(body && RESUMABLE), ...headers },
    signal: controller.signal
  })
  const chunks: Buffer[] = []
  let size = 0
  try {
    for await (const chunk of response.body!) {
      chunks.push(Buffer.from(chunk))
      size += chunk.length
      if (size >= most) break
    }
  } catch (error) {
    if (!(error instanceof Error) || !/terminated|aborted/.test(error.message)) throw error
  }
  controller.abort()
  return { status: response.status, id: response.headers.get('x-corral-stream-id'), bytes: Buffer.concat(chunks) }
}

const CONFIG = 'limits: { resume: 20s }'
const corral = await startCorral(t, { config: CONFIG })
const chat = (seed: number) => ({ model: DEMO, messages: [STORY], stream: true, options: { seed, max_tokens: 120 } })
const hosted = (seed: number) => ({ model: DEMO, messages: [STORY], stream: true, seed, max_tokens: 120 })
const WAYS: [what: string, path: string, body: (seed: number) => object, resume: string][] = [
  ['hosted chat', '/v1/chat/completions', hosted, '/v1/streams'],
  [
    'hosted chat that is read piece by piece',
    '/v1/chat/completions',
    seed => ({ ...hosted(seed), logprobs: true }),
    '/v1/streams'
  ],
  ['messages', '/v1/messages', hosted, '/v1/streams'],
  [
    'responses',
    '/v1/responses',
    seed => ({ model: DEMO, input: 'Tell me a story.', stream: true, seed }),
    '/v1/streams'
  ],
  ['native', '/api/chat', chat, '/api/streams'],
  ['lines', '/ollama/api/chat', chat, '/ollama/api/streams']
]

for (const [what, path, body, resume] of WAYS) {
  t.test(`${what}: a stream interrupted anywhere resumes byte for byte`, async t => {
    for (let seed = 0; seed < TRIES; seed++) {
      const parts = [await read(corral, path, body(seed), Math.ceil(Math.random() * 6000))]
      const { id, status } = parts[0]!
      t.equal(status, 200)
      t.match(id, /^stream_[0-9a-f]{32}$/)
      const received = () => Buffer.concat(parts.map(part => part.bytes))
      // The stream is interrupted twice more, then read to its end.
      for (const most of [Math.ceil(Math.random() * 3000), Math.ceil(Math.random() * 3000), undefined]) {
        parts.push(await read(corral, `${resume}/${id}?from=${received().length}`, undefined, most))
        t.equal(parts.at(-1)!.status, 200)
      }
      const whole = await read(corral, `${resume}/${id}`, undefined)
      t.ok(whole.bytes.equals(received()), `${whole.bytes.length} bytes are the same (seed ${seed})`)
      t.match(
        whole.bytes.toString(),
        what === 'lines' || what === 'native' ? '"done":true' : /\[DONE\]|message_stop|response.completed/
      )
    }
  })
}

t.test('events are numbered, and a stream resumes after a given event', async t => {
  const { id, bytes } = await read(corral, '/v1/chat/completions', hosted(1))
  const events = bytes.toString().split(/(?<=\n\n)/)
  t.ok(events.length > 10)
  for (const [index, event] of events.entries()) t.ok(event.startsWith(`id: ${index + 1}\ndata: `), event)
  for (const after of [0, 1, 7, events.length]) {
    const rest = await read(corral, `/v1/streams/${id}?after=${after}`, undefined)
    t.equal(rest.bytes.toString(), events.slice(after).join(''), `after ${after}`)
    const byHeader = await read(corral, `/v1/streams/${id}`, undefined, undefined, { 'last-event-id': String(after) })
    t.equal(byHeader.bytes.toString(), events.slice(after).join(''))
  }
  const beyond = await corral.json(`/v1/streams/${id}?after=${events.length + 1}`)
  t.match(beyond, { status: 400, body: { error: { code: 'invalid_request' } } })
  for (const query of ['after=-1', 'after=x', 'from=1e3', 'after=']) {
    t.equal((await corral.json(`/v1/streams/${id}?${query}`)).status, 400, query)
  }
  t.equal((await corral.json(`/v1/streams/${id}`, undefined, { headers: { 'last-event-id': 'x' } })).status, 400)
  t.match(await corral.json(`/v1/streams/${id}`, undefined, { method: 'DELETE' }), { body: { status: 'cancelled' } })
  t.match(await corral.json(`/v1/streams/${id}`), { status: 404, body: { error: { code: 'stream_not_found' } } })
  t.match(await corral.json('/api/streams/nothing'), { status: 404, body: { code: 'stream_not_found' } })
})

t.test('an answer with the header continues without its client until it is cancelled', async t => {
  const { id } = await read(corral, '/api/chat', endless(DEMO), 1000)
  await sleep(500)
  t.equal(await activeRequests(corral), 1, 'it continues')
  const more = await read(corral, `/api/streams/${id}`, undefined, 5000)
  t.ok(more.bytes.length >= 5000)
  await corral.json(`/api/streams/${id}`, undefined, { method: 'DELETE' })
  await until('the slot is free', async () => (await activeRequests(corral)) === 0, 5000)

  const plain = await read(corral, '/api/chat', endless(DEMO), 1000, { 'x-corral-resumable': 'no' })
  t.equal(plain.id, null)
  await until(
    'the slot of a client that did not ask for a resumable stream is free',
    async () => (await activeRequests(corral)) === 0,
    5000
  )
})

t.test('readers of a cancelled stream get an error event and an end', async t => {
  const conversation = { 'x-conversation-id': 'cancelled' }
  const hosted = { model: DEMO, stream: true, max_tokens: 100_000, ignore_eos: true, messages: [CAPITAL_QUESTION] }
  for (const [path, body, headers, where, last] of [
    ['/api/chat', endless(DEMO), RESUMABLE, '/api/streams/', /"code":"stream_cancelled"/],
    ['/ollama/api/chat', endless(DEMO), RESUMABLE, '/ollama/api/streams/', /"code":"stream_cancelled"\}?/],
    ['/v1/chat/completions', hosted, RESUMABLE, '/v1/streams/', /"error":\{.*"stream_cancelled"/],
    ['/v1/chat/completions', hosted, conversation, undefined, /"error":\{.*"stream_cancelled"/]
  ] as const) {
    const response = await corral.send(path, body, { headers })
    const reader = response.body!.getReader()
    const decoder = new TextDecoder()
    const first = await reader.read()
    let text = decoder.decode(first.value, { stream: true })
    const address = where ? where + response.headers.get('x-corral-stream-id') : '/v1/stream?conv_id=cancelled'
    t.ok((await corral.send(address, undefined, { method: 'DELETE' })).ok)
    // A broken connection rejects.
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      text += decoder.decode(read.value, { stream: true })
    }
    const events = text.split('\n').filter(line => line !== '' && !/^(?:id|event):|^data: \[DONE\]/.test(line))
    t.match(events.at(-1), last, path)
    t.doesNotThrow(() =>
      events.filter(each => !each.startsWith(':')).map(each => JSON.parse(each.replace(/^data: /, '')))
    )
  }
  await until('the slots are free', async () => (await activeRequests(corral)) === 0, 5000)
})

t.test('a client that comes back takes the stream over', async t => {
  const controller = new AbortController()
  const first = await corral.send('/api/chat', endless(DEMO), { headers: RESUMABLE, signal: controller.signal })
  const reader = first.body!.getReader()
  await reader.read()
  const id = first.headers.get('x-corral-stream-id')
  const second = await read(corral, `/api/streams/${id}`, undefined, 3000)
  t.ok(second.bytes.length >= 3000)
  await t.rejects(async () => {
    while (!(await reader.read()).done);
    throw new Error('it ended')
  }, /terminated|it ended/)
  await corral.json(`/api/streams/${id}`, undefined, { method: 'DELETE' })
})

t.test('a client that never comes back loses its slot, and cannot occupy all slots by leaving', thorough, async t => {
  const short = await startCorral(t, {
    config: 'limits: { resume: 1s }\nmodels:\n  corral/tiny-chat:\n    options: { num_parallel: 2 }\n'
  })
  const { id } = await read(short, '/api/chat', endless(DEMO), 1000)
  await until('the slot is free', async () => (await activeRequests(short)) === 0, 10_000)
  t.equal((await short.json(`/api/streams/${id}`)).status, 404)

  const ended = await read(short, '/v1/chat/completions', { model: DEMO, messages: [CAPITAL_QUESTION], stream: true })
  // Each request extends its time.
  let wait = 1000
  await until('a finished stream is forgotten', async () => {
    await sleep(wait)
    wait += 1000
    return (await short.json(`/v1/streams/${ended.id}`)).status === 404
  })

  const off = await startCorral(t, { config: 'limits: { resume: 0 }' })
  t.equal((await read(off, '/v1/chat/completions', hosted(1))).id, null, 'the configuration can turn it off')
})

t.test('a stream is readable only by its owner', async t => {
  const keys = ['first-key-that-is-long-enough', 'second-key-that-is-long-enough']
  await corral.reload(`${CONFIG}\nsecurity: { api_keys: [${keys}] }`)
  const [first, second] = keys.map(key => ({ 'x-api-key': key }))
  const { id } = await read(corral, '/v1/chat/completions', hosted(2), 500, first)
  t.equal((await corral.json(`/v1/streams/${id}`, undefined, { headers: second! })).status, 404)
  t.equal((await corral.json(`/v1/streams/${id}`, undefined, { headers: second!, method: 'DELETE' })).status, 404)
  t.equal((await corral.json(`/v1/streams/${id}`)).status, 401)
  const own = await read(corral, `/v1/streams/${id}`, undefined, undefined, first)
  t.match(own.bytes.toString(), '[DONE]')
})
