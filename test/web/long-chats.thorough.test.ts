import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { testBrowser } from '../support/browser.ts'
import { startCorral } from '../support/corral.ts'
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

const config = await startWriter(t, async write => {
  const began = performance.now()
  for (const [at, content] of tokens.entries()) {
    write({ content })
    // 500 tokens a second, in the pieces that timers allow.
    const early = at * 2 - (performance.now() - began)
    if (early > 10) await sleep(early)
  }
})
const corral = await startCorral(t, { config })

t.test('an answer of 5,000 tokens, by a quarter of the processor', { skip: browser.skip }, async t => {
  const { page, context, complaints } = await browser.open(t, corral.url)
  await page.evaluate("localStorage.setItem('corral-model', 'far/writer')")
  await page.reload()
  await page.getByRole('button', { name: 'Model: far/writer' }).waitFor()
  const session = await context.newCDPSession(page)
  await session.send('Emulation.setCPUThrottlingRate', { rate: 4 })
  await page.evaluate(`
    window.tasks = []
    new PerformanceObserver(list => window.tasks.push(...list.getEntries().map(({ duration }) => duration)))
      .observe({ type: 'longtask' })
  `)
  await ask(page, 'Write')
  const answer = await ended(page, 'far/writer')
  const tasks = (await page.evaluate('window.tasks')) as number[]
  const longest = Math.round(Math.max(0, ...tasks))
  t.comment(
    `tasks over 50 ms: ${tasks.length}, ${Math.round(tasks.reduce((sum, each) => sum + each, 0))} ms in all, the longest ${longest} ms`
  )
  t.equal(await answer.getByRole('table').count(), text.slice(0, TOKENS * 4).split('| name |').length - 1)
  t.strictSame(complaints, [])
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
  const file = {
    name: 'chats.json',
    mimeType: 'application/json',
    buffer: Buffer.from(JSON.stringify({ corral: 'chats', version: 1, chats, messages }))
  }
  await page.getByLabel('Take chats from a file').setInputFiles(file)
  await page.getByText('1000 chats were taken.').waitFor()
  await page.reload()
  await page.getByRole('link', { name: 'Chat number 999' }).click()
  await page.getByText('Needle 999.').waitFor()
  const began = performance.now()
  await page.getByRole('searchbox', { name: 'Search chats' }).fill('needle 517')
  await page.getByRole('link', { name: 'Chat number 517' }).waitFor()
  t.comment(`found by its text after ${Math.round(performance.now() - began)} ms`)
  await page.getByRole('link', { name: 'Chat number 517' }).click()
  await page.getByText('Needle 517.').waitFor()
  t.strictSame(complaints, [])
})
