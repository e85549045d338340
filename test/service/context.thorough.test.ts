import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { contextAdvice } from '../../core/answers/full-context.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, joined, startCorral } from '../support/corral.ts'
import { demoWithContext } from '../support/demo-variants.ts'
import { refusedWith } from '../support/failure.ts'
import { sample, thorough } from '../support/thorough.ts'

const file = join(t.testdir(), 'ctx.gguf')
writeFileSync(file, demoWithContext(256))
const FIXED = `models:
  ${DEMO}: { options: { num_ctx: 256, num_parallel: 1, temperature: 0, max_tokens: 40 } }
  `
/** Most tests share this server, and reload it with their settings. */
const corral = await startCorral(t, { config: FIXED })

type Message = { role: string; content: string }
const ANSWERED = { role: 'assistant', content: CAPITAL_ANSWER }
const turns = Array.from({ length: 20 }, () => [CAPITAL_QUESTION, ANSWERED]).flat()
const long: Message[] = [
  { role: 'system', content: 'You are Leo.' },
  ...turns,
  { role: 'user', content: 'What is 7 + 8?' }
]
const text = long.map(message => message.content).join(' ')

/** Every API, with the place and the shape of the numbers in its error. */
const ways: { path: string; body: (messages: Message[], text: string) => object; error: (body: any) => any }[] = [
  { path: '/api/chat', body: messages => ({ messages }), error: body => body },
  { path: '/api/generate', body: (_, prompt) => ({ prompt }), error: body => body },
  { path: '/api/generate', body: (_, prompt) => ({ prompt, raw: true }), error: body => body },
  // Ollama truncates by default.
  { path: '/ollama/api/chat', body: messages => ({ messages, truncate: false }), error: body => body },
  { path: '/v1/chat/completions', body: messages => ({ messages }), error: body => body.error },
  { path: '/v1/completions', body: (_, prompt) => ({ prompt }), error: body => body.error },
  { path: '/v1/responses', body: messages => ({ input: messages }), error: body => body.error },
  {
    path: '/v1/messages',
    body: ([, ...messages]) => ({ system: 'You are Leo.', messages, max_tokens: 40 }),
    error: body => ({ ...body.error, ...body.error.details })
  }
]

/** OpenAI's addresses have OpenAI's code. */
const codeOn = (path: string) =>
  path.startsWith('/v1/') && path !== '/v1/messages' ? 'context_length_exceeded' : 'context_exceeded'

t.test('advice names a larger context only if the model and the limits allow one', t => {
  const full = { model: 'a/b', size: 4096, trained: 8192, allowed: 0 }
  t.match(contextAdvice(full), /"num_ctx" in "options", or models\."a\/b"\.options\.num_ctx in config\.yaml\.$/)
  t.match(contextAdvice({ ...full, trained: undefined }), /num_ctx/)
  t.match(contextAdvice({ ...full, size: 8192 }), /^"a\/b" was trained for 8192 tokens/)
  t.match(contextAdvice({ ...full, allowed: 4096 }), /^limits\.num_ctx does not allow a larger context/)
  t.end()
})

t.test('a conversation longer than the context is refused with both numbers', async t => {
  t.equal((await corral.json('/api/import', { model: 'me/ctx', path: file })).status, 200)
  for (const { path, body, error } of ways) {
    for (const stream of [false, true]) {
      const reply = await corral.json(path, { model: DEMO, stream, ...body(long, text) })
      t.equal(reply.status, 400, `${path}, stream ${stream}`)
      const failure = error(reply.body)
      t.match(failure, { code: codeOn(path), n_ctx: 256 }, path)
      if (codeOn(path) === 'context_length_exceeded') {
        t.match(failure, {
          corral_code: 'context_exceeded',
          type: 'invalid_request_error',
          message: /^This model's max/
        })
      }
      t.ok(failure.n_prompt_tokens > 256, `${failure.n_prompt_tokens} tokens`)
      const message = failure.message ?? failure.error
      for (const number of [failure.n_prompt_tokens, 256]) t.match(message, new RegExp(`\\b${number}\\b`), message)
      t.ok(message.endsWith(contextAdvice({ model: DEMO, size: 256, trained: 32768, allowed: 0 })), message)
      const { body: trained } = await corral.json(path, { model: 'me/ctx', stream, ...body(long, text) })
      const own = error(trained).message ?? error(trained).error
      t.match(own, /"me\/ctx" was trained for 256 tokens, so its context cannot be larger\. Shorten/, path)
      t.notMatch(own, /num_ctx/)
    }
  }
  for (const [path, input] of [
    ['/v1/embeddings', { input: text }],
    ['/api/embed', { input: text, truncate: false }]
  ] as const) {
    const { status, body } = await corral.json(path, { model: DEMO, ...input })
    t.equal(status, 400, path)
    t.match(body.error.code === undefined ? body : body.error, { code: codeOn(path), n_ctx: 256 })
  }
})

t.test('drop_oldest leaves out the oldest messages, and the reply says so', async t => {
  const options = { context_overflow: 'drop_oldest' }
  for (const { path, body } of ways) {
    if (path === '/api/generate' || path === '/v1/completions') continue
    const ask = { model: DEMO, options, ...body(long, text) }
    const whole = await corral.send(path, { ...ask, stream: false })
    const reply = await whole.text()
    t.equal(whole.status, 200, `${path}: ${reply}`)
    t.ok(Number(whole.headers.get('x-corral-dropped-messages')) >= 8, path)
    t.match(reply, /7 \+ 8 = 15\./)
    const streamed = await corral.send(path, { ...ask, stream: true })
    t.ok(Number(streamed.headers.get('x-corral-dropped-messages')) >= 8, `${path} streamed`)
    t.notMatch(await streamed.text(), /context_exceeded|model_stopped/)
  }
  const short = await corral.send('/api/chat', { model: DEMO, options, messages: [CAPITAL_QUESTION], stream: false })
  t.equal(short.headers.get('x-corral-dropped-messages'), null)
  t.match(await short.json(), { message: { content: CAPITAL_ANSWER } })

  const tooLong = { role: 'user', content: text }
  const refused = await corral.json('/api/chat', { model: DEMO, options, messages: [...turns, tooLong] })
  t.match(refused, { status: 400, body: { code: 'context_exceeded', n_ctx: 256 } })
  t.ok(refused.body.n_prompt_tokens > 256, 'not even the last message fits')

  const wrong = await corral.json('/v1/chat/completions', {
    model: DEMO,
    messages: [CAPITAL_QUESTION],
    context_overflow: 'cut'
  })
  t.match(wrong, { status: 400, body: { error: { code: 'invalid_option', param: 'context_overflow' } } })
})

t.test('drop_oldest can be set for a model and overridden by a request', async t => {
  await corral.reload(FIXED.replace('max_tokens: 40', 'context_overflow: drop_oldest'))
  const before = corral.log().length
  const ask = { model: DEMO, messages: long }
  t.equal(joined(await corral.events('/api/chat', ask)), '7 + 8 = 15.')
  t.equal(joined(await corral.events('/v1/chat/completions', { ...ask, stream: true })), '7 + 8 = 15.')
  const strict = await corral.json('/api/chat', { ...ask, options: { context_overflow: 'error' } })
  t.match(strict, refusedWith(400, 'context_exceeded'))
  t.match(corral.log().slice(before), /oldest messages of a conversation were dropped/)
})

/** Returns what each API says about the demo model, without duplicates. */
async function shownLimits() {
  const get = async (path: string, body?: object) => (await corral.json(path, body)).body
  const name = { model: DEMO }
  const { data, models: codex } = await get('/v1/models')
  const records = [data[0], await get(`/v1/models/${DEMO}`), (await get('/models')).data[0]]
  for (const path of ['/v1/models?limit=1000', '/anthropic/v1/models']) records.push((await get(path)).data[0])
  records.push(await get(`/anthropic/v1/models/${DEMO}`))
  const shown = [await get('/api/show', name), await get('/ollama/api/show', name)]
  const running = [...(await get('/api/ps')).models, ...(await get('/ollama/api/ps')).models]
  const props = running.length > 0 ? [await get(`/props?model=${DEMO}`)] : []
  const studio = [(await get('/api/v0/models')).data[0], await get(`/api/v0/models/${DEMO}`)]
  const newStudio = (await get('/api/v1/models')).models
  const all = (rows: any[], read: (row: any) => unknown) => rows.map(read)
  const only = (...lists: unknown[][]) => [...new Set(lists.flat().filter(value => value !== undefined))]
  return {
    window: only(
      all(records, row => row.max_input_tokens),
      all(shown, row => row.context_window),
      all(codex, row => row.context_window)
    ),
    context: only(
      all(records, row => row.meta?.n_ctx),
      all(running, row => row.context_length),
      all(props, row => row.default_generation_settings.n_ctx),
      all(studio, row => row.loaded_context_length),
      all(newStudio, row => row.loaded_instances[0]?.config.context_length)
    ),
    trained: only(
      all(records, row => row.meta?.n_ctx_train),
      all([...studio, ...newStudio], row => row.max_context_length),
      all(shown, row => row.model_info['llama.context_length'])
    ),
    answer: only(all(records, row => row.max_tokens)),
    tools: only(
      all(shown, row => row.capabilities.includes('tools')),
      all(codex, row => row.apply_patch_tool_type === 'freeform'),
      all(studio, row => row.capabilities.includes('tool_use')),
      all(newStudio, row => row.capabilities.trained_for_tool_use)
    ),
    images: only(
      all(records, row => row.capabilities.image_input.supported),
      all(shown, row => row.capabilities.includes('vision')),
      all(codex, row => row.input_modalities.includes('image')),
      all(props, row => row.modalities.vision),
      all(studio, row => row.type === 'vlm'),
      all(newStudio, row => row.capabilities.vision)
    ),
    thinking: only(
      all(records, row => row.capabilities.thinking.supported),
      all(shown, row => row.capabilities.includes('thinking')),
      all(codex, row => row.supported_reasoning_levels.length > 0),
      all(newStudio, row => row.capabilities.reasoning !== undefined)
    )
  }
}

/** Unloads the demo model and reloads the server with other settings. */
async function restart(config: string) {
  await corral.json('/api/stop', { model: DEMO })
  await corral.reload(config)
}

/** Sizes of a model that can neither see nor think, as `shownLimits` returns them. */
const sizes = (window: number, context: number, answer = window) => ({
  window: [window],
  context: [context],
  trained: [32768],
  answer: [answer],
  tools: [true],
  images: [false],
  thinking: [false]
})

t.test('all APIs show the same context, limits and abilities of a model', async t => {
  await restart(FIXED)
  await corral.json('/api/delete', { model: 'me/ctx' }, { method: 'DELETE' })
  t.strictSame(await shownLimits(), sizes(256, 256), 'a fixed context')
  await corral.json('/api/load', { model: DEMO, options: { num_ctx: 512 } })
  t.strictSame(await shownLimits(), sizes(512, 512), 'the context that it was loaded with')
})

/** A prompt of about 4,400 tokens, and a question that tiny-chat knows. */
const far: Message[] = [
  { role: 'system', content: 'You are Leo.' },
  { role: 'user', content: 'one two three four five six seven eight nine ten '.repeat(205) },
  { role: 'assistant', content: 'Yes.' },
  CAPITAL_QUESTION
]
const farText = far.map(message => message.content).join(' ')

t.test('a context that nobody has set grows for a prompt that does not fit', async t => {
  await restart('limits: { max_tokens: 9000 }')
  t.strictSame(await shownLimits(), sizes(32768, 32768, 9000), 'not loaded')
  const shown = async () => (await corral.json('/api/ps')).body.models[0]?.context_length
  const short = await corral.send('/api/chat', { model: DEMO, messages: [CAPITAL_QUESTION], stream: false })
  t.same([short.status, short.headers.get('x-corral-context'), await shown()], [200, null, 4096])
  t.strictSame(await shownLimits(), sizes(32768, 4096, 9000), 'loaded')
  for (const [{ path, body }, stream] of sample(
    ways.flatMap(way => [false, true].map(stream => [way, stream] as const)),
    5
  )) {
    await corral.json('/api/stop', { model: DEMO })
    await corral.json('/api/load', { model: DEMO })
    const ask = { model: DEMO, stream, max_tokens: 20, options: { max_tokens: 20 }, ...body(far, farText) }
    const reply = await corral.send(path, ask)
    const text = await reply.text()
    // A stream that has already begun says it in a comment.
    const size = reply.headers.get('x-corral-context') ?? /^: x-corral-context: (\d+)$/m.exec(text)?.[1]
    t.same([reply.status, size], [200, '8192'], `${path}: ${text.slice(0, 300)}`)
    t.notMatch(text, /"error":\{|event: error/, path)
  }
  t.strictSame(await shownLimits(), sizes(32768, 8192, 9000), 'grown')
  const later = await corral.send('/api/chat', { model: DEMO, messages: [CAPITAL_QUESTION], stream: false })
  t.match(await later.json(), { message: { content: CAPITAL_ANSWER } })
  t.equal(await shown(), 8192, 'it stays for others')
  const fixed = { model: DEMO, messages: far, options: { num_ctx: 4096 }, stream: false }
  await corral.json('/api/stop', { model: DEMO })
  t.match(await corral.json('/api/chat', fixed), { status: 400, body: { code: 'context_exceeded', n_ctx: 4096 } })
  const endless = [{ role: 'user', content: farText.repeat(9) }]
  const { status, body } = await corral.json('/api/chat', { model: DEMO, messages: endless })
  t.match({ status, body }, { status: 400, body: { code: 'context_exceeded', error: /was trained for 32768 tokens/ } })
  t.equal(corral.enginePids().length, 1)
})

t.test('a context does not grow if an admin has set or limited it', async t => {
  for (const [config, advice] of [
    ['defaults: { context: fixed }', /num_ctx/],
    ['defaults: { num_ctx: 3000 }', /num_ctx/],
    [`models: { ${DEMO}: { options: { num_ctx: 4096 } } }`, /num_ctx/],
    ['limits: { num_ctx: 4096 }', /limits\.num_ctx does not allow/]
  ] as const) {
    await restart(config)
    const reply = await corral.json('/api/chat', { model: DEMO, messages: far, stream: false })
    t.match(reply, refusedWith(400, 'context_exceeded', advice), config)
  }
})

t.test('a growing context takes fewer slots if there is not enough memory', thorough, async t => {
  await restart('')
  const sizes: number[] = []
  for (const num_parallel of [4, 1]) {
    await corral.json('/api/load', { model: DEMO, options: { num_ctx: 8192, num_parallel } })
    sizes.push((await corral.json('/api/ps')).body.models[0].size)
  }
  const memory = Math.round((sizes[0]! + sizes[1]!) / 2)
  // A server that has measured the model would find more room.
  const tight = await startCorral(t, { config: `scheduler: { memory: ${memory} }` })
  const options = { max_tokens: 20 }
  const reply = await tight.send('/api/chat', { model: DEMO, messages: far, options, stream: false })
  t.same([reply.status, reply.headers.get('x-corral-context')], [200, '8192'])
  t.equal((await tight.json('/api/ps')).body.models[0].slots, 1)
})
