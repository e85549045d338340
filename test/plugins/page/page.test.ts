import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { brotliDecompressSync, gzipSync } from 'node:zlib'
import t from 'tap'
import { packageRoot } from '../../../core/system/package-info.ts'
import { accessibilityFaults, screenshot } from '../../support/browser.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, startCorral } from '../../support/corral.ts'
import { thorough } from '../../support/thorough.ts'
import { answersOf, deleteChat, messageField, pageTests } from './support.ts'

const QUESTION = CAPITAL_QUESTION.content
const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n' })
const test = pageTests(t, corral.url)
const folder = join(packageRoot, 'dist', 'plugins', 'page', 'browser')
const names: string[] = JSON.parse(readFileSync(join(folder, 'files.json'), 'utf8'))
const load = (path: string, encoding: string) =>
  fetch(`${corral.url}/${path}`, { headers: { accept: 'text/html,*/*;q=0.8', 'accept-encoding': encoding } })

t.test('browsers get a small page that loads nothing from other hosts, programs get a line', async t => {
  const page = await load('', 'gzip')
  t.equal(page.headers.get('content-encoding'), 'gzip')
  t.equal(page.headers.get('cache-control'), 'no-cache')
  const policy = page.headers.get('content-security-policy')!
  t.match(policy, /require-trusted-types-for 'script'; trusted-types corral-worker$/)
  t.notMatch(policy, /unsafe|https?:/)
  const html = await page.text()
  t.notMatch(html, /https?:\/\/(?!www\.w3\.org)/)
  const files = [...html.matchAll(/(?:href|src)="\.\/page\/([^"]+)"/g)].map(([, name]) => name!)
  const [manifest] = files.splice(
    files.findIndex(name => name.endsWith('.webmanifest')),
    1
  )
  const app = (await (await load(`page/${manifest}`, 'gzip')).json()) as { icons: { src: string; sizes: string }[] }
  t.match(app, { start_url: '../', display: 'standalone' })
  const [, ...pictures] = app.icons
  t.match(pictures, [
    { sizes: '192x192' },
    { sizes: '512x512', purpose: 'any' },
    { sizes: '512x512', purpose: 'maskable' }
  ])
  for (const { src, sizes } of pictures) {
    const picture = Buffer.from(await (await load(`page/${src}`, 'gzip')).arrayBuffer())
    t.equal(`${picture.readUInt32BE(16)}x${picture.readUInt32BE(20)}`, sizes)
  }
  t.ok(files.length >= 3, 'a script, a style sheet and preloads')
  const sizes = files.map(name => gzipSync(brotliDecompressSync(readFileSync(join(folder, `${name}.br`)))).length)
  const bytes = sizes.reduce((sum, size) => sum + size, Number(page.headers.get('content-length') ?? 0))
  t.ok(bytes < 63_000, `${bytes} bytes for the first load`)
  t.equal((await load('page/none.js', 'gzip')).status, 404)
  t.equal((await load('page/..%2Ffiles.json', 'gzip')).status, 404)
  t.match(await (await fetch(corral.url)).text(), /^corral is running/)
})

t.test('each file is cached for ever and has the same content in every encoding', async t => {
  t.ok(names.length > 5)
  for (const name of names) {
    const bodies = ['identity', 'gzip', 'br'].map(async encoding => {
      const reply = await load(`page/${name}`, encoding)
      t.equal(reply.headers.get('content-encoding') ?? 'identity', encoding, `${name}: ${encoding}`)
      t.match(reply.headers.get('cache-control'), /immutable/, name)
      return Buffer.from(await reply.arrayBuffer())
    })
    const [plain, gzip, brotli] = await Promise.all(bodies)
    t.ok(plain!.length > 0 && plain!.equals(gzip!) && plain!.equals(brotli!), name)
  }
})

t.test('the configuration moves the page or turns it off', thorough, async t => {
  const accept = { headers: { accept: 'text/html' } }
  const moved = await startCorral(t, { config: 'web:\n  path: /team/chat\n' })
  const links = await (await fetch(moved.url, accept)).text()
  t.match(links, '<a href="/team/chat">')
  t.match(links, '<a href="/docs">')
  const html = await (await fetch(`${moved.url}/team/chat`, accept)).text()
  t.match(html, 'name="corral-base" content="../"')
  const manifest = `${moved.url}/team/chat/page/manifest.webmanifest`
  const { start_url: start } = (await (await fetch(manifest)).json()) as { start_url: string }
  t.equal(new URL(start, manifest).pathname, '/team/chat')
  const script = /src="(\.\/chat\/page\/main-[^"]+)"/.exec(html)![1]!
  t.equal((await fetch(new URL(script, `${moved.url}/team/chat`))).status, 200)
  const off = await startCorral(t, { config: 'web:\n  enabled: false\n' })
  t.notMatch(await (await fetch(off.url, accept)).text(), /Chat/)
})

test('a chat is answered, found by its text, exported, imported and compared', {}, async (t, { page }) => {
  const answers = answersOf(page)
  await messageField(page).fill(QUESTION)
  await page.keyboard.press('Enter')
  await answers.getByText(CAPITAL_ANSWER).waitFor()
  await answers.getByText(/context tokens used/).waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await page.reload()
  await answers.getByText(CAPITAL_ANSWER).waitFor()
  const link = page.getByRole('link', { name: QUESTION })
  t.ok(await link.isVisible(), 'the chat is in the list')
  await screenshot(page, 'chat')

  t.comment('search')
  const greeting = page.getByRole('heading', { name: 'What is on your mind?' })
  await page.keyboard.press('Control+Shift+o')
  await greeting.waitFor()
  await page.keyboard.press('Control+k')
  await page.getByRole('combobox').fill('is paris')
  await page.getByRole('option', { name: QUESTION }).waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await page.keyboard.press('Enter')
  await answers.getByText('Paris').waitFor()

  t.comment('export and import')
  const downloads = page.waitForEvent('download')
  await page.getByRole('button', { name: 'Settings', exact: true }).click()
  await page.getByRole('button', { name: 'Export all chats' }).click()
  const file = await (await downloads).path()
  const saved = JSON.parse(readFileSync(file, 'utf8'))
  t.match(saved, { corral: 'chats', chats: [{ title: QUESTION }], messages: [{}, {}] })
  await deleteChat(page, QUESTION)
  await greeting.waitFor()
  t.equal(await link.count(), 0)
  await page.getByLabel('Import chats').setInputFiles(file)
  await link.click()
  await answers.getByText('Paris').waitFor()

  t.comment('compare')
  await page.getByRole('button', { name: 'Compare with another model' }).click()
  await page.getByRole('checkbox', { name: 'Send to all' }).waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await messageField(page).first().fill('What is 7 + 8?')
  await page.keyboard.press('Enter')
  await answers.getByText('= 15').nth(1).waitFor()
  t.equal(await answers.count(), 4, 'both chats have both answers')
})

const PHONE = { device: 'Pixel 7', viewport: { width: 375, height: 720 } } as const
test(
  'the page fits a phone in dark mode',
  { ...PHONE, colorScheme: 'dark', reducedMotion: 'reduce' },
  async (t, { page }) => {
    await page.getByRole('heading', { name: 'What is on your mind?' }).waitFor()
    t.strictSame(await accessibilityFaults(page), [])
    t.equal(await page.evaluate('document.documentElement.scrollWidth'), 375, 'nothing is wider than the screen')
    await page.getByRole('button', { name: 'Show chats' }).click()
    await page.getByRole('link', { name: 'Models', exact: true }).waitFor()
    t.strictSame(await accessibilityFaults(page), [])
  }
)

test('the link of "corral open" makes its user an admin, once', {}, async (t, { page, complaints, refusals }) => {
  const { hash } = new URL((await corral.json('/api/sessions/links', {}, { local: true })).body.address)
  const openServer = async () => {
    await page.goto('about:blank')
    await page.goto(`${corral.url}/${hash}`)
  }
  const view = (name: string) => page.getByRole('link', { name, exact: true })
  await openServer()
  await view('Server').click()
  await view('Keys').click()
  await page.getByRole('button', { name: 'Create key' }).waitFor()
  t.notMatch(page.url(), 'open=')
  t.strictSame([...complaints, ...refusals], [])
  await page.evaluate('sessionStorage.clear()')
  await openServer()
  await page.getByRole('alert').waitFor()
  await view('Server').click()
  await view('Usage').waitFor()
  t.equal(await view('Keys').count(), 0)
  complaints.splice(0)
  refusals.splice(0)
})
