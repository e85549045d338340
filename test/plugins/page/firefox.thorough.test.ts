import t from 'tap'
import { CAPITAL_QUESTION, startCorral, until } from '../../support/corral.ts'
import { startFirefox, withoutFirefox } from '../../support/firefox.ts'
import { HOSTILE, startOutside } from './hostile-code.ts'
import { startWriter } from './support.ts'

const OPEN_IN_FIREFOX = ['WebRTC', 'connecting early']
const ENTER = '\uE007'

t.test('the page works in Firefox', { skip: withoutFirefox }, async t => {
  const outside = await startOutside(t)
  const config = await startWriter(t, (write, { messages }) => {
    const { content } = messages.at(-1)
    write({ content: `\`\`\`html\n${outside.withPorts(HOSTILE[content] ?? content)}\n\`\`\`\n` })
  })
  const corral = await startCorral(t, { config })
  const firefox = await startFirefox(t)
  const shown = (text: string) =>
    until(text, () => firefox.evaluate(`document.body.innerText.includes(${JSON.stringify(text)})`))
  const isThere = (selector: string) =>
    until(selector, () => firefox.evaluate(`!!document.querySelector('${selector}')`))
  const ask = async (question: string) => {
    await firefox.open(`${corral.url}/#/chat`)
    await isThere('.greeting')
    await firefox.evaluate('document.getElementById("message").focus()')
    await firefox.type(question + ENTER)
  }

  await firefox.open(corral.url)
  await firefox.evaluate("localStorage.setItem('corral-model', 'corral/tiny-chat')")
  await firefox.reload()
  await ask(CAPITAL_QUESTION.content)
  await shown('The capital of France is')
  await isThere('[aria-busy=false] .figures')
  await firefox.evaluate('navigator.serviceWorker.ready.then(() => true)')
  await firefox.reload()
  await shown('The capital of France is')
  t.same(firefox.complaints, [], 'no errors, also with the stored page')

  t.comment('previews')
  await firefox.evaluate("localStorage.setItem('corral-model', 'far/writer')")
  await firefox.reload()
  const preview = async (question: string) => {
    await ask(question)
    await isThere('[aria-busy=false] figcaption [title=Preview]')
    await firefox.evaluate('document.querySelector("figcaption [title=Preview]").click()')
    await isThere('.preview iframe')
  }
  const reads = ['localStorage', 'document.cookie', 'parent.document', 'indexedDB.open("corral")', 'caches.keys()']
  await preview('<p>Shown</p>')
  await until('the code runs', () => firefox.evaluateInFrame('document.body?.innerText === "Shown"'))
  for (const code of reads) {
    const found = await firefox.evaluateInFrame(`(async () => ${code})().then(String, ({ name }) => name)`)
    t.equal(found, 'SecurityError', code)
  }
  // docs/page.md says that Firefox does not limit these connections.
  for (const name of Object.keys(HOSTILE).filter(name => !OPEN_IN_FIREFOX.includes(name))) {
    await preview(name)
    const address = await firefox.evaluate('location.href')
    await new Promise(resolve => setTimeout(resolve, 400))
    t.same(outside.received.splice(0), [], name)
    t.equal(await firefox.evaluate('location.href'), address, `${name}: the page stays`)
  }
})
