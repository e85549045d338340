import type { Page } from 'playwright-core'
import t from 'tap'
import { accessibilityFaults, testBrowser } from '../../support/browser.ts'
import { startCorral } from '../../support/corral.ts'
import { answersOf, ask, ended, enter, setOptions } from './support.ts'

const browser = testBrowser(t)
const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n' })
const newKey = async (name: string, role: string): Promise<string> =>
  (await corral.json('/api/keys', { name, role }, { local: true })).body.key
const boss = await newKey('boss', 'admin')
const guest = await newKey('guest', 'user')

const tabs = (page: Page, name: string) => page.getByRole('navigation', { name, exact: true }).getByRole('link')

t.test('a wrong key is said, the right one opens the page, a new tab asks again', { skip: browser.skip }, async t => {
  const { page, context } = await browser.open(t, corral.url)
  const field = page.getByLabel('Key', { exact: true })
  await field.fill('ck_wrong')
  await page.keyboard.press('Enter')
  await page.getByRole('alert').getByText('This key is not valid.').waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await enter(page, guest)
  await ask(page, 'What is the capital of France?')
  await answersOf(page).getByText('Paris').waitFor()
  await page.reload()
  await answersOf(page).getByText('Paris').waitFor()
  t.equal(await field.count(), 0, 'it is kept for the session')
  const other = await context.newPage()
  await other.goto(corral.url)
  await other.getByLabel('Key', { exact: true }).waitFor()
})

t.test('each role sees what it may do and nothing else', { skip: browser.skip }, async t => {
  const see = async (key: string) => {
    const { page, complaints } = await browser.open(t, `${corral.url}/#/models`)
    await enter(page, key)
    complaints.splice(0)
    await page.getByText('corral/tiny-chat').first().waitFor()
    await page.getByRole('button', { name: 'More: corral/tiny-chat' }).click()
    await page.getByRole('button', { name: 'Details' }).waitFor()
    const menu = await page.locator('.menu-list button').allInnerTexts()
    await page.keyboard.press('Escape')
    const models = await tabs(page, 'Models').allInnerTexts()
    const load = await page.getByRole('button', { name: /^(Load|Unload)$/ }).count()
    await page.goto(`${corral.url}/#/server`)
    await page.getByRole('heading', { name: 'This server' }).waitFor()
    const server = await tabs(page, 'Server').allInnerTexts()
    await page.goto(`${corral.url}/#/server/keys`)
    const keys = await page
      .locator('main')
      .getByText(/Page not found\.|boss/)
      .first()
      .innerText()
    await page.goto(`${corral.url}/#/models/get`)
    await page.getByRole('heading', { name: 'Models', level: 1 }).waitFor()
    const search = await page.getByRole('searchbox', { name: 'Search hubs' }).count()
    await page.keyboard.press('Control+k')
    await page.getByRole('option').first().waitFor()
    const get = await page.getByRole('option', { name: 'Get a model' }).count()
    await page.keyboard.press('Escape')
    await page.goto(`${corral.url}/#/playground`)
    const requests = page.getByRole('combobox', { name: 'Request' })
    await requests.waitFor()
    const operations = await requests.innerText()
    t.strictSame(complaints, [], 'nothing was asked that is refused')
    return { menu, models, load, server, keys: keys === 'boss', search, get, makesKeys: /\/api\/keys/.test(operations) }
  }
  t.strictSame(await see(guest), {
    menu: ['Details'],
    models: ['Installed'],
    load: 0,
    server: ['Overview', 'Usage'],
    keys: false,
    search: 0,
    get: 0,
    makesKeys: false
  })
  t.match(await see(boss), {
    menu: ['Details', 'Settings', 'Delete'],
    models: ['Installed', 'Discover'],
    load: 1,
    server: ['Overview', 'Logs', 'Usage', 'Keys', 'Audit', 'Plugins'],
    keys: true,
    search: 1,
    get: 1,
    makesKeys: true
  })
})

t.test('a key that is revoked while the page is open, in the middle of an answer', { skip: browser.skip }, async t => {
  const key = await newKey('short', 'user')
  const { page } = await browser.open(t, corral.url)
  await enter(page, key)
  await setOptions(page, { max_tokens: '3000', others: '{"ignore_eos": true}' })
  await ask(page, 'Tell me a story.')
  await answersOf(page).locator('p').first().waitFor()
  await corral.json('/api/keys/short', undefined, { method: 'DELETE', local: true })
  await page.getByRole('alert').getByText('This key is not valid.').waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  t.comment('whoever comes next sees nothing of it')
  await enter(page, guest)
  await page.getByText('This chat was not found in this browser.').waitFor()
  t.equal(await page.getByText('Tell me a story.').count(), 0)
  await page.getByRole('link', { name: 'New chat' }).click()
  await ask(page, 'What is the capital of France?')
  await ended(page)
})
