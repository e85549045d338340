import { createServer, request } from 'node:http'
import type { Page, Request } from 'playwright-core'
import t, { type Test } from 'tap'
import { DEMO, startCorral, until } from '../../support/corral.ts'
import { listen } from '../../support/listen.ts'
import { answered, answersOf, ask, ended, pageTests, storedMessages } from './support.ts'

const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n' })
const test = pageTests(t, corral.url)

/** Starts a proxy that counts the open feeds, and all feeds that were opened. */
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
  })
  return { feeds, url: `http://127.0.0.1:${await listen(t, proxy)}` }
}

const shows = (page: Page, button: 'Load' | 'Unload') =>
  page.getByRole('button', { name: button, exact: true }).waitFor()

test('tabs share one feed, and another tab takes over from its reader', {}, async (t, { page, context }) => {
  const { feeds, url } = await startCounter(t)
  const address = `${url}/#/models`
  /** Tabs that have the feed open. */
  const readers = new Map<Request, Page>()
  context.on('request', request => {
    if (request.url().endsWith('/api/events')) readers.set(request, request.frame().page())
  })
  context.on('requestfailed', request => readers.delete(request))
  context.on('requestfinished', request => readers.delete(request))
  const oneReader = async () => {
    const open = () => [...readers.values()].filter(tab => !tab.isClosed())
    await until('one feed is open', () => feeds.open === 1 && open().length === 1)
    return open()[0]!
  }
  const tabs = [page]
  while (tabs.length < 5) tabs.push(await context.newPage())
  for (const tab of tabs) await tab.goto(address)
  for (const tab of tabs) await shows(tab, 'Load')
  const first = await oneReader()
  const { opened } = feeds
  await corral.json('/api/load', { model: DEMO, stream: false })
  for (const tab of tabs) await shows(tab, 'Unload')
  t.strictSame(feeds, { open: 1, opened })

  t.comment('the reader is closed')
  await first.close()
  await corral.json('/api/stop', { model: DEMO })
  const rest = tabs.filter(tab => tab !== first)
  for (const tab of rest) await shows(tab, 'Load')
  const second = await oneReader()
  for (const tab of rest) t.notOk(await tab.getByText('The server cannot be reached.').isVisible())

  t.comment('the next reader is frozen, as browsers do with tabs in the background')
  const developer = await context.newCDPSession(second)
  await developer.send('Page.enable')
  await developer.send('Page.setWebLifecycleState', { state: 'frozen' })
  await corral.json('/api/load', { model: DEMO, stream: false })
  for (const tab of rest.filter(tab => tab !== second)) await shows(tab, 'Unload')
  await developer.send('Page.setWebLifecycleState', { state: 'active' })
  await shows(second, 'Unload')
  await oneReader()
})

test('a hidden tab with slow timers keeps the feed', { mayFail: true }, async (t, { page, context }) => {
  const { feeds, url } = await startCounter(t)
  const other = await context.newPage()
  for (const tab of [page, other]) {
    await tab.clock.install()
    await tab.goto(`${url}/#/models`)
    await tab.getByRole('button', { name: /^(Load|Unload)$/ }).waitFor()
  }
  await page.clock.pauseAt(Date.now() + 3_600_000)
  for (let second = 0; second < 15; second++) {
    await other.clock.runFor(1000)
    // Messages between the tabs pass through the browser.
    await page.evaluate('0')
    await other.evaluate('0')
  }
  t.strictSame(feeds, { open: 1, opened: 1 })
})

test(
  'two tabs write to one chat, and both show everything',
  { mayFail: true },
  async (t, { page, context, complaints }) => {
    await answered(page, 'What is the capital of France?')
    const other = await context.newPage()
    await other.goto(page.url())
    await answersOf(other).getByText('Paris').waitFor()
    await ask(other, 'What is 7 + 8?')
    await answersOf(page).getByText('7 + 8 =').waitFor()
    await ended(page)
    await ask(page, 'What is 2 + 3?')
    await answersOf(other).getByText('2 + 3 =').waitFor()
    await ended(other)

    t.comment('simultaneous questions are both answered, as branches or one after the other')
    await Promise.all([ask(page, 'What is 3 + 4?'), ask(other, 'What is 5 + 4?')])
    await until('all questions are answered', async () => {
      const all = await storedMessages(page)
      return all.length === 10 && all.every(({ content, state }) => content !== '' && state === undefined)
    })
    for (const tab of [page, other]) {
      await ended(tab)
      await tab.reload()
      // At least one of the two is in the current branch.
      await answersOf(tab).nth(3).waitFor()
    }
    t.strictSame(complaints, [])
  }
)
