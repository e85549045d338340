import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import {
  importModels,
  MODELS,
  pngBytes,
  writeModels,
  writeThinkingModel
} from '../plugins/apis/openai/media/support.ts'
import { corralWithHub, quantizedModels } from '../plugins/models/download/support.ts'
import { type OpenedPage, testBrowser } from '../support/browser.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../support/corral.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import {
  groupRequests,
  llamaPage,
  type PassedRequest,
  RECORDED,
  type ServedPage,
  servePage
} from '../support/llama-page.ts'

// llama.cpp's own page, built from unmodified source, against a live corral with the real engine.
const browser = testBrowser(t)
const built = browser.skip === false ? await llamaPage() : { missing: browser.skip }
const skip = 'missing' in built ? `LLAMA.CPP'S PAGE IS NOT TESTED HERE: ${built.missing}` : false
const folder = 'path' in built ? built.path : ''

/** An answer that continues until it is stopped, or for this many tokens. */
const endless = (tokens: number) => ({
  customJson: JSON.stringify({ ignore_eos: true, max_tokens: tokens, tool_choice: 'none' })
})

/** The button that opens the list of models and shows the selected model. */
const MODEL_BUTTON = /^(tiny-chat|broken|seeing-chat|thinker|first|second|Select model)$/

interface Chat extends OpenedPage {
  served: ServedPage
  ask(question: string): Promise<void>
  /** The visible answers. */
  answers: ReturnType<OpenedPage['page']['getByRole']>
  /** Waits until an answer has ended. */
  ended(): Promise<void>
  /** Opens the list of models. */
  models(): Promise<void>
  /** Requests of the page as `method path`, without those at its start. */
  asked(path: string): ServedPage['passed']
}

/** All requests of all pages. */
const all: PassedRequest[][] = []

/** Opens the page with these settings. */
async function open(t: Test, corral: Corral, settings: object = {}): Promise<Chat> {
  const served = await servePage(t, folder, corral.url)
  all.push(served.passed)
  const value = JSON.stringify({ temperature: 0, enableContinueGeneration: true, ...settings })
  const origin = { origin: new URL(served.address).origin, localStorage: [{ name: 'LlamaUi.config', value }] }
  const opened = await browser.open(t, served.address, { storageState: { cookies: [], origins: [origin] } })
  const { page } = opened
  const main = page.getByRole('main')
  const answers = page.getByRole('group', { name: 'Assistant message with actions' })
  await main.getByRole('button', { name: MODEL_BUTTON }).waitFor()
  return {
    ...opened,
    served,
    answers,
    async ask(question) {
      await page.getByRole('textbox', { name: 'Type a message...' }).fill(question)
      await page.keyboard.press('Enter')
    },
    async ended() {
      // As long as a busy machine needs for the longest answer.
      await answers.last().getByText('t/s').waitFor({ timeout: 600_000 })
      await page.getByRole('button', { name: 'Stop', exact: true }).waitFor({ state: 'hidden', timeout: 600_000 })
    },
    async models() {
      await main.getByRole('button', { name: MODEL_BUTTON }).last().click()
      await page.getByRole('option').first().waitFor()
    },
    asked: path => served.passed.filter(({ url }) => url.startsWith(path))
  }
}

/** The page uses this tool to look for folders. corral has no tools, and the page works without them. */
const NO_TOOLS = '405 POST /tools'

/** Asserts that only the named requests were refused, and no other error was printed. */
function onlyRefused(t: Test, { refusals, complaints }: OpenedPage, ...named: string[]): void {
  t.strictSame(
    refusals.filter(line => line !== NO_TOOLS),
    named
  )
  if (named.length > 0) return
  const known = /the server responded with a status of 405/
  t.strictSame(
    complaints.filter(line => !known.test(line)),
    []
  )
}

const idle = (corral: Corral) =>
  until('no slot is in use', async () => {
    const slots = (await corral.json('/slots')).body as { is_processing: boolean }[]
    return slots.every(({ is_processing }) => !is_processing)
  })

t.test('the page holds a conversation', { skip }, async t => {
  const corral = await startCorral(t)
  const chat = await open(t, corral, { preEncodeConversation: true })
  const { page, answers } = chat
  await chat.ask(CAPITAL_QUESTION.content)
  await answers.getByText(CAPITAL_ANSWER).waitFor()
  await chat.ended()
  t.match(await answers.innerText(), /9 tokens/, 'the token counts are shown')
  t.match(await page.getByRole('group', { name: /User message/ }).innerText(), /\d+ tokens/)

  await page.getByRole('button', { name: 'Regenerate' }).click()
  await page.getByRole('navigation', { name: 'Message version 2 of 2' }).waitFor()
  await chat.ended()
  t.match(await answers.innerText(), CAPITAL_ANSWER, 'once more')

  await page
    .getByRole('group', { name: /User message/ })
    .getByRole('button', { name: 'Edit' })
    .click()
  await page.getByRole('textbox', { name: 'Edit your message...' }).fill('Who are you?')
  await page.keyboard.press('Enter')
  await answers.getByText(/tiny demo model/).waitFor()
  await chat.ended()
  t.match(await page.getByRole('group', { name: /User message/ }).innerText(), /Who are you/, 'an edited question')

  await answers.getByRole('button', { name: 'Edit' }).click()
  await page.getByRole('textbox', { name: 'Edit your message...' }).fill('I am a tiny')
  await page.keyboard.press('Enter')
  await answers.getByRole('button', { name: 'Continue' }).click()
  await answers.getByText(/^I am a tiny demo model/).waitFor()
  t.pass('an edited answer continues')

  await until('the conversation is prefilled in advance', () =>
    chat.asked('/v1/chat/completions').some(({ body, status }) => body.includes('"n_predict":0') && status === 200)
  )
  const conversation = chat.asked('/v1/chat/completions')[0]!.headers['x-conversation-id']!
  t.ok(conversation.endsWith(`::${DEMO}`), 'its streams can be found again')
  onlyRefused(t, chat)
})

t.test('every setting of the page is accepted', { skip }, async t => {
  const corral = await startCorral(t)
  const chat = await open(t, corral, {
    ...{ systemMessage: 'You are Leo.', max_tokens: 20, samplers: 'top_k;top_p;temperature', backend_sampling: true },
    ...{ dynatemp_range: 0.1, dynatemp_exponent: 1.1, top_k: 41, top_p: 0.91, min_p: 0.06, typ_p: 0.99 },
    ...{ xtc_probability: 0.01, xtc_threshold: 0.11, repeat_last_n: 65, repeat_penalty: 1.01, presence_penalty: 0.01 },
    ...{ frequency_penalty: 0.01, dry_multiplier: 0.01, dry_base: 1.76, dry_allowed_length: 3, dry_penalty_last_n: 65 },
    ...{ disableReasoningParsing: true }
  })
  await chat.ask('Who are you?')
  await chat.ended()
  t.match(chat.asked('/v1/chat/completions')[0]!.body, /"samplers":\["top_k","top_p","temperature"\]/)
  onlyRefused(t, chat)
})

t.test('the page stops an answer', { skip }, async t => {
  const corral = await startCorral(t)
  const chat = await open(t, corral, endless(3500))
  await chat.ask('Count to 30.')
  await chat.answers.getByText(/1, 2, 3, 4/).waitFor()
  await chat.page.getByRole('button', { name: 'Stop', exact: true }).click()
  await chat.ended()
  const [stopped] = chat.asked('/v1/stream?')
  t.match(stopped, { method: 'DELETE', status: 204 })
  await idle(corral)
  t.match(await chat.answers.innerText(), /1, 2, 3, 4/, 'the text so far stays')
  onlyRefused(t, chat)
})

t.test('the page continues an answer after it is reloaded', { skip }, async t => {
  const corral = await startCorral(t)
  const chat = await open(t, corral, endless(2500))
  await chat.ask('Count to 30.')
  await chat.answers.getByText(/1, 2, 3, 4/).waitFor()
  const before = (await chat.answers.innerText()).length
  await chat.page.reload()
  await chat.answers.getByText(/1, 2, 3, 4/).waitFor()
  await chat.ended()
  const text = await chat.answers.innerText()
  t.match(text, /^1, 2, 3, 4[\s\S]*2,500 tokens/, 'it is complete')
  t.ok(text.length > before)
  t.equal(chat.asked('/v1/chat/completions').length, 1, 'it was generated once')
  t.ok(chat.asked('/v1/stream?').length > 0)
  onlyRefused(t, chat)
})

t.test('the page loads and unloads models', { skip }, async t => {
  const corral = await startCorral(t)
  const chat = await open(t, corral)
  const { page } = chat
  const option = page.getByRole('option', { name: /tiny-chat/ })
  const press = async (name: string) => {
    await option.hover()
    await option.getByRole('button', { name }).click()
  }
  await chat.models()
  await press('Load model')
  await page.getByText('Model loaded: tiny-chat').waitFor()
  await press('Unload model')
  await page.getByText('Model unloaded: tiny-chat').waitFor()
  t.strictSame((await corral.json('/api/ps')).body.models, [])
  t.strictSame(
    chat.asked('/models/').map(({ method, url, status }) => `${method} ${url} ${status}`),
    ['GET /models/sse 200', 'POST /models/load 200', 'POST /models/unload 200']
  )

  // Another client loads the model, and the feed tells the page.
  await corral.json('/models/load', { model: DEMO })
  await option.getByRole('button', { name: 'Unload model' }).waitFor({ state: 'attached' })
  await page.keyboard.press('Escape')
  await chat.ask(CAPITAL_QUESTION.content)
  await chat.answers.getByText(CAPITAL_ANSWER).waitFor()
  await chat.ended()
  await chat.models()
  t.equal(await option.count(), 1, 'a loaded model stays in the list')
  onlyRefused(t, chat)
})

t.test('the page reports a model that cannot be loaded', { skip }, async t => {
  const corral = await startCorral(t)
  const path = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
  const { status } = await corral.json('/api/import', { model: 'test/broken', path, stream: false })
  t.equal(status, 200)
  const models = join(corral.home, 'models', 'test', 'broken')
  const file = readdirSync(models, { recursive: true, encoding: 'utf8' }).find(name => name.endsWith('.gguf'))!
  rmSync(join(models, file))
  writeFileSync(join(models, file), readFileSync(path, 'latin1').replace('llama', 'lxama'), 'latin1')

  const chat = await open(t, corral)
  const { page } = chat
  await chat.models()
  const option = page.getByRole('option', { name: /broken/ })
  await option.hover()
  await option.getByRole('button', { name: 'Load model' }).click()
  await page.getByText('Failed to load model: broken').waitFor()
  // Selecting the model loads it again.
  await option.click()
  await page.getByText('Failed to load model: broken').nth(1).waitFor()
  await page.getByRole('menu').first().waitFor({ state: 'hidden' })
  await chat.ask(CAPITAL_QUESTION.content)
  const dialog = page.getByRole('alertdialog')
  await dialog.waitFor()
  t.match(await dialog.innerText(), /does not support the architecture "lxama"/, 'it says why')
  t.notMatch(await page.getByRole('main').innerText(), /NaN/)
  onlyRefused(t, chat, '500 POST /v1/chat/completions')
})

t.test('the page asks for a key', { skip }, async t => {
  const corral = await startCorral(t, { config: 'security:\n  api_keys: [secret]' })
  const served = await servePage(t, folder, corral.url)
  const { page } = await browser.open(t, served.address)
  await page.getByRole('button', { name: 'Enter API Key' }).click()
  await page.getByLabel('API Key').fill('wrong')
  await page.keyboard.press('Enter')
  await page.getByText('Invalid API key').waitFor()
  await page.getByLabel('API Key').fill('secret')
  await page.keyboard.press('Enter')
  await page.getByRole('textbox', { name: 'Type a message...' }).fill(CAPITAL_QUESTION.content)
  await page.getByRole('main').getByRole('button', { name: MODEL_BUTTON }).waitFor()
  await page.keyboard.press('Enter')
  await page.getByText(CAPITAL_ANSWER).waitFor()
  const others = served.passed.filter(({ status }) => ![200, 304, 401, 405].includes(status ?? 200))
  t.strictSame(
    others.map(({ url, status }) => `${status} ${url}`),
    []
  )
  const last = served.passed.filter(({ url }) => url === '/v1/chat/completions')
  t.match(last, [{ status: 200, headers: { authorization: 'Bearer secret' } }])
})

t.test('the page reports a question that is too long', { skip }, async t => {
  const chat = await open(t, await startCorral(t))
  await chat.ask('word '.repeat(9000))
  const dialog = chat.page.getByRole('alertdialog')
  await dialog.waitFor()
  t.match(await dialog.innerText(), /Prompt tokens: 18,\d+\s+Context size: 4,096/)
  onlyRefused(t, chat, '400 POST /v1/chat/completions')
})

t.test('the page ends reasoning early', { skip }, async t => {
  const corral = await startCorral(t)
  const path = join(t.testdir(), 'thinker.gguf')
  await writeThinkingModel(path)
  t.equal((await corral.json('/api/import', { model: 'test/thinker', path, stream: false })).status, 200)
  const chat = await open(t, corral, endless(3500))
  const { page } = chat
  await chat.models()
  await page.getByRole('option', { name: /thinker/ }).click()
  await page.getByText('Model loaded: thinker').waitFor()
  await chat.ask('Hi')
  await page.getByRole('button', { name: 'Skip reasoning' }).click()
  await page.getByRole('button', { name: 'Skip reasoning' }).waitFor({ state: 'hidden' })
  t.match(chat.asked('/v1/chat/completions/control'), [{ status: 200, body: /"action":"reasoning_end"/ }])
  await page.getByRole('button', { name: 'Stop', exact: true }).click()
  await idle(corral)
  onlyRefused(t, chat)
})

t.test('the page sends pictures', { skip }, async t => {
  const corral = await startCorral(t)
  await importModels(corral, await writeModels(t.testdir()))
  const chat = await open(t, corral)
  const { page } = chat
  const picture = { name: 'a picture.png', mimeType: 'image/png', buffer: pngBytes() }
  const choose = async (name: string) => {
    await chat.models()
    await page.getByRole('option', { name }).click()
    await page.getByText(`Model loaded: ${name}`).waitFor()
  }
  await choose('tiny-chat')
  await page.locator('input[type=file]').first().setInputFiles(picture)
  const dialog = page.getByRole('alertdialog')
  t.match(await dialog.innerText(), /Images require a vision-capable model/, 'refused by a model without image support')
  await dialog.getByRole('button', { name: 'Got it' }).click()

  await choose('seeing-chat')
  await page.locator('input[type=file]').first().setInputFiles(picture)
  await page.getByRole('button', { name: 'Preview a picture.png' }).waitFor()
  await chat.ask(CAPITAL_QUESTION.content)
  await chat.ended()
  const [request] = chat.asked('/v1/chat/completions')
  t.match(request, { status: 200, body: /"image_url":\{"url":"data:image\/png;base64,/ })
  t.match(JSON.parse(request!.body), { model: MODELS.seeing })
  t.match(await chat.answers.innerText(), /\d+ tokens/, 'answered by a model with image support')
  onlyRefused(t, chat)
})

t.test('the page follows models that other clients download and delete', { skip }, async t => {
  const files = { 'tiny-Q8_0.gguf': quantizedModels().Q8_0 }
  const hub = await startHubEmulator(t, {
    repositories: { 'test/first-GGUF': { files }, 'test/second-GGUF': { files } }
  })
  const corral = await corralWithHub(t, hub)
  const names = async () => (await corral.json('/models')).body.data.map(({ id }: { id: string }) => id)
  await corral.json('/api/pull', { model: 'test/first-GGUF', stream: false })
  const chat = await open(t, corral)
  const { page } = chat
  const lists = chat.asked('/v1/models').length
  t.match(await corral.json('/models', { model: 'test/second-GGUF' }), { status: 200 })
  await until('the model is installed', async () => (await names()).length === 2)
  await until('the page reads the list again', () => chat.asked('/v1/models').length > lists)
  // Only then does the page offer the new model.
  await page.reload()
  await chat.models()
  const option = page.getByRole('option', { name: /second/ })
  await option.hover()
  await option.getByRole('button', { name: 'Load model' }).click()
  await page.getByText('Model loaded: second').waitFor()

  const { status } = await corral.json('/models?model=test/second-GGUF', undefined, { method: 'DELETE' })
  t.equal(status, 200)
  await option.getByRole('button', { name: 'Load model' }).waitFor({ state: 'attached' })
  t.strictSame(await names(), ['test/first-GGUF'])
  await page.reload()
  await chat.models()
  t.equal(await option.count(), 0)
  onlyRefused(t, chat)
})

// CORRAL_RECORD=1 rewrites the recording.
t.test('the recorded requests of the everyday test equal those of the page', { skip }, async t => {
  // Pictures and reasoning need other models, and endless answers take long.
  const requests = all.flat().filter(({ body }) => !/image_url|reasoning_end|ignore_eos/.test(body))
  const kinds = groupRequests(requests)
  if (process.env.CORRAL_RECORD === '1') writeFileSync(RECORDED, `${JSON.stringify([...kinds.values()], null, 2)}\n`)
  const recorded = JSON.parse(readFileSync(RECORDED, 'utf8')) as { kind: string }[]
  t.strictSame([...kinds.keys()].sort(), recorded.map(({ kind }) => kind).sort())
})
