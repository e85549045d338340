import { setTimeout as sleep } from 'node:timers/promises'
import type { Page } from 'playwright-core'
import t, { type Test } from 'tap'
import { testBrowser } from '../../support/browser.ts'
import { startCorral, until } from '../../support/corral.ts'
import { ask, ended, recordTasks, startWriter } from './support.ts'

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

/** Lists, a table and a quote whose ends change what stands before. */
const GROWING = `1. one
2. two
   - in it
   - [x] done
3. three

4. far from it

| left | right |
|:--|--:|
| a | **b** |
| c | d | e |

> - quoted
>   more
> - again

- [ ] to do
- [x] done

\`\`\`
plain code
\`\`\`
`
/** Tokens of the last answer that have been written. */
let written = 0
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
  if (question === 'Grow') {
    for (const content of GROWING) {
      write({ content })
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
    written = at + 1
    if (question === 'At once') continue
    // 500 tokens a second, in the pieces that timers allow.
    const early = at * 2 - (performance.now() - began)
    if (early > 10) await sleep(early)
  }
})
const corral = await startCorral(t, { config })

/** A page that has chosen the model, and has made ready what it does while nothing else is to be done. */
async function openPage(t: Test) {
  const opened = await browser.open(t, corral.url)
  const { page } = opened
  await page.evaluate("localStorage.setItem('corral-model', 'far/writer')")
  await page.reload()
  await page.getByRole('button', { name: 'Model: far/writer' }).waitFor()
  await becomesReady(page)
  return opened
}

const becomesReady = (page: Page) =>
  until('the page is ready', () => page.evaluate("performance.getEntriesByName('corral-ready').length > 0"))

const showsEnd = (page: Page) =>
  until('the end is seen', () =>
    page.evaluate(
      "(({ scrollTop, clientHeight, scrollHeight }) => scrollTop + clientHeight > scrollHeight - 40)(document.querySelector('.messages'))"
    )
  )

/** Milliseconds for what a quarter of a machine does that does other things too. */
const PATIENCE = 240_000
const TABLES = text.slice(0, TOKENS * 4).split('| name |').length - 1

t.test('an answer of 5,000 tokens, by a quarter of the processor', { skip: browser.skip }, async t => {
  const { page, context, complaints } = await openPage(t)
  context.setDefaultTimeout(PATIENCE)
  const session = await context.newCDPSession(page)
  await session.send('Emulation.setCPUThrottlingRate', { rate: 4 })
  const tasks = await recordTasks(page)
  await ask(page, 'Write')
  // Looks at the page are work of its main thread too: there is one until the end.
  await until('some of it is written', () => written > TOKENS / 4)
  await page.evaluate("window.first = document.querySelector('.part h3')")
  await until('all of it is written', () => written === TOKENS, PATIENCE)
  const isBusy = "document.querySelector('.message:last-child').ariaBusy === 'true'"
  await until('it is shown', async () => !(await page.evaluate(isBusy)), PATIENCE)
  const { longest, work, computed, text } = await tasks()
  t.comment(text)
  t.ok(computed < 0.15, 'frames lay out and paint what was made before them')
  t.ok(longest < work / 25, 'no task takes much of the time')
  const answer = await ended(page, 'far/writer')
  t.ok(await page.evaluate('window.first.isConnected'), 'what was done is not made again')
  t.equal(await answer.getByRole('table').count(), TABLES)
  await showsEnd(page)
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
    await showsEnd(page)
    // Who scrolls up stays there.
    const toEnd = page.getByRole('button', { name: 'Jump to the end' })
    await page.locator('.messages').hover()
    await page.mouse.wheel(0, -1000)
    await toEnd.click()
    await showsEnd(page)
    await toEnd.waitFor({ state: 'hidden' })
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

t.test('what has grown letter by letter is what it is when it is opened again', { skip: browser.skip }, async t => {
  const { page } = await openPage(t)
  await ask(page, 'Grow')
  const shown = (await ended(page, 'far/writer')).locator('.markdown')
  const grown = await shown.textContent()
  const elements = await shown.locator('*').count()
  t.equal(await shown.locator('ol > li > p').count(), 4, 'all items of a list are apart once one is')
  await page.reload()
  await until('it is shown', async () => (await shown.locator('*').count()) === elements)
  t.equal(await shown.textContent(), grown)
})

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
  await page.getByLabel('Import chats').setInputFiles(file)
  await page.getByText('1000 chats imported.').waitFor()
  await page.reload()
  const lines = page.locator('.chat-line')
  await until('all chats are listed', async () => (await lines.count()) === 1000)
  await becomesReady(page)
  const session = await page.context().newCDPSession(page)
  await session.send('Emulation.setCPUThrottlingRate', { rate: 4 })
  const tasks = await recordTasks(page)
  await page.evaluate("document.querySelector('.chat-line a[href$=chat-999]').click()")
  await until(
    'all messages are shown',
    async () => (await page.evaluate("document.querySelectorAll('article').length")) === 200,
    PATIENCE
  )
  t.comment(`opened a chat of 200 messages, by a quarter of the processor: ${(await tasks()).text}`)
  await session.send('Emulation.setCPUThrottlingRate', { rate: 1 })
  await page.getByRole('heading', { name: 'Part 199', exact: true }).waitFor()
  t.ok(await page.getByRole('heading', { name: 'Part 199', exact: true }).isVisible(), 'it is opened at its end')
  await page.getByRole('link', { name: 'Chat number 998' }).click()
  await page.getByText('Needle 998.').waitFor()
  const began = performance.now()
  await page.getByRole('searchbox', { name: 'Search chats' }).fill('needle 517')
  await page.getByRole('link', { name: 'Chat number 517' }).waitFor()
  t.comment(`found by its text after ${Math.round(performance.now() - began)} ms`)
  await page.getByRole('link', { name: 'Chat number 517' }).click()
  await page.getByText('Needle 517.').waitFor()
  t.strictSame(complaints, [])
})
