import type { Page } from 'playwright-core'
import t from 'tap'
import { testBrowser } from '../support/browser.ts'
import { startCorral, until } from '../support/corral.ts'
import { answersOf, ask, ended } from './support.ts'

const browser = testBrowser(t)
const QUESTION = 'What is the capital of France?'
const config = (more = '') => `web:\n  conversations: server\n${more}defaults:\n  temperature: 0\n`
const corral = await startCorral(t, { config: config() })

const link = (page: Page) => page.getByRole('link', { name: QUESTION })
const look = (page: Page) => page.evaluate("dispatchEvent(new Event('focus'))")
const kept = async (): Promise<any[]> => (await corral.json('/api/conversations')).body.conversations

/** Waits until the server keeps a chat with a message that has a text. @returns that message */
const keptWith = (text: RegExp) =>
  until(`${text} is kept`, async () => {
    const [chat] = await kept()
    const { body } = await corral.json(`/api/conversations/${chat?.id}`)
    return body.document?.messages.find(({ content }: { content: string }) => text.test(content))
  })

/** Deletes the chat from the list at the side. */
async function remove(page: Page): Promise<void> {
  await page.getByRole('button', { name: `More: ${QUESTION}` }).click()
  await page.getByRole('button', { name: 'Delete', exact: true }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
}

t.test('chats follow a person; nothing that was said is lost', { skip: browser.skip }, async t => {
  const one = await browser.open(t, corral.url)
  await ask(one.page, QUESTION)
  await ended(one.page)
  t.notOk((await keptWith(/Paris/)).state, 'the whole answer, not its beginning')

  const other = await browser.open(t, corral.url)
  await link(other.page).click()
  await answersOf(other.page).getByText('Paris').waitFor()
  await ask(other.page, 'What is 7 + 8?')
  await ended(other.page)
  await keptWith(/= 15/)
  await look(one.page)
  await answersOf(one.page).getByText('= 15').waitFor()

  // Deleted there while something is said here: what was said stays.
  await remove(other.page)
  await until('it is gone there', async () => (await kept()).length === 0)
  await ask(one.page, 'Count to 12.')
  await ended(one.page)
  await until('it is kept again', async () => (await kept()).length === 1)
  t.equal(await answersOf(one.page).count(), 3)

  // A browser that has lost its database has lost nothing else.
  await other.page.close()
  const database =
    "new Promise(done => { const gone = indexedDB.deleteDatabase('corral'); gone.onsuccess = gone.onblocked = done })"
  await one.page.goto(`${corral.url}/api/health`)
  await one.page.evaluate(database)
  await one.page.goto(corral.url)
  await link(one.page).click()
  await answersOf(one.page).nth(2).waitFor()
  t.equal((await kept()).length, 1)

  // Deleted here, it is deleted for all.
  await remove(one.page)
  await until('it is gone', async () => (await kept()).length === 0)
  t.strictSame(one.refusals, [])
  t.strictSame(other.complaints, [])
})

t.test('a server that has no room says so, and is tried again', { skip: browser.skip }, async t => {
  const small = await startCorral(t, { config: config('  conversation_bytes: 100B\n') })
  const { page } = await browser.open(t, small.url)
  await ask(page, QUESTION)
  await ended(page)
  await page.getByText(/The server does not keep what was said last/).waitFor()
  t.ok(await answersOf(page).getByText('Paris').isVisible(), 'it is in the browser all the same')
})
