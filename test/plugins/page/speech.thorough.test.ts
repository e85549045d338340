import { randomUUID } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Page } from 'playwright-core'
import t from 'tap'
import type { Engine, EngineFields, EngineSpec } from '../../../core/contracts/engines.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { startTestCorral } from '../../../testing/index.ts'
import { accessibilityFaults, screenshot } from '../../support/browser.ts'
import { until } from '../../support/corral.ts'
import { readFixture } from '../../support/fixture.ts'
import { newFolder } from '../../support/folder.ts'
import { wavBytes } from '../apis/openai/media/support.ts'
import { answered, answersOf, messageField, pageTests, preferWriter, startWriter, widthOf } from './support.ts'

/** Hertz of the tone that the browser's microphone hears. */
const TONE = 440
const microphone = join(newFolder(t), 'tone.wav')
writeFileSync(microphone, wavBytes(10, TONE))

/** What the engines were asked. */
const heard: EngineFields[] = []
let spoken: { model: string; input: unknown }[] = []
/** The recognizer's answer or error. If it is held, it waits until `release` is called. */
let transcript: string | Error = 'hello there'
let held: Promise<void> | undefined
const [RECOGNIZER, OTHER, ENGLISH, CHINESE] = ['talk/ear', 'talk/other', 'talk/english', 'talk/chinese']
const voice = (name: string, language: string) => ({
  name,
  capabilities: ['speak'],
  metadata: { voices: [language], info: { 'general.language': language } }
})
const models = [
  ...[RECOGNIZER, OTHER].map(name => ({ name, capabilities: ['audio', 'transcribe'] })),
  voice(ENGLISH, 'en_US'),
  voice(CHINESE, 'zh_CN')
]

function startTalk(spec: EngineSpec): Engine {
  let end: (exit: Awaited<Engine['exited']>) => void = () => {}
  return {
    id: randomUUID(),
    provider: 'talk',
    spec,
    contextSize: 4096,
    slots: 8,
    memory: undefined,
    exited: new Promise(resolve => {
      end = resolve
    }),
    operations: {
      async transcribe(request, { take }) {
        heard.push({ ...request, by: spec.variant.publicName })
        await held
        if (transcript instanceof Error) throw transcript
        await take([{ content: transcript, finish: 'stop' }])
      },
      async speak({ input }, { take }) {
        spoken.push({ model: spec.variant.publicName, input })
        // A long first sentence plays until it is stopped.
        const seconds = String(input).includes('first part') ? 60 : 0.2
        await take([{ bytes: new Uint8Array(seconds * 44_100), type: 'audio/pcm;rate=22050' }, { finish: 'stop' }])
      }
    },
    stop: async () => end({ code: 0, signal: null, expected: true }),
    logTail: () => []
  }
}

const talk = definePlugin({
  name: 'talk',
  api: 1,
  needs: ['engines', 'catalog'],
  setup(context) {
    const catalog = context.service('catalog')
    catalog.add({ name: 'talk', models: () => models })
    context.service('engines').add({
      name: 'talk',
      serves: ({ format }) => (format === 'talk' ? 1 : 0),
      loadOptions: () => ({}),
      start: async spec => startTalk(spec)
    })
    return {}
  }
})

const { blocks } = readFixture<{ blocks: string }>('page-answers.yaml')
const ANSWERS: Record<string, string> = {
  Blocks: blocks,
  Chinese: '你好。今天天气很好！',
  Long: `One. Two follows. ${'This sentence is here again. '.repeat(20)}`,
  Endless: `The first part is long.\n\n${blocks}`
}
const config = await startWriter(t, (write, { messages }) => write({ content: ANSWERS[messages.at(-1).content]! }))
const corral = await startTestCorral({ echo: false, plugins: [talk], config })
t.teardown(() => corral.close())
const fake = ['--use-fake-device-for-media-stream', `--use-file-for-fake-audio-capture=${microphone}`]
const test = pageTests(t, corral.url, fake)
const ALLOWED = { permissions: ['microphone'] }
const WRITER = 'far/writer'

const button = (page: Page, name: string) => page.getByRole('button', { name, exact: true })

/** Dictates for a moment. @returns the recording */
async function dictate(page: Page, end: () => Promise<void>): Promise<Buffer> {
  const before = heard.length
  await button(page, 'Dictate').click()
  await page.locator('.chip', { hasText: 'Recording.' }).waitFor()
  // As long as a word.
  await sleep(700)
  await end()
  await until('the recognizer is asked', () => heard.length > before)
  return Buffer.from(String(heard.at(-1)!.audio), 'base64')
}

test('speech is recorded as WAV and inserted at the caret', ALLOWED, async (t, { page }) => {
  const field = messageField(page)
  await field.fill('Say and more')
  await field.evaluate((element: any) => element.setSelectionRange(3, 3))
  const wav = await dictate(page, () => button(page, 'Stop dictating').click())
  const text = async (expected: string) => until(expected, async () => (await field.inputValue()) === expected)
  await text('Say hello there and more')
  await page.keyboard.type('!')
  await text('Say hello there! and more')
  t.equal(wav.toString('latin1', 0, 4), 'RIFF')
  t.equal(wav.readUInt32LE(4), wav.length - 8)
  t.equal(wav.toString('latin1', 8, 16), 'WAVEfmt ')
  t.strictSame(
    [wav.readUInt16LE(20), wav.readUInt16LE(22), wav.readUInt32LE(24), wav.readUInt16LE(34)],
    [1, 1, 16_000, 16]
  )
  t.equal(wav.readUInt32LE(40), wav.length - 44)
  const samples = Array.from({ length: (wav.length - 44) / 2 }, (_, at) => wav.readInt16LE(44 + at * 2))
  t.ok(samples.length > 0.5 * 16_000, `${samples.length} samples`)
  // The first sample with sound, since the microphone needs a moment.
  const begin = samples.findIndex(sample => Math.abs(sample) > 500)
  const tone = samples.slice(begin, begin + 3200)
  const crossings = tone.filter((sample, at) => at > 0 && sample >= 0 !== tone[at - 1]! >= 0).length
  t.ok(Math.abs(crossings / 2 / 0.2 - TONE) < 40, `${crossings} crossings of a tone of ${TONE} Hz`)

  t.comment('Chinese text needs no space, and Escape ends the recording')
  transcript = ' 你好。 '
  await field.fill('他说：')
  await dictate(page, () => page.keyboard.press('Escape'))
  await text('他说：你好。')
  transcript = 'hello there'
})

test('dictation shows its state, can be given up, and says what failed', ALLOWED, async (t, opened) => {
  const { page } = opened
  await page.setViewportSize({ width: 375, height: 720 })
  let release = () => {}
  held = new Promise(resolve => (release = resolve))
  await dictate(page, async () => {
    t.strictSame(await accessibilityFaults(page), [])
    t.equal(await widthOf(page), 375)
    await screenshot(page, 'dictation')
    await page.keyboard.press('Escape')
  })
  await page.locator('.chip', { hasText: 'Transcribing what you said' }).waitFor()
  await page.keyboard.press('Escape')
  await button(page, 'Dictate').waitFor()
  release()
  held = undefined
  t.equal(await messageField(page).inputValue(), '', 'its text is dropped')
  const alert = page.getByRole('alert')
  transcript = ''
  await dictate(page, () => page.keyboard.press('Escape'))
  await alert.getByText('No speech was heard.').waitFor()
  transcript = new Error('the recognizer broke')
  await dictate(page, () => page.keyboard.press('Escape'))
  await alert.getByText('Something went wrong while the engine "talk" answered').waitFor()
  transcript = 'hello there'
  t.match(opened.refusals.splice(0), [/^500 POST/])
  opened.complaints.splice(0)

  t.comment('the chosen model transcribes')
  await button(page, 'Show chats').click()
  await button(page, 'Settings').click()
  t.strictSame(await accessibilityFaults(page), [])
  await button(page, OTHER).click()
  await page.reload()
  await dictate(page, () => page.keyboard.press('Escape'))
  t.equal(heard.at(-1)!.by, OTHER)
})

test('without permission the page says what to do', {}, async (_, { page }) => {
  await button(page, 'Dictate').click()
  await page.getByRole('alert').getByText('The browser blocks the microphone.').waitFor()
  await button(page, 'Dictate').waitFor()
})

test('answers are read by a model in pieces, without code, until they are stopped', {}, async (t, { page }) => {
  await preferWriter(page)
  const read = async (question: string, count: number) => {
    spoken = []
    await answered(page, question, WRITER)
    await answersOf(page, WRITER).last().getByRole('button', { name: 'Read aloud' }).click()
    await until('all pieces were spoken', () => spoken.length >= count)
    return spoken.map(({ input }) => input)
  }
  const ended = () => button(page, 'Stop reading').waitFor({ state: 'hidden' })
  const parts = ['Heading', 'First part.', 'one', 'two', 'a, b', '1, 2', 'Last part.']
  t.strictSame(await read('Blocks', parts.length), parts)
  await ended()
  t.ok(spoken.every(({ model }) => model === ENGLISH))
  const long = await read('Long', 3)
  t.equal(long[0], 'One. ')
  await ended()
  t.equal(spoken.map(({ input }) => input).join(''), ANSWERS.Long!.trim())
  t.ok(spoken.every(({ input }) => String(input).length <= 300))
  await read('Chinese', 2)
  t.strictSame(spoken, [
    { model: CHINESE, input: '你好。' },
    { model: CHINESE, input: '今天天气很好！' }
  ])
  await ended()

  t.comment('stopping')
  await read('Endless', 2)
  t.strictSame(await accessibilityFaults(page), [])
  await sleep(300)
  t.strictSame(
    spoken.map(({ input }) => input),
    ['The first part is long.', 'Heading'],
    'only the next piece is prepared'
  )
  await button(page, 'Stop reading').press('Enter')
  await ended()
  await answersOf(page, WRITER).last().getByRole('button', { name: 'Read aloud' }).press('Enter')
  await button(page, 'Stop reading').waitFor()
  await page.getByRole('link', { name: 'New chat' }).click()
  await page.getByRole('heading', { name: 'What is on your mind?' }).waitFor()
  const before = spoken.length
  await sleep(500)
  t.equal(spoken.length, before, 'leaving the chat ends it')
})

t.test('only this server may use the microphone', async t => {
  const { headers } = await fetch(corral.url, { headers: { accept: 'text/html' } })
  t.match(headers.get('permissions-policy'), /microphone=\(self\)/)
})
