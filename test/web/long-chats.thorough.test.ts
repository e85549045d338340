import { setTimeout as sleep } from 'node:timers/promises'
import type { Page } from 'playwright-core'
import t, { type Test } from 'tap'
import { testBrowser } from '../support/browser.ts'
import { startCorral, until } from '../support/corral.ts'
import { ask, ended, startWriter } from './support.ts'

const browser = testBrowser(t)

/** A section of an answer: prose, a list, a table, code. */
const SECTION = (number: number) => `## Part ${number}

Some **words** about \`part ${number}\`, with a [link](https://example.org/${number}) and *more* of them in a line that is longer than others.

- first of part ${number}
- second, with \`code\`

| name | value |
|---|---:|
| part | ${number} |
| square | ${number * number} |

\`\`\`python
def part_${number}(value: int) -> int:
    # ${number} times
    return value * ${number} + sum(range(${number}))
\`\`\`

`
const TOKENS = 5000
const text = Array.from({ length: 200 }, (_, number) => SECTION(number)).join('')
const tokens = Array.from({ length: TOKENS }, (_, at) => text.slice(at * 4, at * 4 + 4))

/** Code of a thousand lines, with a long comment, blank lines and brackets over many lines. */
const CODE = Array.from(
  { length: 250 },
  (_, number) =>
    `/** Part ${number}.\n * It has ${'many '.repeat(number === 100 ? 3000 : 1)}words. */\nconst part${number} = [\n\n  ${number}]`
).join('\n')
const WORDS = 'Say [what] and [where] it is. '
const WITH_LINKS = `${WORDS}\n\n${'More of it.\n\n'.repeat(50)}[what]: https://example.org/what\n[where]: https://example.org/where\n`

const config = await startWriter(t, async (write, { messages }) => {
  const question = messages.at(-1).content
  if (question === 'Code') {
    const all = `\`\`\`ts\n${CODE}\n\`\`\`\n`
    for (let at = 0; at < all.length; at += 300) {
      write({ content: all.slice(at, at + 300) })
      await sleep(5)
    }
    return
  }
  if (question === 'Links') {
    for (let at = 0; at < WITH_LINKS.length; at += 7) write({ content: WITH_LINKS.slice(at, at + 7) })
    return
  }
  const began = performance.now()
  for (const [at, content] of tokens.entries()) {
    write({ content })
    if (question === 'At once') continue
    // 500 tokens a second, in the pieces that timers allow.
    const early = at * 2 - (performance.now() - began)
    if (early > 10) await sleep(early)
  }
})
const corral = await startCorral(t, { config })

/** A page that has chosen the model. */
async function openPage(t: Test) {
  const opened = await browser.open(t, corral.url)
  const { page } = opened
  await page.evaluate("localStorage.setItem('corral-model', 'far/writer')")
  await page.reload()
  await page.getByRole('button', { name: 'Model: far/writer' }).waitFor()
  return opened
}

/** Counts from now on the tasks that take longer than three frames. @returns what there were since it was asked last */
async function countLongTasks(page: Page): Promise<() => Promise<string>> {
  await page.evaluate(`
    window.tasks = []
    new PerformanceObserver(list => window.tasks.push(...list.getEntries().map(({ duration }) => duration)))
      .observe({ type: 'longtask' })
  `)
  return async () => {
    const tasks = (await page.evaluate('window.tasks.splice(0)')) as number[]
    const sum = Math.round(tasks.reduce((sum, each) => sum + each, 0))
    return `tasks over 50 ms: ${tasks.length}, ${sum} ms in all, the longest ${Math.round(Math.max(0, ...tasks))} ms`
  }
}

const TABLES = text.slice(0, TOKENS * 4).split('| name |').length - 1

t.test('an answer of 5,000 tokens, by a quarter of the processor', { skip: browser.skip }, async t => {
  const { page, context, complaints } = await openPage(t)
  // A quarter of a machine that does other things too.
  context.setDefaultTimeout(240_000)
  const session = await context.newCDPSession(page)
  await session.send('Emulation.setCPUThrottlingRate', { rate: 4 })
  const longTasks = await countLongTasks(page)
  await ask(page, 'Write')
  await page.getByRole('heading', { name: 'Part 9', exact: true }).waitFor()
  await page.evaluate("window.first = document.querySelector('.part h3')")
  const answer = await ended(page, 'far/writer')
  t.comment(await longTasks())
  t.ok(await page.evaluate('window.first.isConnected'), 'what was done is not made anew')
  t.equal(await answer.getByRole('table').count(), TABLES)
  const [end, bottom] = (await page.evaluate(
    "(({ scrollTop, clientHeight, scrollHeight }) => [scrollTop + clientHeight, scrollHeight])(document.querySelector('.messages'))"
  )) as [number, number]
  t.ok(bottom - end < 40, 'the end is seen')
  t.strictSame(complaints, [])
})

t.test(
  'an answer that comes all at once is there as a whole, also when it is opened again',
  { skip: browser.skip },
  async t => {
    const { page } = await openPage(t)
    await ask(page, 'At once')
    const answer = await ended(page, 'far/writer')
    const parts = () => answer.locator('.part').count()
    const shown = await answer.locator('.markdown').textContent()
    t.equal(await answer.getByRole('table').count(), TABLES)
    const many = await parts()
    t.ok(many > 5)
    await page.reload()
    await until('all parts are shown', async () => (await parts()) === many)
    t.equal(await answer.locator('.markdown').textContent(), shown)
  }
)

t.test(
  'long code gets its colours piece by piece, and is copied as it was written',
  { skip: browser.skip },
  async t => {
    const { page } = await openPage(t)
    await ask(page, 'Code')
    const answer = await ended(page, 'far/writer')
    const last = answer.locator('.code-piece').last()
    await until('the last piece has its colours', async () => (await last.textContent())?.includes('part249') ?? false)
    t.ok((await answer.locator('.code-piece').count()) > 3)
    t.ok((await answer.locator('.hljs-keyword').count()) >= 249)
    const selected = await page.evaluate(`{
    getSelection().selectAllChildren(document.querySelector('.code code'))
    getSelection().toString()
  }`)
    t.equal((selected as string).trimEnd(), CODE)
  }
)

t.test('links lead where the end of the answer says', { skip: browser.skip }, async t => {
  const { page } = await openPage(t)
  await ask(page, 'Links')
  const answer = await ended(page, 'far/writer')
  t.equal(await answer.getByRole('link', { name: 'what' }).getAttribute('href'), 'https://example.org/what')
  t.equal(await answer.getByRole('link', { name: 'where' }).getAttribute('href'), 'https://example.org/where')
})

t.test('a thousand chats', { skip: browser.skip }, async t => {
  const { page, complaints } = await browser.open(t, corral.url)
  await page.getByLabel('Message', { exact: true }).waitFor()
  const chats = Array.from({ length: 1000 }, (_, number) => ({
    id: `chat-${number}`,
    title: `Chat number ${number}`,
    leaf: `answer-${number}`,
    createdAt: 1_700_000_000_000 + number,
    updatedAt: 1_700_000_000_000 + number
  }))
  const messages = chats.flatMap(({ id, leaf }, number) => [
    { id: `question-${number}`, chat: id, role: 'user', content: `Question ${number}`, at: number * 2 + 1 },
    {
      id: leaf,
      chat: id,
      parent: `question-${number}`,
      role: 'assistant',
      content: `Needle ${number}.`,
      at: number * 2 + 2
    }
  ])
  // One of them has 200 messages.
  const pair = messages.splice(-2)
  for (let at = 0; at < 200; at++) {
    const [message, parent] = [pair[at % 2]!, at > 0 ? { parent: `many-${at - 1}` } : {}]
    const content = at % 2 ? SECTION(at) : `Question ${at}`
    messages.push({ ...message, ...parent, id: `many-${at}`, content, at: 10_000 + at })
  }
  chats.at(-1)!.leaf = 'many-199'
  const file = {
    name: 'chats.json',
    mimeType: 'application/json',
    buffer: Buffer.from(JSON.stringify({ corral: 'chats', version: 1, chats, messages }))
  }
  await page.getByLabel('Take chats from a file').setInputFiles(file)
  await page.getByText('1000 chats were taken.').waitFor()
  await page.reload()
  const lines = page.locator('.chat-line')
  await until('all chats are listed', async () => (await lines.count()) === 1000)
  const longTasks = await countLongTasks(page)
  await page.getByRole('link', { name: 'Chat number 999' }).click()
  await until('all messages are shown', async () => (await page.getByRole('article').count()) === 200)
  await page.getByRole('heading', { name: 'Part 199', exact: true }).waitFor()
  t.ok(await page.getByRole('heading', { name: 'Part 199', exact: true }).isVisible(), 'it is opened at its end')
  t.comment(`opened a chat of 200 messages: ${await longTasks()}`)
  await page.getByRole('link', { name: 'Chat number 998' }).click()
  await page.getByText('Needle 998.').waitFor()
  t.comment(`opened another one: ${await longTasks()}`)
  const began = performance.now()
  await page.getByRole('searchbox', { name: 'Search chats' }).fill('needle 517')
  await page.getByRole('link', { name: 'Chat number 517' }).waitFor()
  t.comment(`found by its text after ${Math.round(performance.now() - began)} ms`)
  await page.getByRole('link', { name: 'Chat number 517' }).click()
  await page.getByText('Needle 517.').waitFor()
  t.strictSame(complaints, [])
})
