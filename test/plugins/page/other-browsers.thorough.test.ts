import t, { type Test } from 'tap'
import { CAPITAL_QUESTION, startCorral, until } from '../../support/corral.ts'
import { startFirefox, withoutFirefox } from '../../support/firefox.ts'
import { startWebKit, withoutWebKit } from '../../support/webkit.ts'
import { HOSTILE, startOutside } from './hostile-code.ts'
import { becomesReady, startWriter } from './support.ts'

const ENTER = '\uE007'

/** What docs/page.md says that previews can do in both. */
const OPEN = ['WebRTC', 'connecting early', 'history of the page']
const BROWSERS = [
  { name: 'Firefox', skip: withoutFirefox, start: startFirefox, open: OPEN },
  {
    name: 'WebKit',
    skip: withoutWebKit,
    start: startWebKit,
    // It connects for a link that is clicked, although it does not open it.
    open: [...OPEN, 'windows']
  }
]

for (const { name, skip, start, open } of BROWSERS) {
  t.test(`the page works in ${name}`, { skip }, t => tryPage(t, start, open))
}

async function tryPage(
  t: Test,
  start: (t: Test) => ReturnType<typeof startFirefox | typeof startWebKit>,
  isOpen: string[]
) {
  const outside = await startOutside(t)
  const config = await startWriter(t, (write, { messages }) => {
    const { content } = messages.at(-1)
    write({ content: `\`\`\`html\n${outside.withPorts(HOSTILE[content] ?? content)}\n\`\`\`\n` })
  })
  const corral = await startCorral(t, { config })
  const browser = await start(t)
  const shown = (text: string) =>
    until(text, () => browser.evaluate(`document.body.innerText.includes(${JSON.stringify(text)})`))
  const isThere = (selector: string) =>
    until(selector, () => browser.evaluate(`!!document.querySelector('${selector}')`))
  const reload = async () => {
    // WebKit sometimes loses a file of a page that is reloaded while it starts, and then waits for it.
    await becomesReady(browser)
    await browser.reload()
  }
  const ask = async (question: string) => {
    await browser.open(`${corral.url}/#/chat`)
    await isThere('.greeting')
    await browser.evaluate('document.getElementById("message").focus()')
    await browser.type(question + ENTER)
  }

  await browser.open(corral.url)
  await browser.evaluate("localStorage.setItem('corral-model', 'corral/tiny-chat')")
  await reload()
  await ask(CAPITAL_QUESTION.content)
  await shown('The capital of France is')
  await isThere('[aria-busy=false] .figures')
  await browser.evaluate('navigator.serviceWorker.ready.then(() => true)')
  await reload()
  await shown('The capital of France is')
  t.same(browser.complaints, [], 'no errors, also with the stored page')

  t.comment('previews')
  await browser.evaluate("localStorage.setItem('corral-model', 'far/writer')")
  await reload()
  const preview = async (question: string) => {
    await ask(question)
    await isThere('[aria-busy=false] figcaption [title=Preview]')
    await browser.evaluate('document.querySelector("figcaption [title=Preview]").click()')
    await isThere('.preview iframe')
  }
  const reads = ['localStorage', 'document.cookie', 'parent.document', 'indexedDB.open("corral")', 'caches.keys()']
  await preview('<p>Shown</p>')
  // Code evaluated in a frame that still navigates may never return.
  await new Promise(resolve => setTimeout(resolve, 3000))
  await until('the code runs', () => browser.evaluateInFrame('document.body?.innerText === "Shown"'))
  for (const code of reads) {
    const found = await browser.evaluateInFrame(`(async () => ${code})().then(String, ({ name }) => name)`)
    t.equal(found, 'SecurityError', code)
  }
  for (const name of Object.keys(HOSTILE).filter(name => !isOpen.includes(name))) {
    await preview(name)
    const address = await browser.evaluate('location.href')
    await new Promise(resolve => setTimeout(resolve, 400))
    t.same(outside.received.splice(0), [], name)
    t.equal(await browser.evaluate('location.href'), address, `${name}: the page stays`)
  }
}
