import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import Fastify from 'fastify'
import t from 'tap'
import { imageSize, type Place, withUsableMedia } from '../../../../../core/answers/media-parts.ts'
import { decodeOpus } from '../../../../../core/answers/opus-sound.ts'
import type { EngineMode } from '../../../../../core/contracts/engines.ts'
import type { Capability } from '../../../../../core/contracts/models.ts'
import type { StoredVariant } from '../../../../../core/contracts/storage.ts'
import { packageRoot } from '../../../../../core/system/package-info.ts'
import { acceptForms } from '../../../../../plugins/apis/openai/media/form-body.ts'
import { TranscriptionRequest, transcriptionFields } from '../../../../../plugins/apis/openai/media/routes.ts'
import { openSoundEncoder, type SoundFormat } from '../../../../../plugins/apis/openai/media/sound-format.ts'
import { Transcript } from '../../../../../plugins/apis/openai/media/transcript.ts'
import { readModelFiles } from '../../../../../plugins/models/storage/model-files.ts'
import { launchSpec } from '../../../../../runtimes/llama-server/launch-spec.ts'
import { servesMode } from '../../../../../runtimes/llama-server/provider.ts'
import { isCacheFault, requestError } from '../../../../../runtimes/llama-server/request-error.ts'
import { fillFlacLength, soundLength } from '../../../../../runtimes/remote/speech/sound-length.ts'
import { safetensorsBytes } from '../../../../support/gguf-writer.ts'
import { sourceAt } from '../../../models/storage/support.ts'
import { refusal as refused, variantOf as storedVariant, testEngines } from '../support.ts'
import { hugePngBytes, pngBytes, WEBP, wavBytes } from './support.ts'

function variantOf(capabilities: Capability[], architecture = 'llama'): StoredVariant {
  const variant = storedVariant('a', 'b', { capabilities })
  variant.metadata.architecture = architecture
  return variant
}

const refusal = (work: () => unknown) => refused(work) ?? {}

t.test('the OpenAI API reads the size of images', async t => {
  t.same(imageSize(pngBytes(7, 9)), { width: 7, height: 9 })
  t.same(imageSize(hugePngBytes()), { width: 60_000, height: 60_000 })
  const gif = Buffer.from('GIF89a\x05\x00\x04\x00', 'latin1')
  t.same(imageSize(gif), { width: 5, height: 4 })
  const bmp = Buffer.alloc(26)
  bmp.write('BM', 'latin1')
  bmp.writeInt32LE(300, 18)
  bmp.writeInt32LE(-200, 22)
  t.same(imageSize(bmp), { width: 300, height: 200 }, 'rows from top to bottom')
  // A start marker, a segment with two more bytes than its length, padding, and the frame with 8 bits, height and
  // width.
  const jpeg = Buffer.from('ffd8ffe000040102ffffc2000b0801000200030000', 'hex')
  t.same(imageSize(jpeg), { width: 512, height: 256 })
  for (const cut of [pngBytes().subarray(0, 20), gif.subarray(0, 8), bmp.subarray(0, 20), jpeg.subarray(0, 14)]) {
    t.same(imageSize(cut), { width: 0, height: 0 })
  }
  t.same(imageSize(Buffer.from('ffd80000000000000000000000', 'hex')), { width: 0, height: 0 }, 'no marker')
  t.same(imageSize(Buffer.from('RIFF    WEBP')), { width: 0, height: 0 })
  for (const data of Object.values(WEBP)) t.same(imageSize(Buffer.from(data, 'base64')), { width: 20, height: 10 })
})

t.test('the OpenAI API checks images and audio in messages', async t => {
  const png = `data:image/png;base64,${pngBytes().toString('base64')}`
  const seeing = variantOf(['completion', 'vision'])
  const check = (part: object, variant = seeing, projector?: string | null) =>
    refusal(() => withUsableMedia([{ content: 'x' }, { content: [{ type: 'text' }, part] }], variant, { projector }))
  const image = (image_url: unknown) => ({ type: 'image_url', image_url })
  t.same(check(image({ url: png })), {})
  t.same(check(image(png)), {}, 'the URL without an object')
  t.same(
    check(image({ url: png.replace('image/png', 'application/octet-stream') })),
    {},
    'the type in the URL is ignored'
  )
  t.match(check(image({ url: png }), variantOf(['completion'])), {
    code: 'unsupported_capability',
    message: /has no projector/,
    param: 'messages[1].content[1]'
  })
  t.match(check(image({ url: png }), seeing, null), { code: 'unsupported_capability', message: /config\.yaml/ })
  t.same(check(image({ url: png }), variantOf(['completion']), '/m/mmproj.gguf'), {}, 'a projector from config.yaml')
  for (const given of [undefined, null, 5, '', {}, { url: 5 }, { url: null }]) {
    t.match(check(image(given)), { code: 'invalid_request', message: /contains no data/ }, JSON.stringify(given))
  }
  const sound = (data: string) => ({ type: 'input_audio', input_audio: { data, format: 'wav' } })
  const hearing = variantOf(['completion', 'audio'])
  t.same(check(sound(wavBytes(0.1).toString('base64')), hearing), {})
  t.same(check(sound(`data:audio/wav;base64,${wavBytes(0.1).toString('base64')}`), hearing), {})
  t.match(check(sound('HTTP://127.0.0.1/x.wav'), hearing), { message: /does not fetch/ })
  t.match(check(sound('http:/127.0.0.1/x.wav'), hearing), { message: /not valid base64/ })
  t.match(check(sound(pngBytes().toString('base64')), hearing), { message: /not a sound/ })
  const video = {
    type: 'video_url',
    video_url: { url: `data:video/mp4;base64,${Buffer.from('#EXTM3U').toString('base64')}` }
  }
  t.match(check(video), { code: 'invalid_request', message: /not a video/ })
  t.same(check({ type: 'constructor' }), {}, 'other types are left to the API')
})

t.test('media that a model cannot use become sentences in histories', async t => {
  const asked = {
    content: [
      { type: 'text', text: 'See.' },
      { type: 'image_url', image_url: { url: 'http://x' } }
    ]
  }
  const heard = { content: [{ type: 'input_audio', input_audio: { data: 'x' } }] }
  const question = { role: 'user', content: 'And?' }
  const answer = { role: 'assistant', content: 'Hm.' }
  const result = { role: 'tool', ...heard }
  const contents = (messages: Record<string, unknown>[], capabilities: Capability[], place?: Place) =>
    withUsableMedia(messages, variantOf(capabilities), {}, place).map(({ content }) => content)
  const blind = 'See.\n[There was an image here, but this model cannot understand images.]'
  const deaf = '[There was a sound here, but this model cannot understand sounds.]'
  t.strictSame(contents([asked, answer, result], ['completion']), [blind, 'Hm.', deaf])
  t.strictSame(contents([asked, heard, question], ['completion']), [blind, deaf, 'And?'], 'after a refusal')
  const bad = 'See.\n[There was an image here, but its data cannot be used.]'
  t.strictSame(contents([asked, answer, question], ['completion', 'vision']), [bad, 'Hm.', 'And?'])
  t.strictSame(contents([asked, answer, result, asked], ['completion'])[3], blind, 'behind the result of a tool')
  t.strictSame(
    contents([asked], ['completion'], () => undefined),
    [blind],
    'from an earlier message of the request'
  )
  for (const more of [[], [answer], [{ role: 'system', content: '' }]]) {
    t.match(
      refusal(() => contents([question, answer, asked, ...more], ['completion'])),
      {
        code: 'unsupported_capability'
      }
    )
  }
})

t.test('the OpenAI API parses multipart forms', async t => {
  const app = Fastify()
  t.teardown(() => app.close())
  acceptForms(app)
  app.setValidatorCompiler(() => () => true)
  app.post('/', { schema: { body: TranscriptionRequest } }, async ({ body }) => body)
  const part = (name: string, value: string, more = '') =>
    `--x\r\nContent-Disposition: form-data; name="${name}"${more}\r\n\r\n${value}\r\n`
  const send = (...parts: string[]) =>
    app.inject({
      method: 'POST',
      url: '/',
      headers: { 'content-type': 'multipart/form-data; boundary=x' },
      payload: `${parts.join('')}--x--\r\n`
    })
  const sent = await send(
    part('file', 'abc', '; filename="ü.wav"\r\nContent-Type: audio/wav'),
    part('temperature', '0.5'),
    part('stream', 'True'),
    part('model', '12'),
    part('include[]', 'logprobs'),
    part('include[]', 'more'),
    part('timestamp_granularities', 'word'),
    part('unknown', '7'),
    part('constructor', 'x')
  )
  t.same(sent.json(), {
    file: Buffer.from('abc').toString('base64'),
    temperature: 0.5,
    stream: true,
    model: '12',
    include: ['logprobs', 'more'],
    timestamp_granularities: ['word'],
    unknown: '7',
    constructor: 'x'
  })
  t.match((await send(part('temperature', 'hot'), part('stream', 'maybe'))).json(), {
    temperature: 'hot',
    stream: 'maybe'
  })
  for (const more of ['', '; filename="x"']) {
    const unnamed = await send(`--x\r\nContent-Disposition: form-data${more}\r\n\r\nabc\r\n`)
    t.match(unnamed.json(), { message: /has no name/ })
  }
  // The parser skips a part without headers, however long it is.
  t.same((await send(`--x\r\n\r\n${'y'.repeat(200_000)}\r\n`, part('model', 'a/b'))).json(), { model: 'a/b' })
})

t.test('the OpenAI API converts transcription requests and assembles transcripts', async t => {
  const request = { file: 'UklG' }
  t.same(transcriptionFields(request, 'transcribe'), { audio: 'UklG' })
  t.same(transcriptionFields({ ...request, prompt: 'Write it down', language: 'de' }, 'translate'), {
    audio: 'UklG',
    prompt: 'Write it down',
    language: 'de',
    translate: true
  })
  t.same(transcriptionFields({ file: 'data:audio/wav;base64,UklG', include: ['logprobs'] }, 'transcribe'), {
    audio: 'UklG',
    logprobs: true
  })
  for (const given of [{ response_format: 'vtt' as const }, { timestamp_granularities: ['word'] }]) {
    const [param] = Object.keys(given)
    const found = refusal(() => transcriptionFields({ ...request, ...given }, 'transcribe'))
    t.match(found, { code: 'unsupported_capability', param })
  }
  const transcript = new Transcript()
  t.same(transcript.add([{ reading: { tokens: 1, total: 3, cached: 0 } }]), [])
  const likely = { token: 'a', logprob: -1, bytes: [97] }
  t.same(transcript.add([{ content: 'a', logprobs: [{ ...likely, top_logprobs: [] }] }]), [
    { type: 'transcript.text.delta', delta: 'a', logprobs: [likely] }
  ])
  t.same(transcript.add([{ content: 'b' }]), [{ type: 'transcript.text.delta', delta: 'b' }])
  transcript.add([{ usage: { promptTokens: 5, cachedTokens: 2, completionTokens: 2 }, finish: 'stop' }])
  t.same(transcript.done(), {
    type: 'transcript.text.done',
    text: 'ab',
    logprobs: [likely],
    usage: { type: 'tokens', input_tokens: 5, output_tokens: 2, total_tokens: 7 }
  })
})

t.test('the OpenAI API writes transcripts with times in every format', async t => {
  for (const [task, format] of [
    ['transcribe', 'verbose_json'],
    ['translate', 'srt']
  ] as const) {
    t.match(transcriptionFields({ file: 'UklG', response_format: format }, task, true), { timed: true })
  }
  const word = (text: string, start: number) => ({ word: text, start, end: start + 0.5 })
  const transcript = new Transcript()
  t.equal(transcript.isTimed, true, 'nothing was said')
  const words = [word('Good', 0), word('morning.', 0.5)]
  transcript.add([{ content: 'Good morning.', json: { segment: { id: 0, start: 0, end: 1, words } } }])
  const changed = { id: 1, start: 3599.5, end: 3661.25, words: [word('Secret.', 3600)] }
  transcript.add([{ content: ' [filtered]', json: { segment: changed } }])
  transcript.add([{ json: { language: 'english', duration: 3662.1 }, finish: 'stop' }])
  t.equal(transcript.isTimed, true)
  t.same(transcript.verbose('transcribe', ['word', 'segment']), {
    task: 'transcribe',
    language: 'english',
    duration: 3662.1,
    text: 'Good morning. [filtered]',
    words,
    segments: [
      { id: 0, start: 0, end: 1, text: 'Good morning.' },
      { id: 1, start: 3599.5, end: 3661.25, text: '[filtered]' }
    ],
    usage: { type: 'duration', seconds: 3663 }
  })
  const cues = ['Good morning.', '[filtered]']
  t.equal(
    transcript.subtitles(','),
    `1\n00:00:00,000 --> 00:00:01,000\n${cues[0]}\n\n2\n00:59:59,500 --> 01:01:01,250\n${cues[1]}\n\n`
  )
  t.match(transcript.subtitles('.'), /^WEBVTT\n\n00:00:00\.000 --> 00:00:01\.000\nGood/)
  transcript.add([{ content: 'x' }])
  t.equal(new Transcript().verbose('transcribe', []).duration, 0)
})

/** Returns how much samples of 16 bits resemble others with another rate: 1 if they have the same shape. */
function likeness(one: Buffer, other: Buffer, rates: number): number {
  let [both, ones, others] = [0, 0, 0]
  for (let at = 0; 2 * at + 1 < one.length && 2 * Math.ceil(at * rates) + 1 < other.length; at++) {
    const before = Math.floor(at * rates)
    const [y, after] = [other.readInt16LE(2 * before), other.readInt16LE(2 * Math.ceil(at * rates))]
    const [x, z] = [one.readInt16LE(2 * at), y + (after - y) * (at * rates - before)]
    both += x * z
    ones += x * x
    others += z * z
  }
  return both / Math.sqrt(ones * others)
}

/** Decodes FLAC as corral writes it: one channel, fixed predictors, 4096 samples in all frames but the last. */
function decodeFlac(file: Buffer): Buffer {
  let at = 42 * 8
  const read = (bits: number) => {
    let value = 0
    for (; bits > 0; bits--, at++) value = value * 2 + ((file[at >> 3]! >> (7 - (at & 7))) & 1)
    return value
  }
  const signed = (value: number) => (value >= 2 ** 15 ? value - 2 ** 16 : value)
  const samples: number[] = []
  while (at < file.length * 8) {
    t.equal(read(16), 0xfff8)
    const isWhole = read(8) === 0xc0
    t.equal(read(8), 0x08)
    at += 8
    const block = isWhole ? 4096 : read(16) + 1
    at += 8
    const order = (read(8) >> 1) - 8
    const frame = Array.from({ length: order }, () => signed(read(16)))
    t.equal(read(2), 0)
    const partitions = 2 ** read(4)
    for (let partition = 0; partition < partitions; partition++) {
      const low = read(4)
      for (let left = block / partitions - (partition === 0 ? order : 0); left > 0; left--) {
        let high = 0
        while (read(1) === 0) high++
        const folded = high * 2 ** low + read(low)
        const [a = 0, b = 0, c = 0, d = 0] = frame.slice(-4).reverse()
        const predicted = [0, a, 2 * a - b, 3 * a - 3 * b + c, 4 * a - 6 * b + 4 * c - d][order]!
        frame.push(predicted + (folded % 2 ? -(folded + 1) / 2 : folded / 2))
      }
    }
    at = Math.ceil(at / 8) * 8 + 16
    samples.push(...frame)
  }
  const bytes = Buffer.alloc(2 * samples.length)
  for (const [at, sample] of samples.entries()) bytes.writeInt16LE(sample, 2 * at)
  return bytes
}

t.test('the OpenAI API encodes speech', async t => {
  const tone = Buffer.alloc(2 * 22_050)
  for (let at = 0; at < 22_050; at++) tone.writeInt16LE(Math.round(8000 * Math.sin(at / 10)), 2 * at)
  const type = 'audio/pcm;rate=22050'
  const encoded = async (format: SoundFormat, cuts: number[]) => {
    const encoder = await openSoundEncoder(format)
    const ends = [...cuts, tone.length]
    const pieces = ends.map((end, at) => encoder.add({ bytes: tone.subarray(ends[at - 1] ?? 0, end), type }))
    return Buffer.concat([...pieces, encoder.end()])
  }
  for (const format of ['wav', 'pcm', 'flac'] as const) {
    const whole = await encoded(format, [])
    t.ok((await encoded(format, [1, 4001, 30_000])).equals(whole), `${format} in pieces`)
  }
  const wav = await encoded('wav', [])
  t.ok(wav.subarray(44).equals(tone))
  t.same(
    [wav.toString('latin1', 0, 4), wav.readUInt16LE(22), wav.readUInt32LE(24), wav.readUInt16LE(34)],
    ['RIFF', 1, 22_050, 16]
  )
  const pcm = await encoded('pcm', [])
  t.ok(Math.abs(pcm.length / 2 - 24_000) <= 2, `${pcm.length / 2} samples`)
  t.ok(Math.abs(pcm.readInt16LE(2 * 12_000) - tone.readInt16LE(2 * 11_025)) < 100, 'the same tone')
  const mp3 = await encoded('mp3', [999])
  t.ok(Math.abs(soundLength(mp3)! - 1) < 0.15, `${soundLength(mp3)} s`)
  const flac = await encoded('flac', [999])
  t.ok(flac.length < 0.7 * tone.length, `${flac.length} bytes`)
  t.ok(decodeFlac(flac).equals(tone), 'nothing is lost')
  const noise = Buffer.from(Array.from({ length: 9000 }, (_, at) => (at * at * 7919) >> 5))
  const noisy = await openSoundEncoder('flac')
  const made = Buffer.concat([noisy.add({ bytes: noise, type }), noisy.end()])
  t.ok(decodeFlac(made).equals(noise), 'noise that no predictor predicts')
  t.equal(soundLength(flac), undefined, 'the length was not known when the stream began')
  t.ok(fillFlacLength(flac))
  t.equal(soundLength(flac), 1)
  const opus = await encoded('opus', [999])
  t.ok(opus.length < 0.3 * tone.length, `${opus.length} bytes`)
  t.match(opus.toString('latin1'), /^OggS.*OpusHead.*OggS.*OpusTags.*OggS/s)
  const heard = decodeOpus(opus, 2 ** 20)
  t.ok('wav' in heard)
  const wave = Buffer.from((heard as { wav: Uint8Array }).wav)
  t.ok(Math.abs(soundLength(wave)! - 1) < 0.03, `${soundLength(wave)} s`)
  t.ok(likeness(wave.subarray(44), tone, 22_050 / 16_000) > 0.99, 'the same tone')
  const strange = await openSoundEncoder('wav')
  t.throws(() => strange.add({ bytes: tone, type: 'audio/mpeg' }), { code: 'engine_crashed' })
  for (const format of ['mp3', 'opus', 'flac'] as const) {
    t.equal((await openSoundEncoder(format)).end().length, 0, `nothing was said in ${format}`)
  }
})

t.test('recordings in Opus are decoded within limits', async t => {
  const tone = (rate: number) => Math.sin((2 * Math.PI * 440 * rate) / 16_000)
  for (const name of ['tone-440.webm', 'tone-440-live.webm']) {
    const file = readFileSync(join(packageRoot, 'test', 'fixtures', 'sounds', name))
    const heard = decodeOpus(file, 2 ** 20)
    t.ok('wav' in heard, name)
    const wav = Buffer.from((heard as { wav: Uint8Array }).wav)
    t.equal(wav.readUInt32LE(24), 16_000)
    t.ok(Math.abs(soundLength(wav)! - 0.5) < 0.03, `${soundLength(wav)} s`)
    // The phase is the encoder's, so both parts of the frequency are compared.
    const part = (shift: number) => {
      const wave = Buffer.alloc(wav.length - 44)
      for (let at = 0; at < wave.length / 2; at++) wave.writeInt16LE(Math.round(4000 * tone(at + shift)), 2 * at)
      return likeness(wav.subarray(44), wave, 1)
    }
    t.ok(Math.hypot(part(0), part(16_000 / 440 / 4)) > 0.95, 'the same tone')
    t.same(decodeOpus(file, 1000), { fault: 'memory' }, 'more than the limit')
    t.ok('wav' in decodeOpus(file.subarray(0, file.length - 100), 2 ** 20), 'a truncated recording')
    for (let length = 0; length < 600; length += 7) decodeOpus(file.subarray(0, length), 2 ** 20)
  }
  const other = await openSoundEncoder('opus')
  const type = 'audio/pcm;rate=16000'
  const sound = Buffer.concat([other.add({ bytes: Buffer.alloc(32_000), type }), other.end()])
  const vorbis = Buffer.from(sound.toString('latin1').replace('OpusHead', '\x01vorbis '), 'latin1')
  t.same(decodeOpus(vorbis, 2 ** 20), { fault: 'codec' })
  // Each packet of two bytes says that it has 48 frames of 60 ms.
  const bomb = Buffer.concat([sound.subarray(0, 27 + 1 + 19 + 27 + 1 + 22), bombPage(255, sound.readUInt32LE(14))])
  t.same(decodeOpus(bomb, 2 ** 20), { fault: 'memory' })
})

function bombPage(packets: number, serial: number): Buffer {
  const header = Buffer.alloc(27)
  header.write('OggS')
  header.writeUInt32LE(serial, 14)
  header[26] = packets
  const body = Buffer.from(Array.from({ length: packets }, () => [0x1b, 48]).flat())
  return Buffer.concat([header, Buffer.alloc(packets, 2), body])
}

t.test('the OpenAI API detects the pooling of a sentence-transformers folder', async t => {
  const modules = [
    { idx: 0, path: '', type: 'sentence_transformers.models.Transformer' },
    { idx: 1, path: '1_Pooling', type: 'sentence_transformers.models.Pooling' }
  ]
  const folder = t.testdir({
    'config.json': JSON.stringify({ architectures: ['Qwen3ForCausalLM'], model_type: 'qwen3' }),
    'modules.json': JSON.stringify(modules),
    '1_Pooling': { 'config.json': JSON.stringify({ pooling_mode_mean_tokens: false, pooling_mode_lasttoken: true }) }
  })
  writeFileSync(join(folder, 'model.safetensors'), safetensorsBytes())
  const file = (path: string, role: 'model' | 'other' = 'other') => ({ path, role, ...sourceAt(join(folder, path)) })
  const weights = file('model.safetensors', 'model')
  const described = ['config.json', 'modules.json', '1_Pooling/config.json'].map(path => file(path))
  const { capabilities, info } = await readModelFiles('safetensors', [weights, ...described], weights.path)
  t.same(capabilities, ['embedding'])
  t.equal(info['qwen3.pooling_type'], 3, 'the engine receives the pooling type')
  const without = await readModelFiles('safetensors', [weights, ...described.slice(0, 2)], weights.path)
  t.equal(without.info['qwen3.pooling_type'], undefined)
})

t.test('a model serves the modes of its capabilities', async t => {
  const table: [Capability[], EngineMode[], RegExp][] = [
    [['completion', 'tools', 'vision'], ['chat', 'embedding'], /it generates text\./],
    [['embedding'], ['embedding'], /it makes embeddings \(/],
    [['rerank'], ['rerank'], /it ranks documents \(/],
    [[], [], /cannot run models of its kind \(t5\)/]
  ]
  const engines = testEngines(0)
  const provider = { name: 'test', serves: servesMode, start: () => Promise.reject(new Error('not here')) }
  engines.add(provider)
  t.throws(() => engines.add(provider), { message: /"test" already/ })
  for (const [capabilities, able, words] of table) {
    const variant = variantOf(capabilities, 't5')
    for (const mode of ['chat', 'embedding', 'rerank'] as const) {
      const found = refusal(() => engines.requireProvider(variant, mode))
      if (able.includes(mode)) t.same(found, {}, `${capabilities} ${mode}`)
      else t.match(found, { code: 'unsupported_capability', message: words }, `${capabilities} ${mode}`)
    }
  }
  const files = { modelPath: '/m/a.gguf', projectorPath: '/m/mmproj.gguf' }
  const settings = { arguments: [], environment: {}, speculation: { ngram: false }, loras: [] }
  const projectorOf = (mode: EngineMode, more: { projector?: string | null } = {}) =>
    launchSpec(
      {
        alias: 'a/b',
        mode,
        variant: variantOf(['completion']),
        options: {} as never,
        settings: { ...settings, ...more }
      },
      files,
      { find: () => undefined }
    ).projectorPath
  t.equal(projectorOf('chat'), '/m/mmproj.gguf')
  t.equal(projectorOf('chat', { projector: '/x.gguf' }), '/x.gguf')
  t.equal(projectorOf('chat', { projector: null }), undefined)
  t.equal(projectorOf('embedding'), undefined, 'embedding engines get no images')
})

t.test("the OpenAI API recognizes llama-server's errors about media", async t => {
  const said = (message: string, status = 500) =>
    requestError(status, JSON.stringify({ error: { code: status, message } }))
  const mistakes = ['Failed to load image or audio file', 'Failed to tokenize prompt', 'Invalid base64 value']
  for (const message of mistakes) t.equal(said(message).code, 'invalid_request', message)
  t.match(said('Failed to load image or audio file').details, { unreadable_media: true })
  const named = ['uri must be base64 encoded', 'unsupported content[].type', 'Invalid uri format: data:text/plain']
  for (const message of named) t.equal(said(message, 400).code, 'invalid_request', message)
  const hint = 'hint: if this is unexpected, you may need to provide the mmproj'
  for (const sense of ['image', 'audio', 'video']) {
    t.equal(said(`${sense} input is not supported - ${hint}`).code, 'unsupported_capability')
  }
  t.equal(said('The current model does not support audio input.', 501).code, 'unsupported_capability')
  t.ok(isCacheFault(said('got exception: Chunk not found')))
  t.notOk(isCacheFault(said('Failed to load image or audio file')))
  t.notOk(isCacheFault(new Error('Chunk not found')))
})
