import type { Page } from 'playwright-core'
import t from 'tap'
import { accessibilityFaults, screenshot, testBrowser } from '../../support/browser.ts'
import { startCorral, until } from '../../support/corral.ts'
import { answersOf, ask, ended, startWriter, widthOf } from './support.ts'

const browser = testBrowser(t)

const COLUMNS = ['Model', 'Parameters', 'Quantization', 'Context', 'Memory', 'Tokens per second', 'Recommendation']
const CELLS = ['Qwen2.5-Instruct', '7.62 billion', 'Q4_K_M', '32,768 tokens', '5.8 GiB', '43.2', 'for development']
const row = (cells: string[]) => `| ${cells.join(' | ')} |\n`
const TEXTS: Record<string, string> = {
  Table: row(COLUMNS) + row(COLUMNS.map(() => '---')) + row(CELLS).repeat(3),
  Formulas: 'So $$x^2$$. And $$\\frac{a}{b}$$, or \\[y\\] too.\n\n$$\nE = mc^2\n$$\n\nIt costs $5 or $6.\n$$z$$\n'
}
let released = () => {}
const config = await startWriter(t, async (write, { messages }) => {
  const question: string = messages.at(-1).content
  if (TEXTS[question]) return write({ content: TEXTS[question] })
  write({ content: 'It has begun' })
  await new Promise<void>(resolve => {
    released = resolve
  })
})
const corral = await startCorral(t, { config })

async function openPage(t: Parameters<typeof browser.open>[0]) {
  const opened = await browser.open(t, corral.url)
  await opened.page.evaluate("localStorage.setItem('corral-model', 'far/writer')")
  await opened.page.reload()
  await opened.page.getByRole('button', { name: 'Model: far/writer' }).waitFor()
  return opened
}

/** Words of a table that are on more than one line. */
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

t.test('a wide table scrolls in its own frame, and no word of it is broken', { skip: browser.skip }, async t => {
  const { page, complaints } = await openPage(t)
  await ask(page, 'Table')
  await ended(page, 'far/writer')
  for (const width of [1280, 375]) {
    await page.setViewportSize({ width, height: 720 })
    const [seen, whole] = (await page.evaluate(
      "(({ clientWidth, scrollWidth }) => [clientWidth, scrollWidth])(document.querySelector('.table-frame'))"
    )) as number[]
    t.ok(whole! > seen!, `${width}: it scrolls, ${whole} of ${seen}`)
    t.same(await brokenWords(page), [], `${width}: no word is broken`)
    t.equal(await widthOf(page), width, `${width}: the page does not scroll`)
    t.strictSame(await accessibilityFaults(page), [])
    await screenshot(page, `table ${width}`)
  }
  t.strictSame(complaints, [])
})

t.test('formulas in a sentence stay in it', { skip: browser.skip }, async t => {
  const { page } = await openPage(t)
  await ask(page, 'Formulas')
  const answer = await ended(page, 'far/writer')
  await until('all formulas are shown', async () => (await answer.locator('math').count()) === 5)
  t.equal(await answer.locator('p').first().locator('math').count(), 3)
  t.equal(await answer.locator('p').first().locator('.is-displayed').count(), 0)
  t.equal(await answer.locator('.is-displayed math').count(), 2)
  t.ok(await answer.getByText('It costs $5 or $6.').isVisible())
})

t.test('Escape stops an answer from everywhere, and closes what is open first', { skip: browser.skip }, async t => {
  const { page } = await openPage(t)
  const stop = page.getByRole('button', { name: 'Stop' })
  for (const [place, focus] of Object.entries({
    'the messages': () => page.locator('.messages').focus(),
    'the list at the side': () => page.getByRole('link', { name: 'Models', exact: true }).focus(),
    'the field': () => page.getByLabel('Message', { exact: true }).focus(),
    nothing: () => page.evaluate('document.activeElement.blur()')
  })) {
    await ask(page, `From ${place}`)
    await stop.waitFor()
    const answer = answersOf(page, 'far/writer').last()
    await answer.getByText('It has begun').waitFor()
    if (place === 'the messages') {
      await page.getByRole('button', { name: 'Chat settings' }).click()
      await page.keyboard.press('Escape')
      await page.getByRole('dialog').waitFor({ state: 'hidden' })
      await page.getByRole('button', { name: /^Model:/ }).click()
      await page.keyboard.press('Escape')
      t.ok(await stop.isVisible(), 'a dialog and a menu were closed, no more')
    }
    await focus()
    await page.keyboard.press('Escape')
    await stop.waitFor({ state: 'hidden' })
    released()
    await answer.getByText('Stopped.').waitFor()
  }
})

t.test('a tab is named after what it shows', { skip: browser.skip }, async t => {
  const { page } = await openPage(t)
  const isNamed = (title: string) => until(`the tab is named ${title}`, async () => (await page.title()) === title)
  await isNamed('corral')
  await ask(page, 'Formulas')
  await isNamed('Formulas – corral')
  await page.getByRole('link', { name: 'Models', exact: true }).click()
  await isNamed('Models – corral')
})
