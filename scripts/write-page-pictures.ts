/**
 * Takes the pictures of the page for the README and docs/page.md: `node dist/scripts/write-page-pictures.js [FOLDER]
 * [--png]`. By default it writes WebP files to docs/pictures.
 *
 * The server, its page and its demo model are real and use their own data directory. The hub is emulated, the other
 * models have weights of zero, the chats are fictional, and the displayed hardware is that of an ordinary computer, so
 * the pictures reveal nothing about the machine that took them.
 */
import { mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import type { Browser, BrowserContextOptions, Page } from 'playwright-core'
import type { SearchReply } from '../core/contracts/native-records.ts'
import { packageRoot } from '../core/system/package-info.ts'
import { findChromium } from '../test/support/browser.ts'
import { type Corral, startCorral } from '../test/support/corral.ts'
import { startHubEmulator } from '../test/support/hub-emulator/hub-emulator.ts'
import { ggufPieces } from './gguf-output.ts'
import { PICTURE_MODEL, pictureChats } from './picture-chats.ts'

const WINDOW = { width: 1280, height: 800 }
const PHONE = { width: 375, height: 740 }
const DEMO = 'corral/tiny-chat'
/** Memory for models of the computer in the pictures. */
const ORDINARY_MEMORY = 12_000_000_000
/** Durations of its answers in nanoseconds. */
const ORDINARY_DURATIONS = {
  total_duration: 58_412_906,
  load_duration: 1_204_611,
  prompt_eval_duration: 9_340_000,
  eval_duration: 31_730_000
}

const { values, positionals } = parseArgs({ allowPositionals: true, options: { png: { type: 'boolean' } } })
const target = positionals[0] ?? join(packageRoot, 'docs', 'pictures')
mkdirSync(target, { recursive: true })

const endings: (() => unknown)[] = []
const t = { teardown: (ending: () => unknown) => endings.push(ending) }
try {
  await takePictures()
} finally {
  for (const end of endings.reverse()) await end()
}

async function takePictures(): Promise<void> {
  const found = findChromium()
  if ('missing' in found) throw new Error(found.missing)
  const hub = await startHub()
  const corral = await startCorral(t, {
    config: 'defaults: { temperature: 0 }\nscheduler: { memory: 12GB }\n',
    env: { HF_ENDPOINT: hub.url, HF_HUB_OFFLINE: '' }
  })
  await importModels(corral)
  await corral.json('/api/load', { model: DEMO, keep_alive: -1, stream: false })
  const { chromium } = await import('playwright-core')
  const browser = await chromium.launch({
    executablePath: found.program,
    args: process.getuid?.() === 0 ? ['--no-sandbox'] : []
  })
  t.teardown(() => browser.close())

  const first = await openPage(browser, corral, { viewport: WINDOW })
  await first.getByRole('heading', { name: 'What is on your mind?' }).waitFor()
  await first.getByRole('button', { name: `Model: ${DEMO}` }).waitFor()
  await take(first, 'page-first')
  await first.context().close()

  const page = await openPage(browser, corral, { viewport: WINDOW })
  await takeChats(page)
  await page.getByRole('link', { name: 'Fast Fibonacci' }).click()
  await page.locator('math').first().waitFor()
  await page.locator('.hljs-keyword').first().waitFor()
  await take(page, 'page-chat')
  await page.goto(`${corral.url}/#/models`)
  await page.getByRole('heading', { name: PICTURE_MODEL }).waitFor()
  await take(page, 'page-models')
  await page.goto(`${corral.url}/#/models/get`)
  await page.getByLabel('Search hubs').fill('qwen3')
  await page.keyboard.press('Enter')
  await page.getByText('Qwen/Qwen3-8B-GGUF').waitFor()
  await take(page, 'page-get')
  await page.goto(`${corral.url}/#/playground`)
  await page.getByRole('button', { name: 'Send POST' }).click()
  await page.getByText('200').first().waitFor()
  await take(page, 'page-playground')
  await page.goto(`${corral.url}/#/server`)
  await page.getByText('Hardware').waitFor()
  const busy = keepBusy(corral)
  await page.waitForTimeout(27_000)
  await take(page, 'page-server')
  await busy
  await page.context().close()

  const dark = await openPage(browser, corral, { viewport: WINDOW, colorScheme: 'dark' })
  await takeChats(dark)
  await dark.getByRole('link', { name: 'Fast Fibonacci' }).click()
  await dark.locator('math').first().waitFor()
  await dark.locator('.hljs-keyword').first().waitFor()
  await take(dark, 'page-dark')
  await dark.context().close()

  const phone = await openPage(browser, corral, { viewport: PHONE, isMobile: true, hasTouch: true })
  await takeChats(phone)
  await phone.getByRole('button', { name: 'Show chats' }).click()
  await phone.getByRole('link', { name: 'Fast Fibonacci' }).click()
  await phone.locator('math').first().waitFor()
  await take(phone, 'page-phone')
  await phone.context().close()
}

/**
 * A hub with popular models. Only their names and sizes exist, with one variant each so that the memory of the machine
 * does not matter.
 */
async function startHub() {
  const sizes = (base: string, all: Record<string, number>) =>
    Object.fromEntries(
      Object.entries(all).map(([variant, gigabytes], index) => {
        const digests = { sha256: `${index}`.repeat(64), gitSha1: `${index}`.repeat(40) }
        return [`${base}-${variant}.gguf`, { size: Math.round(gigabytes * 1e9), digests }]
      })
    )
  const qwen = (size: string, downloads: number, all: Record<string, number>) => ({
    [`Qwen/Qwen3-${size}-GGUF`]: { files: sizes(`Qwen3-${size}`, all), downloads, license: 'apache-2.0' }
  })
  return await startHubEmulator(t, {
    repositories: {
      ...qwen('8B', 412_000, { Q4_K_M: 5.03 }),
      ...qwen('4B', 268_000, { Q4_K_M: 2.5 }),
      ...qwen('14B', 131_000, { Q4_K_M: 9 }),
      ...qwen('32B', 96_000, { Q4_K_M: 19.8 }),
      ...qwen('1.7B', 88_000, { Q8_0: 1.83 }),
      ...qwen('0.6B', 74_000, { Q8_0: 0.64 })
    }
  })
}

/** Local models: files with a model's header and zeros as weights. */
async function importModels(corral: Corral): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'corral-pictures-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const chat = { 'tokenizer.chat_template': '{% if tools %}<tools>{% endif %}{{ messages[0].content }}<think>' }
  const make = (name: string, weights: number, metadata: Record<string, string | number>) => {
    const file = join(folder, name)
    const tensor = { name: 'token_embd.weight', shape: [1024, Math.round(weights / 1024)], fill: 'q8_0' as const }
    const header = ggufPieces({ 'general.file_type': 7, ...metadata }, [tensor], 1).next().value!
    writeFileSync(file, header)
    truncateSync(file, header.length + (tensor.shape[0]! * tensor.shape[1]! * 34) / 32)
    return file
  }
  const models: [name: string, file: string][] = [
    [
      PICTURE_MODEL,
      make('Qwen3-1.7B-Q8_0.gguf', 1.72e9, { 'general.architecture': 'qwen3', 'qwen3.context_length': 40_960, ...chat })
    ],
    [
      'nomic-ai/nomic-embed-text-v1.5-GGUF',
      make('nomic-embed-text-v1.5-Q8_0.gguf', 1.37e8, {
        'general.architecture': 'nomic-bert',
        'nomic-bert.context_length': 2048,
        'nomic-bert.pooling_type': 1
      })
    ]
  ]
  for (const [model, path] of models) {
    const { status, body } = await corral.json('/api/import', { model, path })
    if (status !== 200) throw new Error(JSON.stringify(body))
  }
}

/** The search results for the memory of an ordinary computer. */
function withOrdinaryMemory(reply: SearchReply): SearchReply {
  const models = reply.models.map((model, index) => ({
    ...model,
    updated_at: new Date(Date.now() - (index + 1) * 12 * 86_400_000).toISOString(),
    ...(model.memory && { memory: { ...model.memory, available: ORDINARY_MEMORY } })
  }))
  return { ...reply, models }
}

/** The hardware report of an ordinary computer. */
function withOrdinaryHardware(reply: { hardware?: { cpu?: object; memory?: object } }): object {
  const { hardware } = reply
  return {
    ...reply,
    hardware: {
      ...hardware,
      cpu: { ...hardware?.cpu, model: 'AMD Ryzen 7 7840U', threads: 16 },
      memory: { ...hardware?.memory, total: 16_600_000_000, available: ORDINARY_MEMORY },
      gpus: [],
      problems: []
    }
  }
}

async function openPage(browser: Browser, corral: Corral, options: BrowserContextOptions): Promise<Page> {
  const context = await browser.newContext({
    deviceScaleFactor: 2,
    locale: 'en-GB',
    timezoneId: 'UTC',
    reducedMotion: 'reduce',
    ...options
  })
  const page = await context.newPage()
  const told = async <Reply>(path: string, change: (reply: Reply) => object) =>
    page.route(path, async route => {
      const reply = await route.fetch()
      await route.fulfill({ json: change(await reply.json()) })
    })
  await told('**/api/chat', (reply: object) => ({
    ...reply,
    created_at: '2026-11-20T10:00:00.000Z',
    ...ORDINARY_DURATIONS
  }))
  await told('**/api/runtimes', withOrdinaryHardware)
  await told('**/api/search*', withOrdinaryMemory)
  await page.goto(corral.url)
  await page.getByLabel('Message', { exact: true }).waitFor()
  return page
}

async function takeChats(page: Page): Promise<void> {
  await page.locator('input[aria-label="Import chats"]').setInputFiles({
    name: 'chats.json',
    mimeType: 'application/json',
    buffer: Buffer.from(JSON.stringify(pictureChats(Date.now())))
  })
  const toast = page.getByText('chats imported')
  await toast.waitFor()
  await page.locator('.toast').getByRole('button', { name: 'Close' }).click()
}

/** Keeps the charts busy for a while: two concurrent answers, then one. */
async function keepBusy(corral: Corral): Promise<void> {
  const ask = async (seconds: number) => {
    const until = Date.now() + seconds * 1000
    const messages = [{ role: 'user', content: 'Count to 12.' }]
    while (Date.now() < until) await corral.json('/api/chat', { model: DEMO, messages, stream: false })
  }
  await Promise.all([ask(30), ask(14)])
}

async function take(page: Page, name: string): Promise<void> {
  await page.evaluate("document.querySelector('.messages')?.scrollTo(0, 0)")
  // A blinking caret and hover effects would change the picture.
  await page.mouse.move(0, 0)
  await page.evaluate('document.activeElement.blur()')
  await page.evaluate('document.fonts.ready')
  await page.evaluate('new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))')
  if (values.png) {
    await page.screenshot({ path: join(target, `${name}.png`) })
    return
  }
  const session = await page.context().newCDPSession(page)
  const { data } = await session.send('Page.captureScreenshot', { format: 'webp', quality: 85 })
  writeFileSync(join(target, `${name}.webp`), Buffer.from(data, 'base64'))
  console.log(`Wrote ${join(target, `${name}.webp`)}`)
}
