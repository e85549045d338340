import t from 'tap'
import { testBrowser } from '../support/browser.ts'
import { startCorral } from '../support/corral.ts'
import { answersOf, ask, ended, startWriter, widthOf } from './support.ts'

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
const config = await startWriter(t, (write, { messages }) => {
  const text = HOSTILE[messages.at(-1).content]!
  for (let at = 0; at < text.length; at += 2000) write({ content: text.slice(at, at + 2000) })
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
    // The page goes on.
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
