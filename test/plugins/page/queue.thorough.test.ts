import type { Page, Route } from 'playwright-core'
import t from 'tap'
import { accessibilityFaults } from '../../support/browser.ts'
import { startCorral, until } from '../../support/corral.ts'
import { answersOf, ask, ended, pageTests, preferWriter, startWriter } from './support.ts'

// Messages that wait until an answer is finished.

const WRITER = 'far/writer'
let release = () => {}
let asked: string[] = []
const remote = await startWriter(t, async (write, { messages }) => {
  const { content } = messages.at(-1)
  asked.push(content)
  write({ content: 'It has begun.' })
  if (content.startsWith('Slow')) {
    await new Promise<void>(done => {
      release = done
    })
  }
  write({ content: ` This is for ${content}` })
})
const corral = await startCorral(t, { config: remote })
const test = pageTests(t, corral.url)

const queue = (page: Page) => page.getByRole('region', { name: 'Queued messages' })
const queued = (page: Page, text: string) => queue(page).getByRole('listitem').filter({ hasText: text })

/** Begins an answer, and queues messages after it. */
async function begin(page: Page, ...texts: string[]): Promise<void> {
  asked = []
  await preferWriter(page)
  await ask(page, 'Slow question')
  await answersOf(page, WRITER).getByText('It has begun').waitFor()
  for (const text of texts) await ask(page, text)
  await queued(page, texts.at(-1)!).waitFor()
}

test('queued messages can be changed, survive a reload, and are sent once and in order', {}, async (t, opened) => {
  const { page, context } = opened
  await begin(page, 'Second', 'Third', 'Fourth')
  t.match(await queue(page).innerText(), 'Sent when the answer is finished')
  t.strictSame(await accessibilityFaults(page), [])
  await queued(page, 'Fourth').getByRole('button', { name: 'Remove from the queue' }).click()
  await queued(page, 'Third').getByRole('button', { name: 'Edit queued message' }).click()
  const editor = queue(page).getByRole('textbox', { name: 'Edit queued message' })
  await editor.fill('Third, edited')
  t.strictSame(await accessibilityFaults(page), [])
  await queue(page).getByRole('button', { name: 'Save' }).click()
  await editor.waitFor({ state: 'hidden' })
  await page.reload()
  await queued(page, 'Third, edited').waitFor()
  const other = await context.newPage()
  await other.goto(page.url())
  await queued(other, 'Second').waitFor()
  // The first message of the queue waits while a tab edits it.
  await queued(other, 'Second').getByRole('button', { name: 'Edit queued message' }).click()
  await queue(page).getByRole('textbox').waitFor()
  release()
  await ended(page, WRITER)
  t.strictSame(asked, ['Slow question'])
  await queue(other).getByRole('button', { name: 'Cancel' }).click()
  for (const each of [page, other]) {
    await answersOf(each, WRITER).last().getByText('This is for Third, edited').waitFor()
    await queue(each).waitFor({ state: 'hidden' })
  }
  t.strictSame(asked, ['Slow question', 'Second', 'Third, edited'])
  t.equal(await answersOf(page, WRITER).count(), 3)
})

for (const how of ['stopping an answer', 'an error'] as const) {
  test(`the queue waits after ${how}, until the user sends a message`, { mayFail: true }, async (t, { page }) => {
    let fail = () => {}
    if (how === 'an error') {
      const failing = async (route: Route) => {
        await new Promise<void>(done => {
          fail = done
        })
        await route.fulfill({ status: 503, json: { error: { message: 'Nothing works.', code: 'overloaded' } } })
      }
      await page.route('**/v1/chat/completions', failing, { times: 1 })
      asked = []
      await preferWriter(page)
      await ask(page, 'Slow question')
      await page.getByRole('button', { name: 'Stop' }).waitFor()
      await ask(page, 'Second')
      await ask(page, 'Third')
      await queued(page, 'Third').waitFor()
      fail()
      await page.getByText('Nothing works.').first().waitFor()
    } else {
      await begin(page, 'Second', 'Third')
      await page.getByRole('button', { name: 'Stop' }).click()
    }
    await queue(page).getByText('Waiting, because the last answer was not finished').waitFor()
    await page.reload()
    await queue(page).getByText('Waiting, because').waitFor()
    t.equal(asked.includes('Second'), false)
    await queued(page, 'Second').getByRole('button', { name: 'Send now' }).click()
    await answersOf(page, WRITER).last().getByText('This is for Third').waitFor()
    t.strictSame(asked.slice(-2), ['Second', 'Third'], 'the queue continues')
  })
}

test('a message that is sent now stops the answer', {}, async (t, { page }) => {
  await begin(page, 'Second', 'Third')
  await queued(page, 'Third').getByRole('button', { name: 'Send now' }).click()
  await page.getByText('Stopped.').waitFor()
  await answersOf(page, WRITER).last().getByText('This is for Second').waitFor()
  t.strictSame(asked, ['Slow question', 'Third', 'Second'])
  await until('the queue is empty', async () => (await queue(page).count()) === 0)
})
