import type { Page } from 'playwright-core'
import t from 'tap'
import { testBrowser } from '../../support/browser.ts'
import { startCorral, until } from '../../support/corral.ts'
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

t.test('changes of two browsers are merged, and deletions stay', { skip: browser.skip }, async t => {
  await corral.json('/api/conversations', undefined, { method: 'DELETE' })
  const one = await browser.open(t, corral.url)
  await ask(one.page, QUESTION)
  await ended(one.page)
  await keptWith(/Paris/)
  const other = await browser.open(t, corral.url)
  await link(other.page).click()
  await answersOf(other.page).getByText('Paris').waitFor()

  t.comment('renamed, pinned and set here, asked there')
  const menu = (page: Page, title: string) => page.getByRole('button', { name: `More: ${title}` }).click()
  await menu(one.page, QUESTION)
  await one.page.getByRole('button', { name: 'Rename', exact: true }).click()
  await one.page.getByRole('textbox', { name: 'Rename' }).fill('Capitals')
  await one.page.keyboard.press('Enter')
  await menu(one.page, 'Capitals')
  await one.page.getByRole('button', { name: 'Pin', exact: true }).click()
  await one.page.getByRole('button', { name: 'Chat settings' }).click()
  await one.page.getByLabel('System message').fill('Be brief.')
  await one.page.getByRole('dialog').getByRole('button', { name: 'Save', exact: true }).click()
  await ask(other.page, 'What is 7 + 8?')
  await ended(other.page)
  await until('all of it is kept', async () => {
    await look(one.page)
    await look(other.page)
    const [chat] = await kept()
    const { document } = (await corral.json(`/api/conversations/${chat?.id}`)).body
    return (
      chat.title === 'Capitals' && chat.pinned && document.chat.system === 'Be brief.' && document.messages.length === 4
    )
  })
  for (const { page } of [one, other]) {
    await look(page)
    await page.getByRole('link', { name: 'Capitals' }).waitFor()
    await answersOf(page).getByText('= 15').waitFor()
  }

  t.comment('a message is deleted here')
  const question = one.page.getByRole('article', { name: 'You' }).last()
  await question.hover()
  await question.getByRole('button', { name: 'More' }).click()
  await question.getByRole('button', { name: 'Delete from here' }).click()
  await until('it is gone there', async () => {
    await look(other.page)
    return (await answersOf(other.page).count()) === 1
  })
  await look(other.page)
  await other.page.reload()
  await answersOf(other.page).getByText('Paris').waitFor()
  const [chat] = await kept()
  t.equal((await corral.json(`/api/conversations/${chat.id}`)).body.document.messages.length, 2)

  t.comment('the chat is deleted here, and renamed there before that is known')
  await other.page.route('**/api/conversations**', route => route.abort())
  await menu(other.page, 'Capitals')
  await other.page.getByRole('button', { name: 'Rename', exact: true }).click()
  await other.page.getByRole('textbox', { name: 'Rename' }).fill('Cities')
  await other.page.keyboard.press('Enter')
  await menu(one.page, 'Capitals')
  await one.page.getByRole('button', { name: 'Delete', exact: true }).click()
  await one.page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
  await until('it is gone', async () => (await kept()).length === 0)
  await other.page.unroute('**/api/conversations**')
  await look(other.page)
  await other.page.getByRole('link', { name: 'Cities' }).waitFor({ state: 'hidden' })
  // A browser whose notes are lost does not bring it back either.
  await look(one.page)
  t.same(await kept(), [])
})

t.test('a browser that has lost its notes brings no deleted chat back', { skip: browser.skip }, async t => {
  const { page } = await browser.open(t, corral.url)
  await ask(page, QUESTION)
  await ended(page)
  await keptWith(/Paris/)
  const [chat] = await kept()
  await page.evaluate(
    "for (const name of Object.keys(localStorage)) if (name.startsWith('corral-kept')) localStorage.removeItem(name)"
  )
  await corral.json(`/api/conversations/${chat.id}`, undefined, { method: 'DELETE' })
  await look(page)
  await link(page).waitFor({ state: 'hidden' })
  t.same(await kept(), [])
})

t.test('a full disk of the server is told in plain words', { skip: browser.skip }, async t => {
  const { page } = await browser.open(t, corral.url)
  await page.route('**/api/conversations/*', route =>
    route.fulfill({ status: 507, json: { error: 'ENOSPC', errorCode: 507, code: 'insufficient_storage' } })
  )
  await ask(page, QUESTION)
  await page.getByText(/The server's disk is full.*only in this browser/).waitFor()
  await page.unroute('**/api/conversations/*')
  await look(page)
  await page.getByText(/The server's disk is full/).waitFor({ state: 'hidden' })
})

t.test('a server that has no room says so, and is tried again', { skip: browser.skip }, async t => {
  const small = await startCorral(t, { config: config('  conversation_bytes: 100B\n') })
  const { page } = await browser.open(t, small.url)
  await ask(page, QUESTION)
  await ended(page)
  await page.getByText(/Your latest changes are not on the server yet/).waitFor()
  t.ok(await answersOf(page).getByText('Paris').isVisible(), 'it is in the browser all the same')
})
