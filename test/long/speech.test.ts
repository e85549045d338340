import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { WebSocket } from 'ws'
import { wavHeader } from '../../core/answers/wav-header.ts'
import { COMMAND, DEMO, startCorral, until } from '../support/corral.ts'
import { readFixture } from '../support/fixture.ts'
import { newFolder } from '../support/folder.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import { type SpeechTools, speechTools } from '../support/speech/speech-tools.ts'

// Programs are installed at first, and the recognizer is slow beside other tests.
t.setTimeout(3_600_000)

/* Real voices and recognizers: piper speaks, and whisper.cpp writes down what it hears. */

const SENTENCES: string[] = readFixture('spoken-sentences.json')
const VOICE = 'rhasspy/piper-voices'
const RECOGNIZER = 'ggerganov/whisper.cpp'

const wordsOf = (text: string) =>
  text
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s]/gu, ' ')
    .split(/\s+/)
    .filter(Boolean)

/** Returns how many words of the first text are right in the second one, by the smallest number of changes. */
function matches(wanted: string[], heard: string[]): number {
  let row = Array.from({ length: heard.length + 1 }, (_, at) => at)
  for (const [y, word] of wanted.entries()) {
    const next = [y + 1]
    for (const [x, other] of heard.entries()) {
      next.push(Math.min(row[x + 1]! + 1, next[x]! + 1, row[x]! + (word === other ? 0 : 1)))
    }
    row = next
  }
  return wanted.length - row.at(-1)!
}

const tools = await speechTools()
t.test('speech', { skip: typeof tools === 'string' && tools }, async t => {
  const { voice, recognizer, whisper, python } = tools as SpeechTools
  const config = `speech: ${JSON.stringify({ whisper_server: whisper, python })}`
  const hub = await startHubEmulator(t, {
    repositories: {
      [RECOGNIZER]: { files: { 'ggml-base.bin': { from: recognizer }, 'ggml-tiny.bin': 'other', 'README.md': '# x' } },
      [VOICE]: {
        files: {
          'en/en_US/joe/medium/en_US-joe-medium.onnx': { from: voice },
          'en/en_US/joe/medium/en_US-joe-medium.onnx.json': { from: `${voice}.json` },
          'en/en_US/joe/medium/MODEL_CARD': 'joe'
        }
      }
    }
  })
  const corral = await startCorral(t, { env: { HF_ENDPOINT: hub.url }, config })
  const speak = async (body: object, init = {}) => {
    const reply = await corral.send('/v1/audio/speech', { model: VOICE, response_format: 'wav', ...body }, init)
    return {
      status: reply.status,
      type: reply.headers.get('content-type'),
      bytes: Buffer.from(await reply.arrayBuffer())
    }
  }
  const transcribe = (sound: Buffer, body: object = {}, path = 'transcriptions') =>
    corral.json(`/v1/audio/${path}`, { model: RECOGNIZER, file: sound.toString('base64'), ...body })
  const text = async (sound: Buffer, body: object) => {
    const reply = await corral.send('/v1/audio/transcriptions', {
      model: RECOGNIZER,
      file: sound.toString('base64'),
      ...body
    })
    return { type: reply.headers.get('content-type'), text: await reply.text() }
  }
  const programs = () => {
    const { stdout } = spawnSync('pgrep', ['-f', `(whisper-server|piper.http_server).* ${join(corral.home, 'models')}`])
    return stdout.toString().split('\n').filter(Boolean).map(Number)
  }
  const two = 'The doctor asked him to rest for two weeks. The river was so cold that nobody wanted to swim.'

  t.test('pulls, lists and shows models for speech', async t => {
    const unnamed = await corral.json('/api/pull', { model: RECOGNIZER, dry_run: true })
    t.match(unnamed, { status: 400, body: { error: /2 models: base.*, tiny/ } })
    for (const model of [`${RECOGNIZER}:base`, `${VOICE}:en_US-joe-medium`]) {
      const events = await corral.events('/api/pull', { model })
      t.match(events.at(-1), { status: 'success' }, model)
    }
    const { models } = (await corral.json('/api/tags')).body
    t.match(Object.fromEntries(models.map((model: any) => [model.name, model])), {
      [RECOGNIZER]: { format: 'ggml', capabilities: ['audio', 'transcribe', 'translate'] },
      [VOICE]: { format: 'onnx', capabilities: ['speak'] }
    })
    const shown = await corral.json('/api/show', { model: VOICE })
    t.match(shown.body.model_info, { 'audio.sample_rate': 22050 })
    t.same((await corral.json('/v1/audio/voices')).body.data, [
      { id: 'en_US-joe-medium', name: 'en_US-joe-medium', model: VOICE, language: 'en_US' }
    ])
    t.match(await corral.json('/api/chat', { model: VOICE, messages: [{ role: 'user', content: 'Hi' }] }), {
      status: 400
    })
  })

  t.test('transcribes at least 95 % of the words of spoken sentences', async t => {
    let [wanted, heard] = [0, 0]
    // Several in a recording, because the recognizer computes half a minute at a time.
    for (let at = 0; at < SENTENCES.length; at += 5) {
      const text = SENTENCES.slice(at, at + 5).join(' ')
      const { bytes } = await speak({ input: text })
      const { status, body } = await transcribe(bytes, { language: 'en' })
      t.equal(status, 200, JSON.stringify(body))
      const words = wordsOf(text)
      const same = matches(words, wordsOf(body.text))
      if (same < words.length) t.comment(`${text} / ${body.text}`)
      wanted += words.length
      heard += same
    }
    t.comment(`${heard} of ${wanted} words`)
    t.ok(heard >= 0.95 * wanted, `${heard} of ${wanted} words`)
  })

  t.test('writes every format of OpenAI', async t => {
    const { bytes } = await speak({ input: two })
    const granularities = { timestamp_granularities: ['word', 'segment'] }
    const verbose = (await transcribe(bytes, { response_format: 'verbose_json', ...granularities })).body
    t.match(verbose, { task: 'transcribe', language: 'english', usage: { type: 'duration' } })
    t.ok(verbose.duration > 3 && verbose.duration < 20, `${verbose.duration} s`)
    t.equal(verbose.segments.map((segment: any) => segment.text).join(' '), verbose.text.trim())
    t.equal(verbose.words.map(({ word }: any) => word).join(' '), verbose.text.trim())
    const times = verbose.words.flatMap(({ start, end }: any) => [start, end])
    t.same(
      times,
      times.toSorted((a: number, b: number) => a - b),
      'words follow each other'
    )
    t.ok(times.at(-1) <= verbose.duration + 1)
    t.match(await text(bytes, { response_format: 'srt' }), {
      type: /subrip/,
      text: /^1\n00:00:0\d,\d{3} --> 00:00:\d\d,\d{3}\n.*doctor/
    })
    t.match(await text(bytes, { response_format: 'vtt' }), {
      type: /text\/vtt/,
      text: /^WEBVTT\n\n00:00:0\d\.\d{3} --> /
    })
    t.match(await text(bytes, { response_format: 'text' }), { type: /text\/plain/, text: /^The doctor.*swim\.\n$/s })
    const whole = (await transcribe(bytes)).body
    t.match(whole, { text: /doctor/, usage: { type: 'tokens', input_tokens: Math.ceil(verbose.duration * 50) } })
    const sent = { model: RECOGNIZER, file: bytes.toString('base64'), stream: true }
    const events = await corral.events('/v1/audio/transcriptions', sent)
    const deltas = events.filter(({ type, delta }) => type === 'transcript.text.delta' && delta !== '')
    t.equal(deltas.map(({ delta }) => delta).join(''), whole.text)
    t.match(events.at(-2), { type: 'transcript.text.done', text: whole.text, usage: whole.usage })
    t.equal(events.at(-1), '[DONE]')
    t.match((await transcribe(bytes, { response_format: 'verbose_json' }, 'translations')).body, {
      task: 'translate',
      text: /doctor/
    })
    const form = new FormData()
    form.set('file', new Blob([new Uint8Array(bytes)]), 'speech.wav')
    form.set('model', RECOGNIZER)
    const posted = await fetch(`${corral.url}/v1/audio/transcriptions`, { method: 'POST', body: form })
    t.match(await posted.json(), { text: whole.text })
  })

  t.test('speaks in every format, and streams', async t => {
    const wav = await speak({ input: two })
    t.match(wav, { status: 200, type: 'audio/wav' })
    t.equal(wav.bytes.toString('latin1', 0, 4), 'RIFF')
    const pcm = await speak({ input: two, response_format: 'pcm' })
    t.equal(pcm.type, 'audio/pcm')
    const seconds = (wav.bytes.length - 44) / 2 / 22_050
    t.ok(Math.abs(pcm.bytes.length / 2 / 24_000 - seconds) < 0.3 * seconds, 'at 24 kHz')
    const mp3 = await speak({ input: two, response_format: undefined })
    t.match(mp3, { status: 200, type: 'audio/mpeg' })
    t.match((await transcribe(mp3.bytes)).body, { text: /doctor.*swim/s }, 'the recognizer reads MP3')
    for (const [response_format, sent, mark] of [
      ['opus', 'audio/ogg', 'OggS'],
      ['flac', 'audio/flac', 'fLaC']
    ] as const) {
      const sound = await speak({ input: two, response_format })
      t.match(sound, { status: 200, type: sent })
      t.equal(sound.bytes.toString('latin1', 0, 4), mark)
      t.ok(sound.bytes.length < 0.7 * wav.bytes.length, `${sound.bytes.length} bytes as ${response_format}`)
      const { status, body } = await transcribe(sound.bytes, { response_format: 'verbose_json' })
      t.match(
        { status, body },
        { status: 200, body: { text: /doctor.*swim/s } },
        `the recognizer hears ${response_format}`
      )
      t.ok(Math.abs(body.duration - seconds) < 0.3 * seconds, `${body.duration} s`)
    }
    const fast = await speak({ input: two, speed: 2 })
    t.ok(fast.bytes.length < 0.75 * wav.bytes.length, 'faster')
    const asked = { model: VOICE, input: two, voice: 'alloy', stream_format: 'sse', response_format: 'pcm' }
    const events = await corral.events('/v1/audio/speech', asked)
    const sounds = events.filter(({ audio }) => audio)
    t.ok(sounds.length >= 2, 'a piece for each sentence')
    t.match(events.at(-1), { type: 'speech.audio.done', usage: { input_tokens: two.length } })
  })

  t.test('refuses what it cannot do', async t => {
    const { bytes } = await speak({ input: 'Hello.' })
    // A rate of 1 Hz makes half a day of two seconds.
    const long = Buffer.concat([bytes, Buffer.alloc(2 * 22_050 * 2)])
    long.writeUInt32LE(1, 24)
    const table: [string, object, object][] = [
      [
        'speech',
        { model: VOICE, input: 'x', voice: 'nobody' },
        { param: 'voice', message: /no voice "nobody".*en_US-joe-medium/ }
      ],
      ['speech', { model: VOICE, input: ' ' }, { param: 'input' }],
      ['speech', { model: VOICE, input: 'x'.repeat(40_000) }, { param: 'input', message: /32768/ }],
      ['speech', { model: VOICE, input: 'x', response_format: 'aac' }, { param: 'response_format', message: /opus/ }],
      ['speech', { model: RECOGNIZER, input: 'x' }, { param: 'model', message: /cannot speak/ }],
      ['transcriptions', { model: VOICE, file: bytes.toString('base64') }, { param: 'file' }],
      [
        'transcriptions',
        { model: RECOGNIZER, file: Buffer.from('Hello').toString('base64') },
        { param: 'file', message: /WAV, MP3 or FLAC/ }
      ],
      [
        'transcriptions',
        { model: RECOGNIZER, file: bytes.subarray(0, 30).toString('base64') },
        { param: 'file', message: /cannot be read/ }
      ],
      ['transcriptions', { model: RECOGNIZER, file: long.toString('base64') }, { param: 'file', message: /too long/ }],
      [
        'transcriptions',
        { model: RECOGNIZER, file: bytes.toString('base64'), language: 'klingon' },
        { param: 'language' }
      ],
      [
        'transcriptions',
        { model: RECOGNIZER, file: bytes.toString('base64'), response_format: 'diarized_json' },
        { param: 'response_format' }
      ],
      [
        'transcriptions',
        { model: RECOGNIZER, file: bytes.toString('base64'), response_format: 'srt', stream: true },
        { param: 'stream' }
      ]
    ]
    for (const [path, body, error] of table) {
      const reply = await corral.json(`/v1/audio/${path}`, body)
      t.match(
        reply,
        { status: 400, body: { error } },
        JSON.stringify(error, (_, value) => `${value}`)
      )
    }
  })

  t.test('a client that disconnects frees the program, and a killed program is started again', async t => {
    const { bytes } = await speak({ input: SENTENCES.slice(0, 6).join(' ') })
    const body = { model: RECOGNIZER, file: bytes.toString('base64'), language: 'en' }
    const leaving = new AbortController()
    const left = corral.send('/v1/audio/transcriptions', body, { signal: leaving.signal }).catch(() => 'left')
    await sleep(500)
    leaving.abort()
    t.equal(await left, 'left')
    const asked = transcribe(bytes, { language: 'en' })
    await sleep(500)
    const running = programs()
    t.ok(running.length > 0, 'the recognizer, and the voice unless it is idle')
    for (const pid of running) process.kill(pid, 'SIGKILL')
    t.match(await asked, { status: 200, body: { text: /train/ } }, 'asked again')
    t.match(await speak({ input: 'Hello.' }), { status: 200 })
  })

  t.test('corral say and corral transcribe', async t => {
    const folder = newFolder(t)
    const run = (...args: string[]) =>
      spawnSync(process.execPath, [COMMAND, '--home', corral.home, ...args], { encoding: 'utf8' })
    const file = join(folder, 'out.wav')
    t.match(run('say', SENTENCES[0]!, '-o', file), { status: 0 })
    const written = readFileSync(file)
    t.equal(written.readUInt32LE(40), written.length - 44, 'the header has the length')
    const heard = run('transcribe', file)
    t.equal(heard.status, 0, heard.stderr)
    t.ok(matches(wordsOf(SENTENCES[0]!), wordsOf(heard.stdout)) >= 10, heard.stdout)
    const small = join(folder, 'out.opus')
    t.match(run('say', 'Hello.', '-o', small), { status: 0 })
    t.equal(readFileSync(small, 'latin1').slice(0, 4), 'OggS')
    t.match(run('transcribe', file, '--format', 'srt').stdout, /^1\n00:00:0/)
    t.match(run('say', 'x', '-o', join(folder, 'x.doc')), {
      status: 2,
      stderr: /\.wav, \.mp3, \.opus, \.flac or \.pcm/
    })
    t.match(run('say', 'x', '--voice', 'nobody', '-o', file), { status: 2, stderr: /no voice "nobody"/ })
    writeFileSync(file, 'no sound')
    t.match(run('transcribe', file), { status: 2, stderr: /WAV, MP3 or FLAC/ })
  })

  t.test('a live session hears, answers and speaks', async t => {
    const { bytes } = await speak({ input: 'What is the capital of France?', response_format: 'pcm' })
    const socket = new WebSocket(`${corral.url.replace('http', 'ws')}/v1/realtime?model=${DEMO}`)
    t.teardown(() => socket.terminate())
    const events: any[] = []
    socket.on('message', data => events.push(JSON.parse(data.toString())))
    const send = (type: string, more = {}) => socket.send(JSON.stringify({ type, ...more }))
    const found = (wanted: string) => events.find(({ type }) => type === wanted)
    await once(socket, 'open')
    send('session.update', {
      session: { audio: { input: { turn_detection: null }, output: { voice: 'en_US-joe-medium' } } }
    })
    for (let at = 0; at < bytes.length; at += 48_000) {
      send('input_audio_buffer.append', { audio: bytes.subarray(at, at + 48_000).toString('base64') })
    }
    send('input_audio_buffer.commit')
    send('response.create')
    await until('the response is done', () => found('response.done') !== undefined || found('error') !== undefined)
    t.equal(found('error'), undefined)
    t.match(found('conversation.item.input_audio_transcription.completed'), { transcript: /capital of france/i })
    const { response } = found('response.done')
    t.match(response, { status: 'completed', output: [{ content: [{ type: 'output_audio', transcript: /Paris/ }] }] })
    const sound = events
      .filter(({ type }) => type === 'response.output_audio.delta')
      .map(({ delta }) => Buffer.from(delta, 'base64'))
    const heard = await transcribe(Buffer.concat([wavHeader(24_000), ...sound]), { language: 'en' })
    t.match(heard.body, { text: /Paris/i }, 'the answer was spoken')
  })

  t.test('models for speech are deleted like others', async t => {
    for (const model of [RECOGNIZER, VOICE]) {
      t.match(await corral.json('/api/delete', { model }, { method: 'DELETE' }), { status: 200 }, model)
    }
    t.same((await corral.json('/v1/audio/voices')).body.data, [])
    await until('the programs have ended', () => programs().length === 0)
  })
})
