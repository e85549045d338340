import t from 'tap'
import { CAPITAL_QUESTION, startCorral } from '../../support/corral.ts'
import { answered, answersOf, pageTests, renameChat } from './support.ts'

const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n' })
const test = pageTests(t, corral.url)
const QUESTION = CAPITAL_QUESTION.content

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
const abortsWrites = `
  const put = IDBObjectStore.prototype.put
  IDBObjectStore.prototype.put = function (value) {
    const request = put.call(this, value)
    this.transaction.abort()
    return request
  }`

for (const [name, script] of Object.entries({
  'denies all storage': denied('localStorage', 'sessionStorage', 'indexedDB', 'BroadcastChannel'),
  'denies the database': denied('indexedDB'),
  'denies local and session storage': denied('localStorage', 'sessionStorage'),
  'has a full disk': full,
  'aborts all writes to the database': abortsWrites
})) {
  test(`chats work in a browser that ${name}`, {}, async (t, { page, context }) => {
    await context.addInitScript(script)
    await page.reload()
    await answered(page, QUESTION)
    await answersOf(page).getByText('Paris').waitFor()
    const note = page.getByText(/This browser no longer stores data for this page/)
    await note.waitFor()
    t.equal(await note.count(), 1, 'the page warns once')

    await page.getByRole('link', { name: 'New chat' }).click()
    await answered(page, 'What is 7 + 8?')
    await renameChat(page, 'What is 7 + 8?', 'Sums')
    await page.getByRole('link', { name: QUESTION }).click()
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
    t.same(file.chats.map(({ title }: { title: string }) => title).sort(), ['Sums', QUESTION])
    t.equal(file.messages.length, 2, 'only the messages of the first chat')
  })
}
