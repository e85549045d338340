import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Page } from 'playwright-core'
import t from 'tap'
import { packageRoot } from '../../../core/system/package-info.ts'
import { accessibilityFaults, screenshot } from '../../support/browser.ts'
import { startCorral, until } from '../../support/corral.ts'
import { HOSTILE, startOutside } from './hostile-code.ts'
import { answered, ask, ended, messageField, pageTests, preferWriter, startWriter, widthOf } from './support.ts'

const folder = join(packageRoot, 'dist', 'plugins', 'page', 'browser')

const { received, url: far, withPorts } = await startOutside(t)

let goOn: () => void = () => undefined
/** Answers with hostile code by its name, otherwise with the question itself, and pauses at each "…". */
const config = await startWriter(t, async (write, { messages }) => {
  const question: string = messages.at(-1).content
  const code = HOSTILE[question]
  const [first, ...others] = (code ? fenced('html', withPorts(code)) : question).split('…')
  write({ content: first })
  for (const content of others) {
    await new Promise<void>(resolve => (goOn = resolve))
    write({ content })
  }
})
const fenced = (language: string, code: string) => `\`\`\`${language}\n${code}\n\`\`\`\n`
const corral = await startCorral(t, { config })
const test = pageTests(t, corral.url)

const panel = (page: Page) => page.getByRole('complementary', { name: 'Preview' })
const inFrame = (page: Page) => panel(page).frameLocator('iframe')
/** Asks for an answer and opens its preview. */
async function preview(page: Page, question: string) {
  await page.goto(`${corral.url}/#/chat`)
  await page.getByRole('heading', { name: 'What is on your mind?' }).waitFor()
  const answer = await answered(page, question, 'far/writer')
  await answer.getByRole('button', { name: 'Preview' }).click()
  await panel(page).waitFor()
}

test('code in a preview reaches nothing', { mayFail: true }, async (t, { page, context }) => {
  const escapes: string[] = []
  context.on('page', () => escapes.push('opened a window'))
  page.on('dialog', dialog => {
    escapes.push(`showed a dialog: ${dialog.message()}`)
    void dialog.dismiss()
  })
  page.on('download', () => escapes.push('downloaded'))
  await preferWriter(page)
  for (const name of Object.keys(HOSTILE)) {
    await preview(page, name)
    const address = page.url()
    await inFrame(page).locator('body').waitFor({ state: 'attached' })
    await sleep(400)
    t.strictSame([...received.splice(0), ...escapes.splice(0)], [], name)
    t.equal(page.url(), address, `${name}: the page stays`)
    t.equal(await widthOf(page), 1280, name)
  }
  // The servers do notice connections.
  await (await context.newPage()).goto(far, { timeout: 2000 }).catch(() => undefined)
  t.ok(received.length > 0)
})

/** What code can try to read, and what it gets instead. */
const SECRETS = {
  'document.cookie': 'SecurityError',
  'localStorage.length': 'SecurityError',
  'sessionStorage.length': 'SecurityError',
  'indexedDB.open("corral")': 'SecurityError',
  'caches.keys()': 'SecurityError',
  'navigator.serviceWorker.getRegistration()': 'SecurityError',
  'navigator.storage.getDirectory()': 'SecurityError',
  'navigator.locks.request("corral", () => 0)': 'SecurityError',
  'parent.document': 'SecurityError',
  'parent.localStorage': 'SecurityError',
  'top.location.href': 'SecurityError',
  frameElement: 'null',
  'document.referrer': '',
  'self.origin': 'null',
  'eval("1")': 'EvalError',
  'Function("return 1")()': 'EvalError',
  'navigator.clipboard.readText()': 'NotAllowedError|TypeError',
  'navigator.mediaDevices.getUserMedia({ audio: true })': 'NotAllowedError|NotFoundError|TypeError'
}
test('code in a preview reads nothing of the page', { mayFail: true }, async (t, { page }) => {
  await preferWriter(page)
  await page.evaluate("sessionStorage.setItem('corral-key', '')")
  const asks = Object.keys(SECRETS).map(code => `[${JSON.stringify(code)}, async () => ${code}]`)
  await preview(
    page,
    fenced(
      'html',
      `<pre></pre><script>Promise.all([${asks}].map(async ([code, ask]) =>
        [code, await ask().then(String, ({ name }) => name)])).then(found =>
          document.querySelector('pre').textContent = JSON.stringify(Object.fromEntries(found)))</script>`
    )
  )
  await inFrame(page).getByText('}').waitFor()
  const found = JSON.parse(await inFrame(page).locator('pre').innerText())
  for (const [code, expected] of Object.entries(SECRETS)) t.match(found[code], new RegExp(`^(${expected})$`), code)
})

test('code in a preview neither freezes the page nor takes its keyboard', { mayFail: true }, async (t, { page }) => {
  await preferWriter(page)
  const harms = {
    'an endless loop': 'for (;;);',
    'a flood of messages':
      "setInterval(() => { for (let i = 0; i < 500; i++) parent.postMessage('x'.repeat(1e5), '*') })",
    'endless growth': 'for (const all = []; ; ) all.push(new Array(1e6).fill(all))'
  }
  for (const [name, code] of Object.entries(harms)) {
    await preview(page, fenced('html', `<script>${code}</script>`))
    await messageField(page).fill(`Still there after ${name}?`)
    await panel(page).getByRole('button', { name: 'Stop the preview' }).click()
    await panel(page).getByText('The preview is stopped.').waitFor()
    t.equal(await panel(page).locator('iframe').count(), 0, name)
  }
  await preview(
    page,
    fenced('html', '<input><script>setInterval(() => document.querySelector("input").focus(), 5)</script>')
  )
  await messageField(page).click()
  await page.keyboard.type('Secrets that the page keeps', { delay: 20 })
  await panel(page).getByText('took the keyboard').waitFor()
  t.match(await messageField(page).inputValue(), /that the page keeps$/)
  await panel(page).getByRole('button', { name: 'Run again' }).click()
  await inFrame(page).locator('input').waitFor()
})

test('a preview runs when its code is complete', {}, async (t, { page, context }) => {
  await preferWriter(page)
  await ask(page, '```html\n<p>First half, …second half</p>\n```\nDone')
  await page.getByRole('button', { name: 'Preview' }).click()
  await panel(page).getByText('The preview starts when the code is complete.').waitFor()
  goOn()
  await inFrame(page).getByText('First half, second half').waitFor()
  await ended(page, 'far/writer')
  t.strictSame(await accessibilityFaults(page), [])
  await screenshot(page, 'preview')
  await context.grantPermissions(['clipboard-read', 'clipboard-write'])
  await panel(page).getByRole('button', { name: 'Copy code' }).click()
  t.match(await page.evaluate('navigator.clipboard.readText()'), '<p>First half, second half</p>')
  const downloads = page.waitForEvent('download')
  await panel(page).getByRole('button', { name: 'Download as a file' }).click()
  t.equal((await downloads).suggestedFilename(), 'preview.html')
  await panel(page).getByRole('button', { name: 'Full screen' }).click()
  await panel(page).locator('pre').getByText('First half').waitFor()
  t.ok(await inFrame(page).getByText('First half').isVisible(), 'source and preview are side by side')
  await panel(page).getByRole('button', { name: 'Full screen' }).click()
  await panel(page).press('Escape')
  await panel(page).waitFor({ state: 'detached' })
  t.equal(await page.evaluate('document.activeElement.title'), 'Preview', 'the focus returns')
})

const DIAGRAMS = {
  flowchart: 'flowchart LR\n  A[Start] --> B{Works?}\n  B -->|yes| C["<b onclick=alert(1)>x</b>"]',
  sequence: 'sequenceDiagram\n  Alice->>Bob: Hello',
  mindmap: 'mindmap\n  root((corral))\n    Chats\n    Models',
  state: 'stateDiagram-v2\n  [*] --> Still',
  class: 'classDiagram\n  Animal <|-- Duck',
  er: 'erDiagram\n  CUSTOMER ||--o{ ORDER : places',
  'another layout': '---\nconfig:\n  layout: elk\n---\nflowchart LR\n  A --> B',
  pie: 'pie\n  "Dogs" : 3\n  "Cats" : 5',
  gantt: 'gantt\n  dateFormat YYYY-MM-DD\n  Task :a, 2026-01-01, 3d'
}
const PHONE = { device: 'Pixel 7', viewport: { width: 375, height: 720 }, colorScheme: 'dark' } as const
test('pictures and diagrams are drawn in the frame, also on phones', PHONE, async (t, { page }) => {
  await preferWriter(page)
  const circle = '<circle cx="5" cy="5" r="4"/>'
  await preview(
    page,
    fenced('xml', `<?xml version="1.0"?>\n<svg viewBox="0 0 10 10" xmlns="http://www.w3.org/2000/svg">${circle}</svg>`)
  )
  await inFrame(page).locator('circle').waitFor()
  t.equal(await page.locator('svg circle').count(), 0, 'not in the page')
  t.equal(await widthOf(page), 375)
  t.strictSame(await accessibilityFaults(page), [])
  await panel(page).getByRole('button', { name: 'Code', exact: true }).click()
  await panel(page).locator('pre').getByText('viewBox').waitFor()
  t.notOk(await panel(page).locator('iframe').isVisible())
  for (const [name, code] of Object.entries(DIAGRAMS)) {
    await preview(page, fenced('mermaid', code))
    await inFrame(page).locator('body > svg').waitFor()
    t.equal(await inFrame(page).locator('[onclick]').count(), 0, name)
    await screenshot(page, `preview-${name}`)
  }
  await preview(page, fenced('mermaid', 'flowchart\n  A --> --> B'))
  await inFrame(page).getByText('Parse error').waitFor()
})

test('only the page gives code to the frame', { mayFail: true }, async (t, { page, context }) => {
  const names: string[] = JSON.parse(readFileSync(join(folder, 'files.json'), 'utf8'))
  const address = `${corral.url}/page/${names.find(name => /^preview-.*html$/.test(name))}`
  const { headers } = await fetch(address)
  t.match(headers.get('content-security-policy'), /^sandbox allow-scripts; default-src 'none'/)
  t.equal(headers.get('connection-allowlist'), '()')
  const other = await context.newPage()
  await other.goto(`http://localhost:${new URL(corral.url).port}/livez`)
  await other.evaluate(`window.opened = open('${address}')`)
  const windows = await until('the window', () => context.pages().find(page => page.url() === address))
  await other.evaluate("opened.postMessage('<p>Obeyed</p>', '*')")
  await other.evaluate(`new Promise(resolve => {
    const frame = document.body.appendChild(document.createElement('iframe'))
    frame.onload = () => { frame.contentWindow.postMessage('<p>Obeyed</p>', '*'); setTimeout(resolve, 300) }
    frame.src = '${address}'
  })`)
  t.equal(await windows.getByText('Obeyed').count(), 0)
  t.equal(await other.frameLocator('iframe').getByText('Obeyed').count(), 0)
  t.equal(await page.getByText('Obeyed').count(), 0)
})
