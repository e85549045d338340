import t from 'tap'
import { testBrowser } from '../../support/browser.ts'
import { startCorral } from '../../support/corral.ts'
import { answersOf, ask, ended } from './support.ts'

const browser = testBrowser(t)
const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n' })

const denied = (...names: string[]) =>
  names
    .map(
      name =>
        `Object.defineProperty(window, '${name}', { get() { throw new DOMException('Denied', 'SecurityError') } })`
    )
    .join('\n')
const full = `
  Storage.prototype.setItem = () => { throw new DOMException('Full', 'QuotaExceededError') }
  IDBObjectStore.prototype.put = () => { throw new DOMException('Full', 'QuotaExceededError') }`
const fullLater = `
  const put = IDBObjectStore.prototype.put
  IDBObjectStore.prototype.put = function (value) {
    const request = put.call(this, value)
    this.transaction.abort()
    return request
  }`

for (const [name, script] of Object.entries({
  'denies everything': denied('localStorage', 'sessionStorage', 'indexedDB', 'BroadcastChannel'),
  'denies its database': denied('indexedDB'),
  'denies texts': denied('localStorage', 'sessionStorage'),
  'has no room': full,
  'takes nothing back': fullLater
})) {
  t.test(`the page works in a browser that ${name}`, { skip: browser.skip }, async t => {
    const { page, context, complaints } = await browser.open(t, 'about:blank')
    await context.addInitScript(script)
    await page.goto(corral.url)
    await ask(page, 'What is the capital of France?')
    await ended(page)
    await answersOf(page).getByText('Paris').waitFor()
    const note = page.getByText(/This browser no longer stores data for this page/)
    await note.waitFor()
    t.equal(await note.count(), 1, 'it says so once')

    await page.getByRole('link', { name: 'New chat' }).click()
    await ask(page, 'What is 7 + 8?')
    await ended(page)
    await page.getByRole('button', { name: 'More: What is 7 + 8?' }).click()
    await page.getByRole('button', { name: 'Rename', exact: true }).click()
    await page.getByRole('textbox', { name: 'Rename' }).fill('Sums')
    await page.keyboard.press('Enter')
    await page.getByRole('link', { name: 'What is the capital of France?' }).click()
    await answersOf(page).getByText('Paris').waitFor()
    await page.getByRole('link', { name: 'Sums' }).click()
    await answersOf(page).getByText('= 15').waitFor()
    const question = page.getByRole('article', { name: 'You' })
    await question.hover()
    await question.getByRole('button', { name: 'More' }).click()
    await question.getByRole('button', { name: 'Delete from here' }).click()
    await question.waitFor({ state: 'hidden' })

    await page.getByRole('button', { name: 'Settings', exact: true }).click()
    const download = page.waitForEvent('download')
    await page.getByRole('button', { name: 'Export all chats' }).click()
    const parts: Buffer[] = []
    for await (const part of await (await download).createReadStream()) parts.push(part as Buffer)
    const file = JSON.parse(Buffer.concat(parts).toString())
    t.same(file.chats.map(({ title }: { title: string }) => title).sort(), ['Sums', 'What is the capital of France?'])
    t.equal(file.messages.length, 2, 'both messages of the first chat, none of the second')
    t.strictSame(complaints, [])
  })
}
