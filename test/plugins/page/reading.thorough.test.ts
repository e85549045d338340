import { setTimeout as sleep } from 'node:timers/promises'
import type { Page } from 'playwright-core'
import t from 'tap'
import { accessibilityFaults, screenshot } from '../../support/browser.ts'
import { startCorral, until } from '../../support/corral.ts'
import { readFixture } from '../../support/fixture.ts'
import {
  answered,
  answersOf,
  ask,
  becomesReady,
  ended,
  messageField,
  pageTests,
  preferWriter,
  recordTasks,
  startWriter,
  widthOf
} from './support.ts'

const { section, growing, wide_table, formulas } = readFixture<Record<string, string>>('page-answers.yaml')
const writeSection = (number: number) =>
  section!.replaceAll('{number}', `${number}`).replaceAll('{square}', `${number * number}`)
const TOKENS = 5000
const text = Array.from({ length: 200 }, (_, number) => writeSection(number)).join('')
const tokens = Array.from({ length: TOKENS }, (_, at) => text.slice(at * 4, at * 4 + 4))
const TABLES = text.slice(0, TOKENS * 4).split('| name |').length - 1

/** A thousand lines of code with a long comment, blank lines and brackets over several lines. */
const CODE = Array.from(
  { length: 250 },
  (_, number) =>
    `/** Part ${number}.\n * It has ${'many '.repeat(number === 100 ? 3000 : 1)}words. */\nconst part${number} = [\n\n  ${number}]`
).join('\n')
const LINKS = `Say [what] and [where] it is. \n\n${'More of it.\n\n'.repeat(50)}[what]: https://example.org/what\n[where]: https://example.org/where\n`

/** Answers with the size of their pieces, and the pause after each piece in ms. */
const ANSWERS: Record<string, [text: string, size: number, pause?: number]> = {
  Code: [`\`\`\`ts\n${CODE}\n\`\`\`\n`, 300, 5],
  Grow: [growing!, 1, 5],
  Links: [LINKS, 7],
  Table: [wide_table!, 10_000],
  Formulas: [formulas!, 10_000]
}
/** Number of tokens of the current answer that were written. */
let written = 0
let release = () => {}
const config = await startWriter(t, async (write, { messages }) => {
  const question: string = messages.at(-1).content
  const [answer = '', size = 1, pause] = ANSWERS[question] ?? []
  for (let at = 0; at < answer.length; at += size) {
    write({ content: answer.slice(at, at + size) })
    if (pause) await sleep(pause)
  }
  if (question.startsWith('From')) {
    write({ content: 'It has begun' })
    await new Promise<void>(resolve => {
      release = resolve
    })
  }
  if (question !== 'Write' && question !== 'At once') return
  const began = performance.now()
  for (const [at, content] of tokens.entries()) {
    write({ content })
    written = at + 1
    if (question === 'At once') continue
    // 500 tokens per second, in the bursts that timers allow.
    const early = at * 2 - (performance.now() - began)
    if (early > 10) await sleep(early)
  }
})
const corral = await startCorral(t, { config })
const test = pageTests(t, corral.url)
const WRITER = 'far/writer'

/** Asks the remote model in a new chat, and waits for the complete answer. */
async function askWriter(page: Page, question: string) {
  await preferWriter(page)
  return answered(page, question, WRITER)
}

const showsEnd = (page: Page) =>
  until('the end is visible', () =>
    page.evaluate(
      "(({ scrollTop, clientHeight, scrollHeight }) => scrollTop + clientHeight > scrollHeight - 40)(document.querySelector('.messages'))"
    )
  )

/** Time limit in ms for pages with a throttled processor on shared machines. */
const PATIENCE = 240_000
const throttle = async (page: Page) => {
  const session = await page.context().newCDPSession(page)
  const setRate = (rate: number) => session.send('Emulation.setCPUThrottlingRate', { rate })
  await setRate(4)
  return () => setRate(1)
}

test('a throttled page shows 5,000 tokens without long tasks', {}, async (t, { page, context }) => {
  await preferWriter(page)
  context.setDefaultTimeout(PATIENCE)
  await throttle(page)
  const tasks = await recordTasks(page)
  await ask(page, 'Write')
  // Looking at the page costs its main thread time, so it is done only once before the end.
  await until('a part is written', () => written > TOKENS / 4)
  await page.evaluate("window.first = document.querySelector('.part h3')")
  await until('everything is written', () => written === TOKENS, PATIENCE)
  const isBusy = "document.querySelector('.message:last-child').ariaBusy === 'true'"
  await until('everything is shown', async () => !(await page.evaluate(isBusy)), PATIENCE)
  const { longest, work, computed, text } = await tasks()
  t.comment(text)
  t.ok(computed < 0.15, 'frames only lay out and paint')
  t.ok(longest < work / 25, 'no task takes a large part of the time')
  const answer = await ended(page, WRITER)
  t.ok(await page.evaluate('window.first.isConnected'), 'finished parts are not rendered again')
  t.equal(await answer.getByRole('table').count(), TABLES)
  await showsEnd(page)
})

test('an answer that arrives at once is shown completely, also after a reload', {}, async (t, { page }) => {
  const answer = await askWriter(page, 'At once')
  const parts = () => answer.locator('.part').count()
  const shown = await answer.locator('.markdown').textContent()
  t.equal(await answer.getByRole('table').count(), TABLES)
  const many = await parts()
  t.ok(many > 5)
  await page.reload()
  await until('all parts are shown', async () => (await parts()) === many)
  t.equal(await answer.locator('.markdown').textContent(), shown)
  await showsEnd(page)
  t.comment('a reader who scrolls up stays there')
  const toEnd = page.getByRole('button', { name: 'Jump to the end' })
  await page.locator('.messages').hover()
  await page.mouse.wheel(0, -1000)
  await toEnd.click()
  await showsEnd(page)
  await toEnd.waitFor({ state: 'hidden' })
})

test('long code is highlighted in pieces and selected as written', {}, async (t, { page }) => {
  const answer = await askWriter(page, 'Code')
  const pieces = answer.locator('.code-piece')
  await until('the last piece is highlighted', async () =>
    Boolean((await pieces.last().textContent())?.includes('part249'))
  )
  t.ok((await pieces.count()) > 3)
  t.ok((await answer.locator('.hljs-keyword').count()) >= 249)
  const selected = await page.evaluate(`{
    getSelection().selectAllChildren(document.querySelector('.code code'))
    getSelection().toString()
  }`)
  t.equal((selected as string).trimEnd(), CODE)
})

test('an answer that grew letter by letter looks the same after a reload', {}, async (t, { page }) => {
  const shown = (await askWriter(page, 'Grow')).locator('.markdown')
  const grown = await shown.textContent()
  const elements = await shown.locator('*').count()
  t.equal(await shown.locator('ol > li > p').count(), 4, 'one blank line makes all items of the list loose')
  await page.reload()
  await until('everything is shown', async () => (await shown.locator('*').count()) === elements)
  t.equal(await shown.textContent(), grown)
})

test('links use definitions at the end of the answer', {}, async (t, { page }) => {
  const answer = await askWriter(page, 'Links')
  for (const name of ['what', 'where']) {
    t.equal(await answer.getByRole('link', { name }).getAttribute('href'), `https://example.org/${name}`)
  }
})

test('the page stays usable with five thousand chats and a chat of 200 messages', {}, async (t, { page }) => {
  await messageField(page).waitFor()
  const chats = Array.from({ length: 5000 }, (_, number) => ({
    id: `chat-${number}`,
    title: `Chat number ${number}`,
    leaf: `answer-${number}`,
    createdAt: 1_700_000_000_000 + number,
    updatedAt: 1_700_000_000_000 + number
  }))
  const messages = chats.flatMap(({ id: chat, leaf: id }, number) => {
    const parent = `question-${number}`
    return [
      { id: parent, chat, role: 'user', content: `Question ${number}`, at: number * 2 + 1 },
      { id, chat, parent, role: 'assistant', content: `Needle ${number}.`, at: number * 2 + 2 }
    ]
  })
  const pair = messages.splice(-2)
  for (let at = 0; at < 200; at++) {
    const [message, parent] = [pair[at % 2]!, at > 0 ? { parent: `many-${at - 1}` } : {}]
    const content = at % 2 ? writeSection(at) : `Question ${at}`
    messages.push({ ...message, ...parent, id: `many-${at}`, content, at: 10_000 + at })
  }
  chats.at(-1)!.leaf = 'many-199'
  const buffer = Buffer.from(JSON.stringify({ corral: 'chats', version: 1, chats, messages }))
  await page.getByLabel('Import chats').setInputFiles({ name: 'chats.json', mimeType: 'application/json', buffer })
  await page.getByText('5000 chats imported.').waitFor()
  await page.reload()
  const lines = page.locator('.chat-line')
  await until('all chats are listed', async () => (await lines.count()) === 5000)
  await becomesReady(page)
  const unthrottle = await throttle(page)
  const tasks = await recordTasks(page)
  await page.evaluate("document.querySelector('.chat-line a[href$=chat-4999]').click()")
  const count = () => page.evaluate("document.querySelectorAll('article').length")
  await until('all messages are shown', async () => (await count()) === 200, PATIENCE)
  t.comment(`opened a chat of 200 messages, throttled: ${(await tasks()).text}`)
  await unthrottle()
  const lastHeading = page.getByRole('heading', { name: 'Part 199', exact: true })
  await lastHeading.waitFor()
  t.ok(await lastHeading.isVisible(), 'a chat is opened at its end')
  const open = (title: string) => page.getByRole('link', { name: title }).click()
  await open('Chat number 4998')
  await page.getByText('Needle 4998.').waitFor()
  const search = page.getByRole('searchbox', { name: 'Search chats' })
  const searching = await recordTasks(page)
  await search.fill('needle 517.')
  await page.locator('mark').getByText('Needle 517.').waitFor()
  t.comment(`searched all chats: ${(await searching()).text}`)
  await open('Chat number 517')
  await page.getByText('Needle 517.').last().waitFor()

  t.comment('a long chat is opened at the message that was found')
  await search.fill('question 42')
  await open('Chat number 4999')
  const found = page.getByRole('article').getByText('Question 42', { exact: true })
  await until('the message is in view', () =>
    found.evaluate(element => {
      const { top, bottom } = element.getBoundingClientRect()
      return top > 0 && bottom < (globalThis as unknown as { innerHeight: number }).innerHeight
    })
  )
  await until('and stays there', async () => (await count()) === 200, PATIENCE)
  t.ok(await found.evaluate(element => element.getBoundingClientRect().top > 0))
})

/** Lists the words of tables that are broken over two lines. */
const brokenWords = (page: Page) =>
  page.evaluate(`[...document.querySelectorAll('.markdown :is(th, td)')].flatMap(cell => {
    const text = cell.firstChild
    return [...text.data.matchAll(/[\\w.,]+/g)].filter(({ 0: word, index }) => {
      const range = new Range()
      range.setStart(text, index)
      range.setEnd(text, index + word.length)
      return range.getClientRects().length > 1
    }).map(([word]) => word)
  })`)

test('a wide table scrolls in its own frame and breaks no words', {}, async (t, { page }) => {
  await askWriter(page, 'Table')
  for (const width of [1280, 375]) {
    await page.setViewportSize({ width, height: 720 })
    const [seen, whole] = (await page.evaluate(
      "(({ clientWidth, scrollWidth }) => [clientWidth, scrollWidth])(document.querySelector('.table-frame'))"
    )) as number[]
    t.ok(whole! > seen!, `${width}: the frame scrolls, ${whole} of ${seen}`)
    t.same(await brokenWords(page), [], `${width}: no broken words`)
    t.equal(await widthOf(page), width, `${width}: the page does not scroll`)
    t.strictSame(await accessibilityFaults(page), [])
    await screenshot(page, `table ${width}`)
  }
})

test('formulas are inline or displayed, and amounts of money are text', {}, async (t, { page }) => {
  const answer = await askWriter(page, 'Formulas')
  await until('all formulas are shown', async () => (await answer.locator('math').count()) === 5)
  const first = answer.locator('p').first()
  t.equal(await first.locator('math').count(), 3)
  t.equal(await first.locator('.is-displayed').count(), 0)
  t.equal(await answer.locator('.is-displayed math').count(), 2)
  t.ok(await answer.getByText('It costs $5 or $6.').isVisible())
})

test('Escape closes dialogs and menus first, then stops the answer', {}, async (t, { page }) => {
  await preferWriter(page)
  const stop = page.getByRole('button', { name: 'Stop' })
  for (const [place, focus] of Object.entries({
    'the messages': () => page.locator('.messages').focus(),
    'the sidebar': () => page.getByRole('link', { name: 'Models', exact: true }).focus(),
    'the message field': () => messageField(page).focus(),
    nothing: () => page.evaluate('document.activeElement.blur()')
  })) {
    await ask(page, `From ${place}`)
    await stop.waitFor()
    const answer = answersOf(page, WRITER).last()
    await answer.getByText('It has begun').waitFor()
    if (place === 'the messages') {
      await page.getByRole('button', { name: 'Chat settings' }).click()
      await page.getByRole('dialog').waitFor()
      await page.keyboard.press('Escape')
      await page.getByRole('dialog').waitFor({ state: 'hidden' })
      await page.getByRole('button', { name: /^Model:/ }).click()
      await page.keyboard.press('Escape')
      t.ok(await stop.isVisible(), 'the answer continues')
    }
    await focus()
    await page.keyboard.press('Escape')
    await stop.waitFor({ state: 'hidden' })
    release()
    await answer.getByText('Stopped.').waitFor()
  }
})

test('the title of the tab names the view or the chat', {}, async (_, { page }) => {
  await preferWriter(page)
  const hasTitle = (title: string) => until(`the title is "${title}"`, async () => (await page.title()) === title)
  await hasTitle('corral')
  await ask(page, 'Formulas')
  await hasTitle('Formulas – corral')
  await page.getByRole('link', { name: 'Models', exact: true }).click()
  await hasTitle('Models – corral')
})
