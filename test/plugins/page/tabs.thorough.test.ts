import { once } from 'node:events'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Page, Request } from 'playwright-core'
import t, { type Test } from 'tap'
import { testBrowser } from '../../support/browser.ts'
import { DEMO, startCorral, until } from '../../support/corral.ts'
import { answersOf, ask, ended } from './support.ts'

const browser = testBrowser(t)
const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n' })

/** Passes requests on to the server and counts the feeds that are open, and those that ever were. */
async function startCounter(t: Pick<Test, 'teardown'>) {
  const feeds = { open: 0, opened: 0 }
  const proxy = createServer((incoming, outgoing) => {
    const { method, headers, url } = incoming
    const passed = request(corral.url + url, { method, headers }, response => {
      outgoing.writeHead(response.statusCode!, response.headers)
      response.pipe(outgoing)
    })
    passed.on('error', () => outgoing.destroy())
    incoming.pipe(passed)
    outgoing.on('close', () => passed.destroy())
    if (url !== '/api/events') return
    feeds.open += 1
    feeds.opened += 1
    outgoing.on('close', () => {
      feeds.open -= 1
    })
  }).listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  t.teardown(() => {
    proxy.closeAllConnections()
    proxy.close()
  })
  return { feeds, url: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}` }
}

const shows = (page: Page, button: 'Load' | 'Unload') =>
  page.getByRole('button', { name: button, exact: true }).waitFor()

t.test(
  'all tabs of a browser share one feed; when its reader goes, another one continues',
  { skip: browser.skip },
  async t => {
    const { feeds, url } = await startCounter(t)
    const address = `${url}/#/models`
    const { page, context, complaints } = await browser.open(t, 'about:blank')
    /** Tabs that have the feed open. */
    const readers = new Map<Request, Page>()
    context.on('request', request => {
      if (request.url().endsWith('/api/events')) readers.set(request, request.frame().page())
    })
    context.on('requestfailed', request => readers.delete(request))
    context.on('requestfinished', request => readers.delete(request))
    const oneReader = async () => {
      const open = () => [...readers.values()].filter(tab => !tab.isClosed())
      await until('one feed', () => feeds.open === 1 && open().length === 1)
      return open()[0]!
    }
    await page.goto(address)
    const tabs = [page]
    while (tabs.length < 5) {
      const tab = await context.newPage()
      tabs.push(tab)
      await tab.goto(address)
    }
    for (const tab of tabs) await shows(tab, 'Load')
    const first = await oneReader()
    const early = feeds.opened
    await corral.json('/api/load', { model: DEMO, stream: false })
    for (const tab of tabs) await shows(tab, 'Unload')
    t.strictSame(feeds, { open: 1, opened: early })

    t.comment('the tab that reads it is closed')
    await first.close()
    await corral.json('/api/stop', { model: DEMO })
    const rest = tabs.filter(tab => tab !== first)
    for (const tab of rest) await shows(tab, 'Load')
    const second = await oneReader()
    for (const tab of rest) t.notOk(await tab.getByText('The server cannot be reached.').isVisible())

    t.comment('the next one is frozen, as browsers do with tabs that were not seen for long')
    const developer = await context.newCDPSession(second)
    await developer.send('Page.enable')
    await developer.send('Page.setWebLifecycleState', { state: 'frozen' })
    await corral.json('/api/load', { model: DEMO, stream: false })
    const awake = rest.filter(tab => tab !== second)
    for (const tab of awake) await shows(tab, 'Unload')
    await developer.send('Page.setWebLifecycleState', { state: 'active' })
    await shows(second, 'Unload')
    await oneReader()
    t.strictSame(complaints, [])
  }
)

t.test('a tab whose clock is slowed, since it is hidden, keeps the feed', { skip: browser.skip }, async t => {
  const { feeds, url } = await startCounter(t)
  const { page, context } = await browser.open(t, 'about:blank')
  await page.clock.install()
  await page.goto(`${url}/#/models`)
  await page.getByRole('button', { name: /^(Load|Unload)$/ }).waitFor()
  const other = await context.newPage()
  await other.clock.install()
  await other.goto(`${url}/#/models`)
  await other.getByRole('button', { name: /^(Load|Unload)$/ }).waitFor()
  await page.clock.pauseAt(Date.now() + 3_600_000)
  for (let second = 0; second < 15; second++) {
    await other.clock.runFor(1000)
    // What one tab says reaches the other one by the browser.
    await page.evaluate('0')
    await other.evaluate('0')
  }
  t.strictSame(feeds, { open: 1, opened: 1 })
})

t.test('two tabs write in one chat, and both show all of it', { skip: browser.skip }, async t => {
  const { page, context, complaints } = await browser.open(t, corral.url)
  await ask(page, 'What is the capital of France?')
  await ended(page)
  const other = await context.newPage()
  await other.goto(page.url())
  await answersOf(other).getByText('Paris').waitFor()
  await ask(other, 'What is 7 + 8?')
  await answersOf(page).getByText('7 + 8 =').waitFor()
  await ended(page)
  await ask(page, 'What is 2 + 3?')
  await answersOf(other).getByText('2 + 3 =').waitFor()
  await ended(other)

  t.comment('both at the same moment: both are answered, as branches or one after the other')
  await Promise.all([ask(page, 'What is 3 + 4?'), ask(other, 'What is 5 + 4?')])
  const stored = async () =>
    (await page.evaluate(`new Promise(resolve => {
      const opening = indexedDB.open('corral')
      opening.onsuccess = () => {
        const all = opening.result.transaction('messages').objectStore('messages').getAll()
        all.onsuccess = () => resolve(all.result)
      }
    })`)) as { role: string; content: string; state?: string }[]
  await until('all is answered', async () => {
    const all = await stored()
    return all.length === 10 && all.every(({ content, state }) => content !== '' && state === undefined)
  })
  for (const tab of [page, other]) {
    await ended(tab)
    await tab.reload()
    t.ok(
      await answersOf(tab)
        .nth(3)
        .waitFor()
        .then(() => true),
      'the chat continues with at least one of them'
    )
  }
  t.strictSame(complaints, [])
})
