import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../../core/system/package-info.ts'
import { accessibilityFaults, screenshot, testBrowser } from '../../support/browser.ts'
import { CAPITAL_ANSWER, startCorral } from '../../support/corral.ts'

const browser = testBrowser(t)
const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n' })

t.test('the page is for browsers, the line for programs', async t => {
  const page = await fetch(corral.url, { headers: { accept: 'text/html,*/*;q=0.8', 'accept-encoding': 'gzip' } })
  t.equal(page.headers.get('content-encoding'), 'gzip')
  t.equal(page.headers.get('cache-control'), 'no-cache')
  const policy = page.headers.get('content-security-policy')!
  t.match(policy, /require-trusted-types-for 'script'; trusted-types corral-worker$/)
  t.notMatch(policy, /unsafe|https?:/)
  const html = await page.text()
  t.notMatch(html, /https?:\/\/(?!www\.w3\.org)/, 'nothing is asked of other hosts')
  const files = [...html.matchAll(/(?:href|src)="\.\/(page\/[^"]+)"/g)].map(([, path]) => path!)
  t.ok(files.length >= 3, 'a script, a style, what comes before them')
  let bytes = Number(page.headers.get('content-length') ?? 0)
  for (const path of files) {
    const file = await fetch(`${corral.url}/${path}`, { headers: { 'accept-encoding': 'gzip' } })
    t.match(file.headers.get('cache-control'), /immutable/, path)
    t.equal(file.headers.get('content-encoding'), 'gzip', path)
    bytes += statSync(`${join(packageRoot, 'dist', 'plugins', 'page', path.replace('page/', 'browser/'))}.gz`).size
  }
  t.ok(bytes < 60_000, `${bytes} bytes for the first load`)
  t.equal((await fetch(`${corral.url}/page/none.js`)).status, 404)
  t.equal((await fetch(`${corral.url}/page/..%2Ffiles.json`)).status, 404)
  t.match(await (await fetch(corral.url)).text(), /^corral is running/)
})

t.test('the page is elsewhere, or nowhere, where the configuration says so', async t => {
  const accept = { headers: { accept: 'text/html' } }
  const moved = await startCorral(t, { config: 'web:\n  path: /team/chat\n' })
  const links = await (await fetch(moved.url, accept)).text()
  t.match(links, '<a href="/team/chat">')
  t.match(links, '<a href="/docs">')
  const html = await (await fetch(`${moved.url}/team/chat`, accept)).text()
  t.match(html, 'name="corral-base" content="../"')
  const script = /src="(\.\/chat\/page\/main-[^"]+)"/.exec(html)![1]!
  t.equal((await fetch(new URL(script, `${moved.url}/team/chat`))).status, 200)
  const off = await startCorral(t, { config: 'web:\n  enabled: false\n' })
  t.notMatch(await (await fetch(off.url, accept)).text(), /Chat/)
})

t.test('files are there in every encoding', async t => {
  const folder = join(packageRoot, 'dist', 'plugins', 'page', 'browser')
  const names: string[] = JSON.parse(readFileSync(join(folder, 'files.json'), 'utf8'))
  t.ok(names.length > 5)
  for (const name of names) {
    const [plain, gzip, brotli] = await Promise.all(
      ['identity', 'gzip', 'br'].map(async encoding => {
        const reply = await fetch(`${corral.url}/page/${name}`, { headers: { 'accept-encoding': encoding } })
        t.equal(reply.headers.get('content-encoding') ?? 'identity', encoding, `${name}: ${encoding}`)
        return Buffer.from(await reply.arrayBuffer())
      })
    )
    t.ok(plain!.length > 0 && plain!.equals(gzip!) && plain!.equals(brotli!), name)
  }
})

t.test('whoever opens the page chats at once, and finds the chat again', { skip: browser.skip }, async t => {
  const { page, complaints, refusals } = await browser.open(t, corral.url)
  const field = page.getByLabel('Message', { exact: true })
  await field.fill('What is the capital of France?')
  await page.keyboard.press('Enter')
  const answer = page.getByRole('article', { name: 'Answer from corral/tiny-chat' })
  await answer.getByText(CAPITAL_ANSWER).waitFor()
  await answer.getByText(/context tokens used/).waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await page.reload()
  await answer.getByText(CAPITAL_ANSWER).waitFor()
  t.ok(await page.getByRole('link', { name: 'What is the capital of France?' }).isVisible(), 'it is in the list')
  t.strictSame(complaints, [])
  t.strictSame(refusals, [])
  await screenshot(page, 'chat')
})

t.test('it fits a phone, in the dark', { skip: browser.skip }, async t => {
  const phone = { device: 'Pixel 7', colorScheme: 'dark', reducedMotion: 'reduce' } as const
  const { page, complaints } = await browser.open(t, corral.url, { ...phone, viewport: { width: 375, height: 720 } })
  await page.getByRole('heading', { name: 'What is on your mind?' }).waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  t.equal(await page.evaluate('document.documentElement.scrollWidth'), 375, 'nothing is wider than the screen')
  await page.getByRole('button', { name: 'Show chats' }).click()
  await page.getByRole('link', { name: 'Models', exact: true }).waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  t.strictSame(complaints, [])
})
