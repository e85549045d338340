import type { BrowserContext, Page, Request } from 'playwright-core'
import t from 'tap'
import { DEMO, startCorral, until } from '../../support/corral.ts'
import { answered, answersOf, ask, ended, pageTests, storedMessages } from './support.ts'

const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n' })
const test = pageTests(t, corral.url)

/** Follows the feeds that the tabs of a browser open. */
function followFeeds(context: BrowserContext) {
  const feeds = { opened: 0, open: new Map<Request, Page>() }
  context.on('request', request => {
    if (!request.url().endsWith('/api/events')) return
    feeds.opened += 1
    feeds.open.set(request, request.frame().page())
  })
  context.on('requestfailed', request => feeds.open.delete(request))
  context.on('requestfinished', request => feeds.open.delete(request))
  return feeds
}

const shows = (page: Page, button: 'Load' | 'Unload') =>
  page.getByRole('button', { name: button, exact: true }).waitFor()

test('tabs share one feed, and another tab takes over from its reader', {}, async (t, { page, context }) => {
  await page.goto('about:blank')
  const feeds = followFeeds(context)
  const oneReader = async () => {
    const open = () => [...feeds.open.values()].filter(tab => !tab.isClosed())
    await until('one feed is open', () => open().length === 1)
    return open()[0]!
  }
  const tabs = [page]
  while (tabs.length < 5) tabs.push(await context.newPage())
  for (const tab of tabs) await tab.goto(`${corral.url}/#/models`)
  for (const tab of tabs) await shows(tab, 'Load')
  const first = await oneReader()
  const { opened } = feeds
  await corral.json('/api/load', { model: DEMO, stream: false })
  for (const tab of tabs) await shows(tab, 'Unload')
  await oneReader()
  t.equal(feeds.opened, opened)

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
  await page.goto('about:blank')
  const feeds = followFeeds(context)
  const other = await context.newPage()
  for (const tab of [page, other]) {
    await tab.clock.install()
    await tab.goto(`${corral.url}/#/models`)
    await tab.getByRole('button', { name: /^(Load|Unload)$/ }).waitFor()
  }
  await page.clock.pauseAt(Date.now() + 3_600_000)
  for (let second = 0; second < 15; second++) {
    await other.clock.runFor(1000)
    // Messages between the tabs pass through the browser.
    await page.evaluate('0')
    await other.evaluate('0')
  }
  t.strictSame([feeds.open.size, feeds.opened], [1, 1])
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
