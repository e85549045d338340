import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import OpenAI, { toFile } from 'openai'
import t from 'tap'
import { openSoundEncoder, type SoundFormat } from '../../../../../plugins/apis/openai/media/sound-format.ts'
import { fillFlacLength } from '../../../../../runtimes/remote/speech/sound-length.ts'
import { DEMO, startCorral, until } from '../../../../support/corral.ts'
import { thorough } from '../../../../support/thorough.ts'
import { hugePngBytes, importModels, MODELS, pngBytes, WEBP, wavBytes, writeModels } from './support.ts'

// Images and audio with projectors of random weights. The answers are meaningless: the tests check that media reach the
// model, and that errors are reported before a model is loaded.
const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n  max_tokens: 16\n  num_ctx: 1024\n' })
await importModels(corral, await writeModels(t.testdir()))
const client = new OpenAI({ baseURL: `${corral.url}/v1`, apiKey: 'any', maxRetries: 0 })

const base64 = (bytes: Buffer) => bytes.toString('base64')
const dataUrl = (bytes: Buffer, type = 'image/png') => `data:${type};base64,${base64(bytes)}`
const PNG = pngBytes()
const text = { type: 'text', text: 'What do you see?' }
const image = (url: string) => ({ type: 'image_url', image_url: { url } })
const sound = (data: string, format = 'wav') => ({ type: 'input_audio', input_audio: { data, format } })
const chat = (model: string, ...content: unknown[]) =>
  corral.json('/v1/chat/completions', { model, messages: [{ role: 'user', content }] })
const nothingLoaded = async () => {
  const { models, loading } = (await corral.json('/api/ps')).body
  return models.length === 0 && loading.length === 0
}

t.test('invalid media are refused before a model is loaded', async t => {
  let fetched = 0
  const server = createServer((_, response) => {
    fetched++
    response.end(PNG)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => void server.close())
  const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}/x.png`
  const playlist = Buffer.from(`#EXTM3U\n#EXTINF:1,\n${address}\n#EXT-X-ENDLIST\n`)

  const hello = Buffer.from('Hello, world')
  const cases: [what: string, part: { type: string }, words: RegExp][] = [
    ['invalid base64', image('data:image/png;base64,!!!'), /not valid base64/],
    ['nothing', image('data:image/png;base64,'), /is not an image/],
    ['not an image', image(dataUrl(hello)), /is not an image that can be read/],
    ['a playlist', image(dataUrl(playlist)), /is not an image that can be read/],
    ['a sound', image(dataUrl(wavBytes(0.1))), /is not an image that can be read/],
    ['a URL', image(address), /corral does not fetch anything/],
    ['a file', image('file:///etc/passwd'), /corral does not fetch anything/],
    ['a path', image('/etc/passwd'), /must be a data URL/],
    ['a huge image', image(dataUrl(hugePngBytes())), /60000 × 60000 pixels/],
    ['a URL as audio', sound(address), /corral does not fetch anything/],
    ['not audio', sound(base64(hello)), /is not a sound that can be read/],
    ['Ogg', sound(base64(Buffer.from('OggS0000000000'))), /Send WAV, MP3 or FLAC/]
  ]
  for (const [what, part, words] of cases) {
    const { status, body } = await chat(part.type === 'image_url' ? MODELS.seeing : MODELS.hearing, text, part)
    t.equal(status, 400, `${what}: ${JSON.stringify(body)}`)
    t.match(body.error, { code: 'invalid_request', type: 'invalid_request_error', message: words }, what)
    t.ok(String(body.error.param).startsWith('messages[0].content[1]'), `${what}: ${body.error.param}`)
  }
  const senseless: [string, unknown, RegExp][] = [
    [DEMO, image(dataUrl(PNG)), /cannot understand images: it has no projector/],
    [MODELS.hearing, image(dataUrl(PNG)), /cannot understand images/],
    [MODELS.seeing, sound(base64(wavBytes(0.1))), /cannot understand sounds/]
  ]
  for (const [model, part, words] of senseless) {
    const { status, body } = await chat(model, text, part)
    t.match({ status, error: body.error }, { status: 400, error: { code: 'unsupported_capability', message: words } })
  }
  const native: [model: string, images: string[], code: string, place: string][] = [
    [DEMO, [base64(PNG)], 'unsupported_capability', 'no projector'],
    [MODELS.seeing, [base64(PNG), 'AAAA'], 'invalid_request', 'images[1]'],
    [MODELS.seeing, ['http://x/y'], 'invalid_request', 'images[0]']
  ]
  for (const [model, images, code, place] of native) {
    const messages = [{ content: 'x', images }]
    const { status, body } = await corral.json('/api/chat', { model, messages, stream: false })
    t.match({ status, body }, { status: 400, body: { code } }, JSON.stringify(body))
    t.ok(body.error.includes(place), body.error)
  }
  t.equal(fetched, 0, 'no URL was fetched')
  t.ok(await nothingLoaded())
})

t.test('models see WebP images, and images that tools return', async t => {
  const tokens = async (content: unknown[]) => (await chat(MODELS.seeing, ...content)).body.usage?.prompt_tokens
  const seen = await tokens([text, image(dataUrl(pngBytes(20, 10)))])
  for (const [kind, data] of Object.entries(WEBP)) {
    t.equal(await tokens([text, image(`data:image/webp;base64,${data}`)]), seen, kind)
  }
  const damaged = image(dataUrl(Buffer.from(WEBP.lossless, 'base64').subarray(0, 40)))
  t.match(await chat(MODELS.seeing, damaged), {
    status: 400,
    body: { error: { code: 'invalid_request', param: 'messages[0].content[0].image_url', message: /it is damaged/ } }
  })
  const call = { id: 'a', type: 'function', function: { name: 'look', arguments: '{}' } }
  const answer = async (...content: unknown[]) => {
    const messages = [{ content: 'Look.' }, { role: 'assistant', tool_calls: [call] }, { role: 'tool', content }]
    const { status, body } = await corral.json('/v1/chat/completions', { model: MODELS.seeing, messages })
    t.equal(status, 200, JSON.stringify(body))
    return body.usage.prompt_tokens
  }
  const bare = await answer({ type: 'text', text: '' })
  t.ok((await answer(image(dataUrl(PNG)))) > bare + 10, 'the image itself')
  t.ok((await answer(image(`data:image/webp;base64,${WEBP.lossy}`))) > bare + 10)
  await answer(damaged)
})

t.test('all APIs accept images', async t => {
  const one = await chat(MODELS.seeing, text, image(dataUrl(PNG)))
  t.equal(one.status, 200, JSON.stringify(one.body))
  const without = await chat(MODELS.seeing, text)
  const tokens = one.body.usage.prompt_tokens - without.body.usage.prompt_tokens
  t.ok(tokens >= 16, `an image has ${tokens} tokens`)
  const two = await chat(MODELS.seeing, text, image(dataUrl(PNG)), image(dataUrl(pngBytes(40, 20, 5))))
  t.ok(two.body.usage.prompt_tokens - one.body.usage.prompt_tokens >= 16, 'two images have more tokens')

  const { seeing: model } = MODELS
  const body = { model, messages: [{ content: text.text, images: [base64(PNG)] }], stream: false }
  const native = await corral.json('/api/chat', body)
  t.equal(native.status, 200, JSON.stringify(native.body))
  t.equal(native.body.prompt_eval_count, one.body.usage.prompt_tokens, 'the native API counts the same tokens')
  const prompted = { model, prompt: text.text, images: [dataUrl(PNG)], stream: false }
  const generated = await corral.json('/api/generate', prompted)
  t.equal(generated.body.prompt_eval_count, one.body.usage.prompt_tokens)
  const asked = [{ role: 'user', content: [text, image(dataUrl(PNG))] }]
  const events = await corral.events('/v1/chat/completions', { model, messages: asked, stream: true })
  t.equal(events.at(-1), '[DONE]')
  const source = { type: 'base64', media_type: 'image/png', data: base64(PNG) }
  const messages = [{ role: 'user', content: [{ type: 'image', source }, text] }]
  const message = await corral.json('/v1/messages', { model, max_tokens: 16, messages })
  t.equal(message.status, 200, JSON.stringify(message.body))
  const content = [
    { type: 'input_text' as const, text: text.text },
    { type: 'input_image' as const, image_url: dataUrl(PNG), detail: 'auto' as const }
  ]
  const response = await client.responses.create({ model, input: [{ role: 'user', content }] })
  t.equal(response.usage?.input_tokens, one.body.usage.prompt_tokens)

  // The start looks like an image, so only llama-server detects the error.
  const damaged = await chat(MODELS.seeing, text, image(dataUrl(PNG.subarray(0, 30))))
  t.match(damaged, { status: 400, body: { error: { code: 'invalid_request' } } }, JSON.stringify(damaged.body))
  t.equal((await chat(MODELS.seeing, text)).status, 200, 'the engine still works')
})

t.test('chats accept audio', async t => {
  const heard = await chat(MODELS.hearing, text, sound(base64(wavBytes(1))))
  t.equal(heard.status, 200, JSON.stringify(heard.body))
  t.ok(heard.body.usage.prompt_tokens > 150, `${heard.body.usage.prompt_tokens} tokens`)
  const url = await chat(MODELS.hearing, text, sound(dataUrl(wavBytes(1), 'audio/wav')))
  t.equal(url.body.usage?.prompt_tokens, heard.body.usage.prompt_tokens, JSON.stringify(url.body))
  const damaged = await chat(MODELS.hearing, text, sound(base64(wavBytes(1).subarray(0, 30))))
  t.match(damaged, { status: 400, body: { error: { code: 'invalid_request' } } }, JSON.stringify(damaged.body))
})

t.test('the OpenAI API transcribes and translates audio', async t => {
  const file = () => toFile(wavBytes(1), 'tone.wav', { type: 'audio/wav' })
  const json = await client.audio.transcriptions.create({ model: MODELS.hearing, file: await file(), language: 'en' })
  t.type(json.text, 'string')
  t.match(json.usage, { type: 'tokens', input_tokens: Number, output_tokens: Number, total_tokens: Number })
  t.ok((json.usage as { input_tokens: number }).input_tokens > 150, 'the audio was processed')
  const plain = await client.audio.transcriptions.create({
    model: MODELS.hearing,
    file: await file(),
    language: 'en',
    response_format: 'text'
  })
  t.equal(plain as unknown as string, `${json.text}\n`)
  const prompted = await client.audio.transcriptions.create({
    model: MODELS.hearing,
    file: await file(),
    prompt: 'What is the capital of France? '.repeat(5),
    temperature: 0,
    include: ['logprobs']
  })
  t.ok(
    (prompted.usage as { input_tokens: number }).input_tokens > (json.usage as { input_tokens: number }).input_tokens
  )
  t.match(prompted.logprobs, [{ token: String, logprob: Number, bytes: Array }])

  let streamed = ''
  const types = new Set<string>()
  const stream = await client.audio.transcriptions.create({
    model: MODELS.hearing,
    file: await file(),
    language: 'en',
    stream: true
  })
  for await (const event of stream) {
    types.add(event.type)
    if (event.type === 'transcript.text.delta') streamed += event.delta
    if (event.type === 'transcript.text.done') t.match(event, { text: streamed, usage: json.usage })
  }
  t.equal(streamed, json.text)
  t.same([...types], ['transcript.text.delta', 'transcript.text.done'])
  const translated = await client.audio.translations.create({ model: MODELS.hearing, file: await file() })
  t.type(translated.text, 'string')
  const asJson = await corral.json('/v1/audio/transcriptions', {
    model: MODELS.hearing,
    file: base64(wavBytes(1)),
    language: 'en'
  })
  t.same(asJson.body, { ...json }, 'JSON with base64 is accepted too')
  const long = new FormData()
  for (const [name, value] of Object.entries({ model: MODELS.hearing, num_ctx: '600', max_tokens: '3', seed: '1' })) {
    long.append(name, value)
  }
  long.append('file', new Blob([wavBytes(65)]), 'long.wav')
  const heard = await fetch(`${corral.url}/v1/audio/transcriptions`, { method: 'POST', body: long })
  const { usage } = (await heard.json()) as any
  t.ok(usage.input_tokens > 450, 'three segments of 30 seconds')
  t.equal(usage.output_tokens, 3)
  const form = new FormData()
  form.append('model', MODELS.hearing)
  form.append('file', new Blob([wavBytes(240)]), 'longer.wav')
  const tooLong = await fetch(`${corral.url}/v1/audio/transcriptions`, { method: 'POST', body: form })
  t.match(await tooLong.json(), { error: { code: 'context_length_exceeded', n_prompt_tokens: Number, n_ctx: Number } })
})

t.test('sounds in FLAC and Opus are heard', thorough, async t => {
  const encoded = async (format: SoundFormat) => {
    const encoder = await openSoundEncoder(format)
    return Buffer.concat([
      encoder.add({ bytes: wavBytes(1).subarray(44), type: 'audio/pcm;rate=16000' }),
      encoder.end()
    ])
  }
  const plain = await chat(MODELS.hearing, text, sound(base64(wavBytes(1))))
  const opus = await chat(MODELS.hearing, text, sound(base64(await encoded('opus'))))
  t.equal(opus.status, 200, JSON.stringify(opus.body))
  t.equal(opus.body.usage.prompt_tokens, plain.body.usage.prompt_tokens)
  const flac = await encoded('flac')
  fillFlacLength(flac)
  const lossless = await chat(MODELS.hearing, text, sound(base64(flac)))
  t.match(
    lossless.body,
    { choices: plain.body.choices, usage: { prompt_tokens: plain.body.usage.prompt_tokens } },
    'the engine reads the same samples'
  )
  const transcribed = await client.audio.transcriptions.create({
    model: MODELS.hearing,
    file: await toFile(await encoded('opus'), 'voice.ogg', { type: 'audio/ogg' })
  })
  t.ok((transcribed.usage as { input_tokens: number }).input_tokens > 150, 'the audio was processed')
  const cut = sound(base64((await encoded('opus')).subarray(0, 20)))
  const refused = await chat(MODELS.hearing, text, cut)
  t.match(refused, { status: 400, body: { error: { code: 'invalid_request', message: /does not contain Opus/ } } })
  const messages = [
    { role: 'user', content: [cut] },
    { role: 'assistant', content: 'Well.' },
    { role: 'user', content: 'Hi' }
  ]
  t.match(await corral.json('/v1/chat/completions', { model: MODELS.hearing, messages }), { status: 200 })
})

t.test('the OpenAI API refuses invalid transcription requests', async t => {
  /** Sends a form without its empty fields. */
  const send = (fields: Record<string, string | Blob>) => {
    const form = new FormData()
    for (const [name, value] of Object.entries(fields)) {
      if (typeof value !== 'string') form.append(name, value, 'tone.wav')
      else if (value !== '') form.append(name, value)
    }
    return fetch(`${corral.url}/v1/audio/transcriptions`, { method: 'POST', body: form })
  }
  const file = new Blob([wavBytes(0.2)])
  const { hearing: model } = MODELS
  const unable = 'unsupported_capability'
  const wrong = 'invalid_request'
  const cases: [fields: Record<string, string | Blob>, code: string, param: string | null, words: RegExp][] = [
    [{ model: '', file }, 'invalid_model_name', 'model', /model/],
    [{ model: 'random/none' }, 'model_not_found', null, /random\/none/],
    [{ model: DEMO }, unable, 'file', /cannot understand sounds/],
    [{ model: MODELS.seeing }, unable, 'file', /cannot understand sounds/],
    [{ file: '' }, wrong, 'file', /"file" is missing\. It must be a file of a form/],
    [{ file: new Blob([]) }, wrong, 'file', /contains no data/],
    [{ file: new Blob(['no sound at all']) }, wrong, 'file', /WAV, MP3 or FLAC/],
    [{ file: new Blob([wavBytes(0.2).subarray(0, 20)]) }, wrong, null, /audio/],
    [{ response_format: 'srt' }, unable, 'response_format', /"json" or "text"/],
    [
      { response_format: 'verbose_json' },
      unable,
      'response_format',
      /needs times, which the engine of this model does not report/
    ],
    [{ response_format: 'poem' }, wrong, 'response_format', /"json"/],
    [{ 'timestamp_granularities[]': 'word' }, unable, 'timestamp_granularities', /./],
    [{ temperature: 'hot' }, 'invalid_option', 'temperature', /number/],
    [{ stream: 'perhaps' }, wrong, 'stream', /true or false/]
  ]
  for (const [fields, code, param, words] of cases) {
    const response = await send({ model, file, ...fields })
    const { error } = (await response.json()) as any
    const status = code === 'model_not_found' ? 404 : 400
    t.match({ status: response.status, error }, { status, error: { code, message: words } }, JSON.stringify(error))
    if (param !== null) t.equal(error.param, param)
  }
  const raw = (body: string, type: string) =>
    corral.json('/v1/audio/transcriptions', body, { headers: { 'content-type': type } })
  const form = 'multipart/form-data; boundary=x'
  const part = (name: string) => `--x\r\nContent-Disposition: form-data; name="${name}"\r\n\r\nb\r\n`
  for (const [body, type] of [
    ['--x\r\nContent-Disposition: form-data; name="model"\r\n\r\na/b', form],
    ['nothing', 'multipart/form-data'],
    ['--x--\r\n', form],
    [`${part('a').repeat(200)}--x--\r\n`, form],
    [`${part('__proto__')}--x--\r\n`, form],
    ['{}', 'application/json'],
    ['[', 'application/json']
  ]) {
    const { status, body: answer } = await raw(body!, type!)
    t.equal(status, 400, `${body!.slice(0, 40)}: ${JSON.stringify(answer)}`)
    t.type(answer.error.message, 'string')
  }
})

t.test('a disconnecting client frees its slot', async t => {
  const controller = new AbortController()
  const form = new FormData()
  form.append('model', MODELS.hearing)
  form.append('file', new Blob([wavBytes(120)]), 'long.wav')
  const left = fetch(`${corral.url}/v1/audio/transcriptions`, { method: 'POST', body: form, signal: controller.signal })
  const running = async () => {
    const { models } = (await corral.json('/api/ps')).body
    return models.find((model: any) => model.name === MODELS.hearing)?.running
  }
  await until('the request runs', async () => (await running()) === 1)
  controller.abort()
  await t.rejects(left)
  await until('the slot is free', async () => (await running()) === 0)
})

t.test('the OpenAI API refuses speech and images', async t => {
  const speech = client.audio.speech.create({ model: DEMO, input: 'Hi', voice: 'alloy' })
  await t.rejects(speech, { status: 400, code: 'unsupported_capability', message: /cannot speak/ })
  const none = client.images.generate({ model: 'random/none', prompt: 'a horse' })
  await t.rejects(none, { status: 404, code: 'model_not_found' })
  const picture = client.images.generate({ model: DEMO, prompt: 'a horse' })
  await t.rejects(picture, { status: 400, code: 'unsupported_capability', message: /cannot make images/ })
  const png = () => toFile(PNG, 'x.png', { type: 'image/png' })
  const edit = client.images.edit({ model: DEMO, prompt: 'a horse', image: await png() })
  await t.rejects(edit, { status: 400, code: 'unsupported_capability' })
  const variation = client.images.createVariation({ model: DEMO, image: await png() })
  await t.rejects(variation, { status: 400, code: 'unsupported_capability' })
})
