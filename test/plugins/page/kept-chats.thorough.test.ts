import type { Page } from 'playwright-core'
import t from 'tap'
import { accessibilityFaults, screenshot } from '../../support/browser.ts'
import { CAPITAL_QUESTION, startCorral, until } from '../../support/corral.ts'
import { answered, answersOf, ask, chooseForChat, deleteChat, pageTests, renameChat, widthOf } from './support.ts'

const QUESTION = CAPITAL_QUESTION.content
const config = (more = '') => `web:\n  conversations: server\n${more}defaults:\n  temperature: 0\n`
const corral = await startCorral(t, { config: config() })
const test = pageTests(t, corral.url)

const link = (page: Page) => page.getByRole('link', { name: QUESTION })
/** Makes the page synchronize now. */
const synchronize = (page: Page) => page.evaluate("dispatchEvent(new Event('focus'))")
const stored = async (): Promise<any[]> => (await corral.json('/api/conversations')).body.conversations
const isEmpty = () => until('the server has no chat', async () => (await stored()).length === 0)
const document = async () => {
  const [chat] = await stored()
  return chat && (await corral.json(`/api/conversations/${chat.id}`)).body.document
}

/** Waits until the server has a message with a text. @returns that message */
const storedWith = (text: RegExp) =>
  until(`the server has ${text}`, async () =>
    (await document())?.messages.find(({ content }: { content: string }) => text.test(content))
  )

/** Asks a question and waits until the server has the answer. */
async function askAndStore(page: Page): Promise<{ state?: string }> {
  await answered(page, QUESTION)
  return storedWith(/Paris/)
}

t.beforeEach(() => corral.json('/api/conversations', undefined, { method: 'DELETE' }))

test('chats appear in every browser, and nothing is lost', { mayFail: true }, async (t, one, open) => {
  t.notOk((await askAndStore(one.page)).state, 'only complete answers are stored')
  const other = await open()
  await link(other.page).click()
  await answersOf(other.page).getByText('Paris').waitFor()
  await answered(other.page, 'What is 7 + 8?')
  await storedWith(/= 15/)
  await synchronize(one.page)
  await answersOf(one.page).getByText('= 15').waitFor()

  t.comment('a chat that is deleted in one browser and continued in another stays')
  await deleteChat(other.page, QUESTION)
  await isEmpty()
  await answered(one.page, 'Count to 12.')
  await until('the chat is stored again', async () => (await stored()).length === 1)
  t.equal(await answersOf(one.page).count(), 3)

  t.comment('a browser that lost its database gets its chats back')
  await other.page.close()
  const deleteDatabase =
    "new Promise(done => { const gone = indexedDB.deleteDatabase('corral'); gone.onsuccess = gone.onblocked = done })"
  await one.page.goto(`${corral.url}/api/health`)
  await one.page.evaluate(deleteDatabase)
  await one.page.goto(corral.url)
  await link(one.page).click()
  await answersOf(one.page).nth(2).waitFor()
  t.equal((await stored()).length, 1)

  await deleteChat(one.page, QUESTION)
  await isEmpty()
  t.strictSame([...one.refusals, ...other.complaints], [])
})

test('changes of two browsers are merged, and deletions last', { mayFail: true }, async (t, one, open) => {
  await askAndStore(one.page)
  const other = await open()
  await link(other.page).click()
  await answersOf(other.page).getByText('Paris').waitFor()

  t.comment('one renames, pins and configures the chat, the other continues it')
  await renameChat(one.page, QUESTION, 'Capitals')
  await chooseForChat(one.page, 'Capitals', 'Pin')
  await one.page.getByRole('button', { name: 'Chat settings' }).click()
  await one.page.getByLabel('System message').fill('Be brief.')
  await one.page.getByRole('dialog').getByRole('button', { name: 'Save', exact: true }).click()
  await answered(other.page, 'What is 7 + 8?')
  await until('the server has all changes', async () => {
    await synchronize(one.page)
    await synchronize(other.page)
    const { chat, messages } = await document()
    return chat.title === 'Capitals' && chat.pinned && chat.system === 'Be brief.' && messages.length === 4
  })
  for (const { page } of [one, other]) {
    await synchronize(page)
    await page.getByRole('link', { name: 'Capitals' }).waitFor()
    await answersOf(page).getByText('= 15').waitFor()
  }

  t.comment('one deletes a message')
  const question = one.page.getByRole('article', { name: 'You' }).last()
  await question.hover()
  await question.getByRole('button', { name: 'More' }).click()
  await question.getByRole('button', { name: 'Delete from here' }).click()
  await until('the other browser deletes it', async () => {
    await synchronize(other.page)
    return (await answersOf(other.page).count()) === 1
  })
  await synchronize(other.page)
  await other.page.reload()
  await answersOf(other.page).getByText('Paris').waitFor()
  t.equal((await document()).messages.length, 2)

  t.comment('one deletes the chat before it learns that the other has renamed it')
  await other.page.route('**/api/conversations**', route => route.abort())
  await renameChat(other.page, 'Capitals', 'Cities')
  await deleteChat(one.page, 'Capitals')
  await isEmpty()
  await other.page.unroute('**/api/conversations**')
  await synchronize(other.page)
  await other.page.getByRole('link', { name: 'Cities' }).waitFor({ state: 'hidden' })
  await synchronize(one.page)
  t.same(await stored(), [])
})

test('a browser that lost its notes brings no deleted chat back', { mayFail: true }, async (t, { page }) => {
  await askAndStore(page)
  const [chat] = await stored()
  await page.evaluate(
    "for (const name of Object.keys(localStorage)) if (name.startsWith('corral-kept')) localStorage.removeItem(name)"
  )
  await corral.json(`/api/conversations/${chat.id}`, undefined, { method: 'DELETE' })
  await synchronize(page)
  await link(page).waitFor({ state: 'hidden' })
  t.same(await stored(), [])
})

test('the page explains that the disk of the server is full', { mayFail: true }, async (_, { page }) => {
  await page.route('**/api/conversations/*', route =>
    route.fulfill({ status: 507, json: { error: 'ENOSPC', errorCode: 507, code: 'insufficient_storage' } })
  )
  await ask(page, QUESTION)
  await page.getByText(/The server's disk is full.*only in this browser/).waitFor()
  await page.unroute('**/api/conversations/*')
  await synchronize(page)
  await page.getByText(/The server's disk is full/).waitFor({ state: 'hidden' })
})

test('a chat over the quota stays in the browser, with a warning', { mayFail: true }, async (t, { page }) => {
  const small = await startCorral(t, { config: config('  conversation_bytes: 100B\n') })
  await page.goto(small.url)
  await answered(page, QUESTION)
  await page.getByText(/Your latest changes are not on the server yet/).waitFor()
  t.ok(await answersOf(page).getByText('Paris').isVisible())
})

test('a link shows a copy of a chat until it is revoked', { mayFail: true }, async (t, { page }, open) => {
  await answered(page, QUESTION)
  await chooseForChat(page, QUESTION, 'Share')
  const dialog = page.getByRole('dialog', { name: 'Share' })
  await dialog.getByRole('button', { name: 'Create a link' }).click()
  const address = (await dialog.getByRole('link').getAttribute('href'))!
  t.strictSame(await accessibilityFaults(page), [])
  await screenshot(page, 'share')
  await page.keyboard.press('Escape')
  await answered(page, 'What is 7 + 8?')

  const other = (await open()).page
  await other.setViewportSize({ width: 375, height: 700 })
  await other.goto(address)
  await answersOf(other).getByText('Paris').waitFor()
  t.equal(await other.getByRole('article').count(), 2, 'the chat as it was')
  t.equal(await other.locator('article button, article form').count(), 0)
  t.strictSame(await accessibilityFaults(other), [])
  t.equal(await widthOf(other), 375)
  await screenshot(other, 'shared 375')

  await chooseForChat(page, QUESTION, 'Share')
  await dialog.getByRole('button', { name: 'Revoke' }).click()
  await dialog.getByRole('link').waitFor({ state: 'hidden' })
  await other.getByRole('button', { name: 'Continue in a chat of my own' }).click()
  await answered(other, 'Count to 12.')
  t.equal(await other.getByRole('article').count(), 4, 'the copy is continued')
  await other.goto(address)
  await other.reload()
  await other.getByText('This chat is not shared any more.').waitFor()

  t.comment('a copy that was made to act on the reader')
  await until('both chats are stored', async () => (await stored()).length === 2)
  const { chat: known, messages } = await document()
  const share = async (document: unknown) =>
    (await corral.json(`/api/conversations/${known.id}/share`, { title: '<img src=x onerror=ran=1>', document })).body
      .id
  const call = { id: 'c', server: 's', tool: 'write', name: 's_write', arguments: '{}', at: 0, state: 'asked' }
  const acting = {
    state: 'answering',
    stream: { id: 'x', last: 0 },
    error: { message: 'Broken', code: 'unreachable' },
    toolCalls: [call],
    calls: [{ ...call, approval: 'a' }],
    content: '<script>ran = 2</script>'
  }
  const changed = messages.map((message: { role: string }) =>
    message.role === 'assistant' ? { ...message, ...acting } : message
  )
  const sent: string[] = []
  other.on('request', request => void sent.push(new URL(request.url()).pathname))
  const chatOf = { id: known.id, title: 'T', createdAt: 1, mcp: ['s'], leaf: known.leaf }
  await other.goto(`${corral.url}/#/shared/${await share({ chat: chatOf, messages: changed })}`)
  await other.reload()
  await other.getByText('<script>ran = 2</script>').first().waitFor()
  t.equal(await other.locator('article button:not(.icon-button), article form, article .failure').count(), 0)
  t.equal(await other.evaluate('window.ran'), undefined)
  t.same(
    sent.filter(path => path.startsWith('/v1/')),
    []
  )
  for (const broken of [null, { chat: chatOf, messages: 1 }]) {
    await other.goto(`${corral.url}/#/shared/${await share(broken)}`)
    await other.reload()
    await other.getByText('This part of the page could not be loaded.').waitFor()
  }
})
