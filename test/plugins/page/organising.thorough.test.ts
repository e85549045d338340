import type { Page } from 'playwright-core'
import t from 'tap'
import { accessibilityFaults, screenshot } from '../../support/browser.ts'
import { CAPITAL_QUESTION, startCorral, until } from '../../support/corral.ts'
import {
  answered,
  answersOf,
  ask,
  chooseForChat,
  ended,
  pageTests,
  renameChat,
  setOptions,
  startWriter,
  widthOf
} from './support.ts'

/** What the model writes if it is asked for a title. */
const TITLE = 'The sky is blue'
const QUESTION = CAPITAL_QUESTION.content
let release = () => {}
/** A remote model that is busy until `release` is called. */
const remote = await startWriter(t, () => new Promise<void>(resolve => (release = resolve)))
const config = `web:\n  conversations: server\ndefaults:\n  temperature: 0\n  num_ctx: 256\n${remote}`
const corral = await startCorral(t, { config })
const test = pageTests(t, corral.url)
const localStorage = [{ name: 'corral-model', value: 'corral/tiny-chat' }]
const storageState = { cookies: [], origins: [{ origin: corral.url, localStorage }] }
t.beforeEach(() => corral.json('/api/conversations', undefined, { method: 'DELETE' }))

const chatList = (page: Page) => page.locator('.chat-list')
/** The lines of the list of chats. */
const listed = async (page: Page) => (await chatList(page).innerText()).split('\n').filter(Boolean).join(' | ')
const lists = (page: Page, wanted: string) =>
  until(`the list is ${wanted}`, async () => (await listed(page)) === wanted)
/** Synchronizes until the list is as wanted. */
const arrives = (page: Page, wanted: RegExp) =>
  until(`the list is ${wanted}`, async () => {
    await page.evaluate("dispatchEvent(new Event('focus'))")
    return wanted.test(await listed(page))
  })
/** Collects the bodies of background requests. */
function titleRequests(page: Page): any[] {
  const bodies: any[] = []
  page.on('request', request => {
    if (request.headers()['x-corral-background']) bodies.push(request.postDataJSON())
  })
  return bodies
}
const choose = async (page: Page, name: string) => {
  await page.getByRole('button', { name: 'Settings', exact: true }).click()
  await page.locator('.menu-list').getByRole('button', { name }).click()
  await page.keyboard.press('Escape')
}

test('the model writes the title when it is idle, unless the user did', { titles: true }, async (t, { page }) => {
  const requests = titleRequests(page)
  await answered(page, QUESTION)
  await lists(page, `Today | ${TITLE}`)
  t.equal(requests.length, 1)
  t.match(requests[0], { reasoning_effort: 'none', options: { max_tokens: 24 } })
  t.match(requests[0].messages[0], { role: 'user', content: QUESTION }, 'the prompt begins like that of the chat')

  t.comment('a title of the user stays, even the same words')
  await page.getByRole('link', { name: 'New chat' }).click()
  await ask(page, 'Count to 12.')
  await renameChat(page, 'Count to 12.', 'Count to 12.')
  await ended(page)
  await answered(page, 'What is 7 + 8?')
  await page.reload()
  await lists(page, `Today | Count to 12. | ${TITLE}`)

  t.comment('switched off, no request is made')
  await choose(page, 'Titles by the model')
  await page.getByRole('link', { name: 'New chat' }).click()
  await answered(page, 'Count to 3.')
  await choose(page, 'Titles by the model')
  await answered(page, 'Count to 4.')
  await lists(page, `Today | ${TITLE} | Count to 12. | ${TITLE}`)
  t.equal(requests.length, 2, 'the chat with a title of the user caused none')
})

test(
  'the model writes no title while anything is running, and is not loaded for one',
  { titles: true },
  async (t, { page }) => {
    const requests = titleRequests(page)
    const far = () => corral.json('/v1/chat/completions', { model: 'far/writer', messages: [CAPITAL_QUESTION] })
    const running = async () =>
      (await corral.json('/api/ps')).body.models.some(({ running }: { running: number }) => running)
    const busy = far()
    await until('the remote model is busy', running)
    await answered(page, QUESTION)
    await corral.json('/api/stop', { model: 'corral/tiny-chat' })
    release()
    await busy
    // Longer than the page waits between two looks.
    await new Promise(resolve => setTimeout(resolve, 3000))
    t.same(requests, [], 'the model is not in memory')
    await corral.json('/api/load', { model: 'corral/tiny-chat' })
    await lists(page, `Today | ${TITLE}`)
    t.equal(requests.length, 1)

    t.comment('a request for a title gives way to others')
    const held = page.waitForRequest(request => request.headers()['x-corral-background'] !== undefined)
    await page.route('**/v1/chat/completions', route =>
      route.request().headers()['x-corral-background'] ? undefined : route.continue()
    )
    await page.getByRole('link', { name: 'New chat' }).click()
    await answered(page, 'Count to 3.')
    const failed = page.waitForEvent('requestfailed')
    await held
    const first = far()
    await until('it is busy', running)
    const releaseFirst = release
    const second = far()
    t.equal((await failed).headers()['x-corral-background'], 'true')
    releaseFirst()
    await first
    release()
    await second
    await lists(page, `Today | Count to 3. | ${TITLE}`)
  }
)

const older = ['What is the capital of Italy?', 'Count to 12.', 'What is 7 + 8?', 'Count to 10.', 'What is 2 + 2?']

test(
  'a full chat continues from a summary, which can be undone',
  { storageState, mayFail: true },
  async (t, { page }) => {
    const bodies: any[] = []
    page.on('request', request => {
      if (request.url().endsWith('chat/completions')) bodies.push(request.postDataJSON())
    })
    for (const question of older) await answered(page, question)
    const offer = page.getByRole('group', { name: 'Summarize older messages' })
    await answered(page, QUESTION)
    await offer.waitFor()
    t.match(await offer.innerText(), /^\d\d% of the context/)
    await screenshot(page, 'compact offer')
    await offer.getByRole('button', { name: 'Summarize older messages' }).click()
    const panel = page.getByRole('region', { name: 'Summary' })
    await panel.getByText('A summary replaces 10 earlier messages').click()
    await offer.waitFor({ state: 'hidden' })
    const messages = page.getByRole('article')
    t.equal(await messages.count(), 2, 'only the recent messages are shown')
    const summary = await panel.locator('.markdown').innerText()
    t.ok(summary.length > 3)
    await answered(page, 'What is 1 + 2?')
    const [first, , second] = bodies.at(-1).messages
    t.match(first.content, `Summary of our conversation so far:\n\n${summary}`)
    t.equal(second.content, QUESTION)

    t.comment('what was left out is found, readable and stored')
    await panel.getByRole('button', { name: 'Show them' }).click()
    t.equal(await messages.count(), 14)
    t.strictSame(await accessibilityFaults(page), [])
    await panel.getByRole('button', { name: 'Hide them' }).click()
    await page.keyboard.press('Control+k')
    await page.getByRole('combobox').fill('capital of ita')
    await page.getByRole('option').locator('small mark').waitFor()
    await page.keyboard.press('Enter')
    await messages.getByText(older[0]!).waitFor()
    await page.reload()
    await panel.waitFor()
    await until('it is synchronized', async () => {
      const [chat] = (await corral.json('/api/conversations')).body.conversations
      if (!chat) return false
      const { messages } = (await corral.json(`/api/conversations/${chat.id}`)).body.document
      return messages.length === 14 && messages.some((message: { summary?: string }) => message.summary === summary)
    })

    t.comment('undone, requests contain all messages again')
    await panel.getByRole('button', { name: 'Undo' }).click()
    await panel.waitFor({ state: 'hidden' })
    t.equal(await messages.count(), 14)

    t.comment('a new chat begins with the summary and the recent messages')
    await page.setViewportSize({ width: 375, height: 700 })
    await ask(page, 'Count to 8.')
    await offer.getByRole('button', { name: 'Continue in a new chat' }).click()
    await panel.getByText('Summary', { exact: true }).click()
    t.equal(await widthOf(page), 375)
    await screenshot(page, 'compacted 375')
    t.equal(await panel.getByRole('button').count(), 0, 'there is nothing to undo')
    await answered(page, 'What is 2 + 2?')
    t.match(bodies.at(-1).messages[0].content, /^Summary of our conversation so far/)
  }
)

test('projects hold settings for their chats', { storageState }, async (t, { page }, open) => {
  await answered(page, QUESTION)
  await page.getByRole('button', { name: 'New project' }).click()
  await page.getByRole('textbox', { name: 'Name' }).fill('Numbers')
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { name: 'Numbers', level: 1 }).waitFor()
  await setOptions(page, { system: 'Be brief.', temperature: '0' })
  t.strictSame(await accessibilityFaults(page), [])
  await answered(page, 'Count to 3.')
  const system = async () => {
    await page.getByRole('button', { name: 'Chat settings' }).click()
    const text = await page.getByLabel('System message').inputValue()
    await page.keyboard.press('Escape')
    return text
  }
  t.equal(await system(), 'Be brief.')
  await lists(page, `Numbers | Count to 3. | Today | ${QUESTION}`)

  t.comment('chats are moved by dragging, and by their menu')
  const line = (name: string) => chatList(page).getByRole('link', { name })
  await line(QUESTION).dragTo(line('Numbers'))
  await lists(page, `Numbers | Count to 3. | ${QUESTION}`)
  await line('Count to 3.').dragTo(page.locator('.chat-list'), { targetPosition: { x: 60, y: 300 } })
  await lists(page, `Numbers | ${QUESTION} | Today | Count to 3.`)
  await chooseForChat(page, QUESTION, 'Numbers')
  await lists(page, `Numbers | Today | Count to 3. | ${QUESTION}`)
  await chooseForChat(page, QUESTION, 'New project')
  await page.getByRole('textbox', { name: 'Name' }).fill('Capitals')
  await page.keyboard.press('Enter')
  await lists(page, `Capitals | Numbers | Today | Count to 3.`)

  t.comment('other browsers get the projects, and the file has them')
  const other = (await open()).page
  await arrives(other, /^Capitals . Numbers . Today . Count to 3\.$/)
  await other.getByRole('button', { name: 'Chats of Capitals' }).click()
  await other.getByRole('link', { name: QUESTION }).click()
  await answersOf(other).getByText('Paris').waitFor()
  await other.getByRole('button', { name: 'More: Capitals' }).click()
  await other.locator('.menu-list').getByRole('button', { name: 'Rename' }).click()
  await other.getByRole('textbox', { name: 'Name' }).fill('Cities')
  await other.keyboard.press('Enter')
  await arrives(page, /^Cities/)
  await page.getByRole('button', { name: 'Settings', exact: true }).click()
  const download = page.waitForEvent('download')
  await page.getByRole('button', { name: 'Export all chats' }).click()
  const path = await (await download).path()
  await page.keyboard.press('Escape')

  t.comment('deleting asks what happens with the chats')
  for (const [name, choice, left] of [
    ['Cities', 'Keep its chats', `Numbers | Today | Count to 3. | ${QUESTION}`],
    ['Numbers', 'Keep its chats', `Today | Count to 3. | ${QUESTION}`]
  ] as const) {
    await page.getByRole('button', { name: `More: ${name}` }).click()
    await page.locator('.menu-list').getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('dialog').getByRole('button', { name: choice }).click()
    await lists(page, left)
  }
  await page.getByLabel('Import chats').setInputFiles(path)
  await page.getByText('2 chats imported.').waitFor()
  await lists(page, 'Cities | Numbers | Today | Count to 3.')
  await page.getByRole('button', { name: 'More: Cities' }).click()
  await page.locator('.menu-list').getByRole('button', { name: 'Delete' }).click()
  await screenshot(page, 'delete project')
  await page.getByRole('button', { name: 'Delete its chats, too' }).click()
  await lists(page, 'Numbers | Today | Count to 3.')
})
