import { createServer, type IncomingMessage, type ServerResponse, request as send } from 'node:http'
import type { Page } from 'playwright-core'
import t, { type Test } from 'tap'
import { startCorral, until } from '../../support/corral.ts'
import { listen } from '../../support/listen.ts'
import { answered, answersOf, pageTests } from './support.ts'

/**
 * Starts a proxy before a server: the origin of the page. `target` is the server's address, or empty while it is away.
 * `rename` gives the page's main file another name, as another version has, and `isPageOld` only in its worker.
 */
async function startOrigin(t: Test, target: string) {
  const state = { target, rename: '', isPageOld: false }
  const pass = async (request: IncomingMessage, response: ServerResponse) => {
    const { target, rename, isPageOld } = state
    const path = request.url!
    if (!target || (rename && path.includes('/main-') && !path.includes(rename))) {
      if (target) response.writeHead(404).end()
      else response.socket!.destroy()
      return
    }
    const real = rename ? path.replace(rename, mainName) : path
    const { host: _, ...headers } = request.headers
    const isText = rename && (path.includes('service-worker') || (path === '/' && !isPageOld))
    if (isText) delete headers['accept-encoding']
    const onward = send(target + real, { method: request.method, headers }, async reply => {
      if (isText) delete reply.headers['content-length']
      response.writeHead(reply.statusCode!, reply.headers)
      if (!isText) return void reply.pipe(response)
      let text = ''
      for await (const part of reply.setEncoding('utf8')) text += part
      response.end(text.replaceAll(mainName, rename).replaceAll(/"[0-9A-F]{8}"/g, '"22222222"'))
    })
    onward.on('error', () => response.destroy())
    response.on('close', () => onward.destroy())
    request.pipe(onward)
  }
  const server = createServer((request, response) => void pass(request, response))
  const leave = () => {
    state.target = ''
    server.closeAllConnections()
  }
  return { url: `http://127.0.0.1:${await listen(t, server)}`, state, leave }
}

const corral = await startCorral(t)
const test = pageTests(t, corral.url)
const html = await (await fetch(corral.url, { headers: { accept: 'text/html' } })).text()
const mainName = /main-\w+\.js/.exec(html)![0]

/** Waits until the browser has stored the page. */
const stored = (page: Page) =>
  until('the page is stored', () =>
    page.evaluate("navigator.serviceWorker.getRegistration().then(found => found?.active?.state === 'activated')")
  )
/** All addresses that the browser has stored, by cache. */
const caches = (page: Page) =>
  page.evaluate(`caches.keys().then(names => Promise.all(names.map(async name =>
    [name, (await (await caches.open(name)).keys()).map(({ url }) => new URL(url).pathname)])))`) as Promise<
    [string, string[]][]
  >

const AWAY = 'The server cannot be reached.'
test('the page opens without the server and shows stored chats', { mayFail: true }, async (t, { page, context }) => {
  const { url, state, leave } = await startOrigin(t, corral.url)
  await page.goto(url)
  await answered(page, 'What is the capital of France?')
  await stored(page)
  const [[, addresses] = ['', []], ...others] = await caches(page)
  t.same(others, [])
  t.ok(addresses.length > 10)
  t.same(
    addresses.filter(path => !/^\/(page\/[\w.-]+-[A-Z0-9]{8}\.(js|css))?$/.test(path)),
    [],
    'only the page and its files'
  )

  leave()
  const fromWorker = new Set<string>()
  context.on('response', response => {
    if (response.fromServiceWorker()) fromWorker.add(new URL(response.url()).pathname)
  })
  await page.reload()
  await page.getByText(AWAY).waitFor()
  await answersOf(page).getByText('The capital of France is').waitFor()
  await page.getByRole('link', { name: 'Models', exact: true }).click()
  await page.getByRole('heading', { name: 'Models' }).waitFor()
  t.ok(fromWorker.has('/'))

  state.target = corral.url
  await page.getByText(AWAY).waitFor({ state: 'hidden' })
  await page.goto(`${url}/#/chat`)
  await answered(page, 'What is the capital of France?')
  t.same(
    [...fromWorker].filter(path => !/^\/(page\/.*)?$/.test(path)),
    [],
    'requests of the API pass by'
  )
  t.equal((await caches(page)).flatMap(([, paths]) => paths).length, addresses.length, 'nothing else is stored')
})

test(
  'a new version replaces the stored one without mixing their files',
  { mayFail: true },
  async (t, { page, context }) => {
    const { url, state, leave } = await startOrigin(t, corral.url)
    await page.goto(url)
    await stored(page)
    await page.reload()
    await page.getByRole('heading', { name: 'What is on your mind?' }).waitFor()
    state.rename = 'main-22222222.js'
    // The open tab has the old version, whose files the server no longer has.
    await page.evaluate('navigator.serviceWorker.getRegistration().then(registration => registration.update())')
    await until('both versions are complete', async () => {
      const whole = (await caches(page)).filter(([, paths]) => paths.includes('/'))
      return whole.length === 2
    })
    t.equal(await page.evaluate(`fetch('./page/${mainName}').then(({ status }) => status)`), 200)
    const next = await context.newPage()
    await next.goto(url)
    const mainOf = (page: Page) => page.locator('script[type=module]').getAttribute('src')
    t.equal(await mainOf(next), './page/main-22222222.js')
    leave()
    await next.reload()
    await next.getByText(AWAY).waitFor()
    t.equal(await mainOf(next), './page/main-22222222.js', 'the newest stored page')
    state.target = corral.url
    await page.close()
    await until('only the new version', async () => {
      await next.goto('about:blank')
      await next.goto(url)
      const all = await caches(next)
      return all.length === 1 && all[0]![1].includes('/page/main-22222222.js')
    })
  }
)

test('a version is stored only if its page and files belong together', { mayFail: true }, async (t, { page }) => {
  const { url, state } = await startOrigin(t, corral.url)
  await page.goto(url)
  await stored(page)
  const before = await caches(page)
  // The server is updated between the requests for the script and the page.
  Object.assign(state, { rename: 'main-22222222.js', isPageOld: true })
  const update = 'navigator.serviceWorker.getRegistration().then(registration => registration.update())'
  await page.evaluate(`${update}.then(({ installing }) => new Promise(resolve => {
    installing.onstatechange = () => installing.state === 'redundant' && resolve()
  }))`)
  t.same(await caches(page), before)
})

test('a server without the stored page removes it from browsers', { mayFail: true }, async (t, { page }) => {
  const { url, state } = await startOrigin(t, corral.url)
  await page.goto(url)
  await stored(page)
  const off = await startCorral(t, { config: 'web:\n  offline: false\n' })
  state.target = off.url
  await until('nothing is stored', async () => {
    await page.reload()
    return (await caches(page)).length === 0
  })
  await page.reload()
  await page.getByRole('heading', { name: 'What is on your mind?' }).waitFor()
  t.equal(await page.evaluate('navigator.serviceWorker.getRegistrations().then(all => all.length)'), 0)
})

test('below a path, the page stores only itself', { mayFail: true }, async (t, { page }) => {
  const moved = await startCorral(t, { config: 'web:\n  path: /team/chat\n' })
  const { url, leave } = await startOrigin(t, moved.url)
  await page.goto(`${url}/team/chat`)
  await stored(page)
  leave()
  await page.reload()
  await page.getByText(AWAY).waitFor()
  const scopes = await page.evaluate(
    'navigator.serviceWorker.getRegistrations().then(all => all.map(({ scope }) => scope))'
  )
  t.same(scopes, [`${url}/team/chat`])
  await t.rejects(page.goto(`${url}/docs`), 'other pages of the server are not stored')
})
