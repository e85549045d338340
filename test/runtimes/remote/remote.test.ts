import { createServer, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http'
import { json as jsonOf } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { serverKind } from '../../../runtimes/remote/server-kinds.ts'
import { startTestCorral } from '../../../testing/index.ts'
import { until } from '../../support/corral.ts'
import { listen } from '../../support/listen.ts'
import { thorough } from '../../support/thorough.ts'

const model = 'far/tiny'
const messages = [{ role: 'user', content: 'hello there' }]

/** Starts a remote server and records the requested paths. `healthy` is the result of its health check. */
async function serverOf(t: Test, listener: RequestListener, healthy = () => true) {
  const asked: string[] = []
  const checks: string[] = []
  const server = createServer((request, response) => {
    if (/^\/v1\/models$|^\/health$/.test(request.url!)) {
      checks.push(request.url!)
      return void json(response, healthy() ? 200 : 503, { data: [] })
    }
    asked.push(`${request.method} ${request.url}`)
    listener(request, response)
  })
  const port = await listen(t, server)
  const stop = () => {
    server.closeAllConnections()
    server.close()
  }
  return { url: `http://127.0.0.1:${port}/v1`, asked, checks, stop }
}

function json(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

function fails(status: number, body: unknown): RequestListener {
  return (_, response) => json(response, status, body)
}
const html: RequestListener = (_, response) => {
  response.writeHead(200, { 'content-type': 'text/html' }).end('<p>hello')
}
const read = (request: IncomingMessage) => jsonOf(request) as Promise<any>
const event = (body: unknown) => `data: ${JSON.stringify(body)}\n\n`
const piece = (content: string) => event({ choices: [{ index: 0, delta: { content }, finish_reason: null }] })
const end = event({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] })
const counts = event({ choices: [], usage: { prompt_tokens: 3, completion_tokens: 2 } })

const answers: RequestListener = (_, response) => {
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  response.end(`${piece('Hello ')}${piece('back.')}${end}${counts}data: [DONE]\n\n`)
}

async function corralOf(t: Test, servers: { url: string; key?: string }[], more: object = {}) {
  const models = { [model]: { model: 'tiny', servers, ...more } }
  const config = `remote: ${JSON.stringify({ health_interval: '100ms', connect_timeout: '1s', models })}`
  const corral = await startTestCorral({ echo: false, config })
  t.teardown(() => corral.close())
  return corral
}

/** Asks through each API. */
async function answersOf(corral: Awaited<ReturnType<typeof corralOf>>): Promise<string[]> {
  const ask = async (path: string, more: object = {}) => (await corral.json(path, { model, messages, ...more })).body
  return [
    (await ask('/api/chat', { stream: false })).message.content,
    (await ask('/v1/chat/completions')).choices[0].message.content,
    (await ask('/v1/messages', { max_tokens: 9 })).content[0].text,
    (await ask('/ollama/api/chat', { stream: false })).message.content
  ]
}

t.test('a model of a remote server answers through all APIs', async t => {
  const { url } = await serverOf(t, (request, response) => {
    t.equal(request.headers.authorization, 'Bearer secret-1')
    if (request.url !== '/v1/embeddings') return void answers(request, response)
    json(response, 200, { data: [{ index: 0, embedding: [1, 2] }], usage: { prompt_tokens: 1 } })
  })
  const capabilities = ['completion', 'embedding']
  const corral = await corralOf(t, [{ url, key: 'secret-1' }], { capabilities, context: 2048 })
  const { body: tags } = await corral.json('/api/tags')
  const found = tags.models.find((each: any) => each.model === model)
  t.match(found, { format: 'remote', capabilities, remote_model: 'tiny', details: { quantization_level: '' } })
  const preview = (await corral.json('/api/models/preview', { model, options: { num_ctx: 99 } })).body
  t.match(preview, { model, options: { temperature: [{ from: 'default' }] } })
  t.strictSame([preview.load, preview.memory], [undefined, undefined], 'its server decides')
  t.same(await answersOf(corral), Array(4).fill('Hello back.'))
  const hosted = await corral.json('/v1/chat/completions', { model, messages })
  t.match(hosted, { status: 200, body: { model, usage: { prompt_tokens: 3, completion_tokens: 2 } } })
  const events = await corral.events('/v1/chat/completions', { model, messages, stream: true })
  const contents = events.flatMap(each => each.choices?.[0]?.delta?.content || [])
  t.same(contents, ['Hello ', 'back.'])
  const vectors = await corral.json('/v1/embeddings', { model, input: 'a' })
  t.same(vectors.body.data[0].embedding, [1, 2])
  t.notMatch(corral.log(), /secret-1/)
})

t.test(
  'a server that is down, answers HTML or fails is replaced by another, and used again later',
  thorough,
  async t => {
    const faults: [string, RequestListener][] = [
      ['HTML', html],
      ['status 500', fails(500, { error: { message: 'no' } })],
      ['an answer that ends before it began', (_, response) => void response.destroy()],
      ['a wrong key', fails(401, { error: { message: 'secret' } })],
      ['too many requests', fails(429, {})]
    ]
    for (const [what, listener] of faults) {
      const bad = await serverOf(t, listener)
      const good = await serverOf(t, answers)
      const corral = await corralOf(t, [{ url: bad.url }, { url: good.url }])
      const reply = await corral.json('/v1/chat/completions', { model, messages })
      t.match(reply, { status: 200, body: { choices: [{ message: { content: 'Hello back.' } }] } }, what)
      t.ok(bad.asked.length >= 1 && good.asked.length === 1, what)
    }
    const dead = await serverOf(t, answers)
    dead.stop()
    const good = await serverOf(t, answers)
    const corral = await corralOf(t, [{ url: dead.url }, { url: good.url }])
    t.match(await corral.json('/v1/chat/completions', { model, messages }), { status: 200 })
  }
)

t.test('each API reports the failures of the only server in its own format', async t => {
  const table: [string, RequestListener, number, RegExp][] = [
    ['a wrong key', fails(401, {}), 500, /rejects the key/],
    ['no such model', fails(404, {}), 404, /no model with the name/],
    ['too many requests', fails(429, {}), 503, /too many requests/],
    ['HTML', html, 500, /not a model.s answer/],
    ['a bad request', fails(400, { error: { message: 'no such tool' } }), 400, /no such tool/],
    ['plain text', fails(400, { error: 'must be a dict' }), 400, /must be a dict/]
  ]
  for (const [what, listener, status, message] of table) {
    const { url } = await serverOf(t, listener)
    const corral = await corralOf(t, [{ url, key: 'secret-2' }])
    const hosted = await corral.json('/v1/chat/completions', { model, messages })
    t.match(hosted, { status, body: { error: { message } } }, what)
    const native = await corral.json('/api/chat', { model, messages, stream: false })
    t.match(native, { status, body: { error: message } }, what)
    t.notMatch(JSON.stringify(hosted) + corral.log(), /secret-2/)
  }
})

t.test(
  'a server that cannot be reached is reported as such by each API, in time for a later try',
  thorough,
  async t => {
    const dead = await serverOf(t, answers)
    dead.stop()
    const overloaded = await serverOf(t, (_, response) => {
      response.setHeader('retry-after', '17')
      json(response, 503, {})
    })
    const broken = await serverOf(t, (_, response) => void response.destroy())
    const requests = Object.entries({
      '/api/chat': { messages },
      '/ollama/api/generate': { prompt: 'hello' },
      '/v1/chat/completions': { messages },
      '/v1/completions': { prompt: 'hello' },
      '/v1/responses': { input: 'hello' },
      '/v1/embeddings': { input: 'hello' },
      '/v1/messages': { messages, max_tokens: 9 },
      '/completion': { prompt: 'hello' }
    })
    for (const [{ url }, seconds] of [
      [dead, '5'],
      [overloaded, '17'],
      [broken, '5']
    ] as const) {
      const corral = await corralOf(t, [{ url }], { capabilities: ['completion', 'embedding'] })
      for (const [path, body] of requests) {
        for (const stream of path === '/v1/embeddings' ? [false] : [false, true]) {
          const sent = JSON.stringify({ model, stream, ...body })
          const response = await fetch(corral.url + path, { method: 'POST', body: sent })
          t.match(await response.text(), /engine_unreachable/, path)
          t.same([response.status, response.headers.get('retry-after')], [503, seconds], path)
          t.notOk(response.headers.has('x-should-retry'))
        }
      }
    }
  }
)

t.test('an interrupted answer ends with an error event and is not repeated', async t => {
  const cut = await serverOf(t, (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write(piece('Hello '), () => setTimeout(() => response.destroy(), 50))
  })
  const corral = await corralOf(t, [{ url: cut.url }])
  const events = await corral.events('/v1/chat/completions', { model, messages, stream: true })
  t.equal(events.filter(each => each.choices?.[0]?.delta?.content === 'Hello ').length, 1)
  t.match(events.at(-1), { error: { message: /ended its answer early/ } })
})

t.test('requests go to the server with the fewest running ones', async t => {
  const waiting: ServerResponse[] = []
  const slow = await serverOf(t, (_, response) => void waiting.push(response))
  const quick = await serverOf(t, answers)
  const corral = await corralOf(t, [{ url: slow.url }, { url: quick.url }])
  const first = corral.json('/v1/chat/completions', { model, messages })
  while (waiting.length === 0) await new Promise(resolve => setTimeout(resolve, 5))
  for (let at = 0; at < 3; at++) {
    t.match(await corral.json('/v1/chat/completions', { model, messages }), { status: 200 })
  }
  t.equal(slow.asked.length, 1)
  t.equal(quick.asked.length, 3)
  answers({} as never, waiting[0] as never)
  t.match(await first, { status: 200 })
})

t.test('the remote provider supports several choices with their counts', async t => {
  const bodies: any[] = []
  const choice = (index: number, delta: object, finish_reason: string | null = null) =>
    event({ choices: [{ index, delta, finish_reason }] })
  const { url } = await serverOf(t, async (request, response) => {
    bodies.push(await read(request))
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write(choice(1, { content: 'two' }) + choice(0, { content: 'one' }) + choice(0, {}, 'stop'))
    response.end(`${choice(1, {}, 'length')}${counts}data: [DONE]\n\n`)
  })
  const corral = await corralOf(t, [{ url }])
  const whole = await corral.json('/v1/chat/completions', { model, messages, n: 2 })
  t.match(whole, {
    status: 200,
    body: {
      choices: [
        { index: 0, message: { content: 'one' }, finish_reason: 'stop' },
        { index: 1, message: { content: 'two' }, finish_reason: 'length' }
      ],
      usage: { prompt_tokens: 3, completion_tokens: 2 }
    }
  })
  const events = await corral.events('/v1/chat/completions', { model, messages, n: 2, stream: true })
  const contents = events.flatMap(({ choices = [] }) => choices.filter((each: any) => each.delta.content))
  const said = contents.map((each: any) => `${each.index} ${each.delta.content}`)
  t.same(said, ['1 two', '0 one'])
  t.match(bodies, Array(2).fill({ model: 'tiny', n: 2 }))
})

t.test('an ejected server gets no requests until a health check succeeds', async t => {
  let well = false
  const unsteady = await serverOf(
    t,
    (request, response) => {
      if (well) answers(request, response)
      else json(response, 500, { error: { message: 'no' } })
    },
    () => well
  )
  const steady = await serverOf(t, answers)
  const corral = await corralOf(t, [{ url: unsteady.url }, { url: steady.url }])
  const ask = async () => t.match(await corral.json('/v1/chat/completions', { model, messages }), { status: 200 })
  for (let at = 0; at < 4; at++) await ask()
  const before = unsteady.asked.length
  t.ok(before <= 1, 'at most the first request went there, unless a health check came before')
  t.equal(steady.asked.length, 4)
  t.match(corral.log(), /gets no requests until it is healthy/)
  well = true
  await until('a health check has found it', () => /is healthy again/.test(corral.log()))
  await ask()
  t.equal(unsteady.asked.length, before + 1, 'it gets requests again')
})

t.test('each API words a full context of any server as its vendor does', async t => {
  const refusals: [number, unknown][] = [
    [
      400,
      { error: { message: "This model's maximum context length is 40 tokens. However, you requested 52 tokens." } }
    ],
    [400, { message: "This model's maximum context length is 40 tokens and your request has 52 input tokens." }],
    [
      400,
      {
        error: {
          message:
            "You passed 52 input tokens and requested 8 output tokens. However, the model's context length is only 48 tokens, resulting in a maximum input length of 40 tokens."
        }
      }
    ],
    [400, { error: { code: 400, message: 'x', type: 'exceed_context_size_error', n_prompt_tokens: 52, n_ctx: 40 } }],
    [500, { error: 'request (52 tokens) exceeds the available context size (40 tokens)' }],
    [400, { error: 'Requested token count exceeds the maximum context length of 40 tokens: a total of 52 tokens.' }],
    [413, { error: { message: 'prompt is too long: 52 tokens > 40 maximum' } }],
    [422, { error: '`inputs` tokens + `max_new_tokens` must be <= 40. Given: 52 `inputs` tokens' }]
  ]
  const uncounted: [number, unknown] = [400, { error: { message: 'No.', code: 'context_length_exceeded' } }]
  let refusal = uncounted
  let isStream = false
  const { url } = await serverOf(t, (_, response) => {
    if (!isStream) return json(response, ...refusal)
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.end(`data: ${JSON.stringify(refusal[1])}\n\n`)
  })
  const corral = await corralOf(t, [{ url }])
  const ask = async (path: string, more: object) =>
    (await corral.json(path, { model, messages, input: 'a', ...more })).body.error.message
  const words = async () => [
    await ask('/v1/messages', { max_tokens: 9 }),
    await ask('/v1/chat/completions', {}),
    await ask('/v1/responses', {})
  ]
  for (refusal of refusals) {
    for (isStream of [false, true]) {
      t.match(await words(), [
        /^prompt is too long: 52 tokens > 40 maximum\. Shorten/,
        /^This model's maximum context length is 40 tokens, but the request has 52 tokens\. Shorten/,
        /^This model's maximum context length is 40 tokens/
      ])
      if (!('error' in (refusal[1] as object))) break
    }
  }
  refusal = uncounted
  isStream = false
  t.same(await words(), [
    'prompt is too long: No. Shorten the text.',
    "This model's maximum context length is exceeded: No. Shorten the text.",
    "This model's maximum context length is exceeded: No. Shorten the text."
  ])
})

t.test('two corrals can be the servers of a third', thorough, async t => {
  const far = await Promise.all([startTestCorral(), startTestCorral()])
  for (const each of far) t.teardown(() => each.close())
  const servers = far.map(({ url }) => ({ url: `${url}/v1` }))
  const models = { [model]: { model: 'corral/tiny-chat', servers, capabilities: ['completion', 'embedding'] } }
  const corral = await startTestCorral({ echo: false, config: `remote: ${JSON.stringify({ models })}` })
  t.teardown(() => corral.close())
  t.same(await answersOf(corral), Array(4).fill('hello there'))
  t.match(await corral.json('/v1/embeddings', { model, input: 'a' }), { status: 200 })
  await far[0]!.close()
  t.same(await answersOf(corral), Array(4).fill('hello there'), 'one of them is enough')
})

t.test('the remote provider translates requests for an MLX server', async t => {
  const bodies: any[] = []
  // Answers as mlx_lm.server 0.32.2: health beside the API, comments during prefill.
  const { url, checks } = await serverOf(t, async (request, response) => {
    bodies.push(await read(request))
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.end(`: keepalive 0/1\n\n${piece('Paris.')}${end}${counts}data: [DONE]\n\n`)
  })
  const corral = await corralOf(t, [{ url }], { kind: 'mlx', context: 8192 })
  const chat = (more: object) => corral.json('/v1/chat/completions', { model, messages, ...more })
  const plain = await chat({})
  t.match(plain.body, { choices: [{ message: { content: 'Paris.' } }], usage: { prompt_tokens: 3 } })
  t.equal(serverKind('mlx').request(model, {}, 8192).max_tokens, 8192, 'it would end after 512 tokens')

  await chat({
    max_tokens: 5,
    repeat_penalty: 1.2,
    repeat_last_n: -1,
    top_k: -1,
    seed: -1,
    xtc_probability: 0,
    min_p: 0.1
  })
  t.match(bodies.at(-1), {
    max_tokens: 5,
    repetition_penalty: 1.2,
    repetition_context_size: 8192,
    presence_context_size: 8192,
    top_k: 0,
    min_p: 0.1
  })
  for (const name of ['repeat_penalty', 'repeat_last_n', 'seed', 'xtc_probability'])
    t.notOk(name in bodies.at(-1), name)
  await chat({ repeat_penalty: 1.2, repeat_last_n: 0, presence_penalty: 1, seed: 7, xtc_probability: 1 })
  t.match(bodies.at(-1), { seed: 7, xtc_probability: 0.999999 })
  for (const name of ['repetition_penalty', 'presence_penalty']) t.notOk(name in bodies.at(-1), name)

  const before = bodies.length
  t.match((await chat({ n: 2 })).body.error, { message: /one answer per request/ })
  const schema = { type: 'json_schema', json_schema: { schema: { type: 'object' } } }
  t.match((await chat({ response_format: schema })).body.error, { message: /does not constrain its answers to JSON/ })
  t.equal(bodies.length, before, 'fields that it would silently ignore are rejected')

  await until('its health is checked', () => checks.includes('/health'))
  t.notOk(checks.includes('/v1/models'))
})
