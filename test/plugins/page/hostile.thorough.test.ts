import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { testBrowser } from '../../support/browser.ts'
import { startCorral, until } from '../../support/corral.ts'
import { answersOf, ask, ended, recordTasks, startWriter, widthOf } from './support.ts'

const browser = testBrowser(t)
const HOSTILE: Record<string, string> = {
  scripts:
    '<script>window.ran = 1</script>\n\n<img src=x onerror="window.ran = 2">\n\ntext <b onclick="window.ran = 3">bold</b>',
  drawings:
    '<svg onload="window.ran = 4"><script>window.ran = 5</script></svg>\n\n```svg\n<svg onload="window.ran = 6"/>\n```',
  links:
    '[one](javascript:window.ran=7) [two](JaVaScRiPt&colon;window.ran=8) [three](data:text/html,<script>window.ran=9</script>) [four](vbscript:x) <javascript:window.ran=10>',
  images:
    '![one](https://example.org/track.png) ![two](data:image/svg+xml,<svg onload="window.ran=11"/>) ![three](data:image/png;base64,AAAA)',
  'one long line': 'word '.repeat(20_000),
  'one long word': 'w'.repeat(100_000),
  'signs in one long line': '*_`[a](b ~~$ '.repeat(8000),
  'open brackets': '['.repeat(20_000),
  quotes: '>'.repeat(10_000),
  'quotes with spaces': `${'> '.repeat(10_000)}end`,
  lists: `${'- '.repeat(5000)}end`,
  'numbered lists': `${'1. '.repeat(5000)}end`,
  'lists in lists': Array.from({ length: 200 }, (_, depth) => `${'  '.repeat(depth)}- ${depth}`).join('\n'),
  'broken Markdown':
    '```js\nconst a = 1\n\n| a | b |\n|--\n**bold _both** [link](http:// \n$$\\frac{1$$ &#x110000; &#xd800; &nope; \\',
  formulas: '$$\\href{javascript:window.ran=12}{a} \\color{red}{x}$$ and $\\frac{1}{0}$ and $\\undefined{$',
  'both directions': 'a \u202Egnp.exe\u202C b \u2066\u2067\u2069 \u200F end'
}
/** Texts that readers of Markdown take a time for that grows with the square of their length. */
const COSTLY: Record<string, string> = {
  'plain text': 'word '.repeat(50_000),
  'a list in a list': Array.from({ length: 500 }, (_, depth) => `${'  '.repeat(depth)}- ${depth}`).join('\n'),
  'brackets of formulas': '\\['.repeat(20_000),
  'brackets of formulas on lines': '\\[\n\n'.repeat(10_000),
  'open emphasis': `${'_a_'.repeat(8000)}${'__b'.repeat(4000)}`,
  'closed emphasis': 'a__'.repeat(14_000),
  'signs of formulas': '$$'.repeat(10_000),
  'formulas in sentences': 'So $a$ is. '.repeat(4000),
  backticks: '` a'.repeat(20_000),
  'open links': '[a]('.repeat(10_000),
  'open images': '!['.repeat(20_000),
  'open tags': '<'.repeat(30_000),
  'stars in words': '*a'.repeat(20_000),
  tildes: '~~a '.repeat(15_000),
  address: `${'a.'.repeat(20_000)}@`,
  addresses: 'a@'.repeat(20_000),
  'broken lines': 'a  \n'.repeat(15_000),
  'underlined headings': 'a\n-\n'.repeat(15_000),
  'an item of many lines': `- ${'a\n'.repeat(20_000)}`,
  'a wide table': `${'|a'.repeat(3000)}\n${'|-'.repeat(3000)}\n${'|a'.repeat(3000)}`
}
const config = await startWriter(t, async (write, { messages }) => {
  const question: string = messages.at(-1).content
  const text = HOSTILE[question] ?? COSTLY[question]!
  for (let at = 0; at < text.length; at += 2000) {
    write({ content: text.slice(at, at + 2000) })
    // As a model does, so that the page reads what has come again and again.
    if (question in COSTLY) await sleep(10)
  }
})
const corral = await startCorral(t, { config })

for (const [name, text] of Object.entries(HOSTILE)) {
  t.test(`hostile output: ${name}`, { skip: browser.skip }, async t => {
    const { page, complaints, context } = await browser.open(t, corral.url)
    const elsewhere: string[] = []
    context.on('request', request => {
      if (!request.url().startsWith(corral.url)) elsewhere.push(request.url())
    })
    await page.getByRole('button', { name: /^Model:/ }).click()
    await page.locator('.menu-list').getByRole('button', { name: 'far/writer' }).click()
    await ask(page, name)
    const answer = await ended(page, 'far/writer')
    t.equal(await answer.locator('script, svg:not(.icon), img, iframe, [onclick], [onload], [onerror]').count(), 0)
    t.equal(await answer.locator('a:not([href^="http"])').count(), 0, 'links lead to the web only')
    t.equal(await page.evaluate('window.ran'), undefined, 'nothing ran')
    t.ok((await answer.innerText()).length > Math.min(20, text.length / 2), 'it is shown')
    t.equal(await widthOf(page), 1280)
    // The page continues.
    await page.getByLabel('Message', { exact: true }).fill('Still there?')
    await page.reload()
    await answersOf(page, 'far/writer').waitFor()
    t.strictSame(complaints, [])
    t.strictSame(
      elsewhere.filter(url => !url.startsWith('data:')),
      []
    )
  })
}

t.test('Markdown that is costly to read makes no task long', { skip: browser.skip }, async t => {
  const { page } = await browser.open(t, corral.url)
  await page.evaluate("localStorage.setItem('corral-model', 'far/writer')")
  const costs = new Map<string, { longest: number; work: number }>()
  for (const [name, text] of Object.entries(COSTLY)) {
    await page.goto(`${corral.url}/#/chat`)
    await page.reload()
    await page.getByRole('button', { name: 'Model: far/writer' }).waitFor()
    await until('the page is ready', () => page.evaluate("performance.getEntriesByName('corral-ready').length > 0"))
    const tasks = await recordTasks(page)
    await ask(page, name)
    const answer = await ended(page, 'far/writer')
    t.ok((await answer.textContent())!.length > text.length / 10, `${name}: it is shown`)
    const { longest, work, text: figures } = await tasks()
    costs.set(name, { longest, work })
    t.comment(`${name}, ${text.length} characters: ${figures}`)
  }
  // 250,000 characters of plain text are more than most of the others have.
  const plain = costs.get('plain text')!
  for (const [name, { longest, work }] of costs) {
    t.ok(
      longest < 4 * plain.longest,
      `${name}: the longest task, ${Math.round(longest)} ms, plain ${Math.round(plain.longest)}`
    )
    t.ok(work < 4 * plain.work, `${name}: all of the work, ${Math.round(work)} ms, plain ${Math.round(plain.work)}`)
  }
})
