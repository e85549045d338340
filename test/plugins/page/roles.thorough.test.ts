import type { Page } from 'playwright-core'
import t from 'tap'
import { accessibilityFaults } from '../../support/browser.ts'
import { CAPITAL_QUESTION, DEMO, startCorral } from '../../support/corral.ts'
import { answered, answersOf, ask, enter, pageTests, setOptions, signIn } from './support.ts'

const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n' })
const test = pageTests(t, corral.url)
const newKey = async (name: string, role: string): Promise<string> =>
  (await corral.json('/api/keys', { name, role }, { local: true })).body.key
const boss = await newKey('boss', 'admin')
const guest = await newKey('guest', 'user')
const QUESTION = CAPITAL_QUESTION.content
const keyField = (page: Page) => page.getByLabel('Key', { exact: true })

test('a key is asked for in each tab and can be corrected', { mayFail: true }, async (t, { page, context }) => {
  await keyField(page).fill('ck_wrong')
  await page.keyboard.press('Enter')
  await page.getByRole('alert').getByText('This key is not valid.').waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await enter(page, guest)
  await ask(page, QUESTION)
  await answersOf(page).getByText('Paris').waitFor()
  await page.reload()
  await answersOf(page).getByText('Paris').waitFor()
  t.equal(await keyField(page).count(), 0, 'the tab keeps its key')
  const other = await context.newPage()
  await other.goto(corral.url)
  await keyField(other).waitFor()
})

test('a browser stays signed in until it is signed out', { mayFail: true }, async (t, { page, context }) => {
  await keyField(page).fill(guest)
  await page.getByLabel('Stay signed in').check()
  t.strictSame(await accessibilityFaults(page), [])
  await page.getByRole('button', { name: 'Continue' }).click()
  await ask(page, QUESTION)
  await answersOf(page).getByText('Paris').waitFor()
  const stored = await page.evaluate(`[document.cookie, sessionStorage.getItem('corral-key')]`)
  t.strictSame(stored, ['', null], 'scripts see no cookie')
  const [cookie] = await context.cookies()
  t.match(cookie, { httpOnly: true, sameSite: 'Strict', name: /^corral_/ })
  await page.close()
  const other = await context.newPage()
  await other.goto(`${corral.url}/#/server/sessions`)
  await other.getByText('this browser').waitFor()
  t.strictSame(await accessibilityFaults(other), [])
  await other.getByText(QUESTION).first().waitFor()
  await other.getByRole('main').getByRole('button', { name: 'Sign out' }).click()
  await keyField(other).waitFor()
  t.equal(await other.evaluate(`localStorage.getItem('corral-key')`), null)
})

const COMMON = { models: ['Installed'], server: ['Overview', 'Usage', 'Sessions'] }
for (const [role, key, expected] of [
  ['user', guest, { ...COMMON, menu: ['Details'], load: 0, keys: false, search: 0, get: 0, makesKeys: false }],
  [
    'admin',
    boss,
    {
      menu: ['Details', 'Settings', 'Delete'],
      models: ['Installed', 'Discover'],
      load: 1,
      server: ['Overview', 'Logs', 'Usage', 'Machines', 'Keys', 'Sessions', 'Audit', 'Plugins'],
      keys: true,
      search: 1,
      get: 1,
      makesKeys: true
    }
  ]
] as const) {
  test(`a caller with the role ${role} sees only what it may use`, { path: '/#/models' }, async (t, opened) => {
    const { page } = opened
    await signIn(opened, key)
    const show = (view: string) => page.goto(`${corral.url}/#/${view}`)
    const tabs = (name: string) => page.getByRole('navigation', { name, exact: true }).getByRole('link').allInnerTexts()
    await page.getByText(DEMO).first().waitFor()
    await page.getByRole('button', { name: `More: ${DEMO}` }).click()
    await page.getByRole('button', { name: 'Details' }).waitFor()
    const menu = await page.locator('.menu-list button').allInnerTexts()
    await page.keyboard.press('Escape')
    const models = await tabs('Models')
    const load = await page.getByRole('button', { name: /^(Load|Unload)$/ }).count()
    await show('server')
    await page.getByRole('heading', { name: 'This server' }).waitFor()
    const server = await tabs('Server')
    await show('server/keys')
    const inKeys = page.locator('main').getByText(/the role "admin"|an admin's key|boss/)
    const keys = (await inKeys.first().innerText()) === 'boss'
    await show('models/get')
    await page.getByRole('heading', { name: 'Models', level: 1 }).waitFor()
    const search = await page.getByRole('searchbox', { name: 'Search hubs' }).count()
    await page.keyboard.press('Control+k')
    await page.getByRole('option').first().waitFor()
    const get = await page.getByRole('option', { name: 'Get a model' }).count()
    await page.keyboard.press('Escape')
    await show('playground')
    const requests = page.getByRole('combobox', { name: 'Request' })
    await requests.waitFor()
    const makesKeys = /\/api\/keys/.test(await requests.innerText())
    t.strictSame({ menu, models, load, server, keys, search, get, makesKeys }, expected)
  })
}

test('a key that is revoked during an answer hides its chats', { mayFail: true }, async (t, { page }) => {
  await enter(page, await newKey('short', 'user'))
  await setOptions(page, { max_tokens: '3000', others: '{"ignore_eos": true}' })
  await ask(page, 'Tell me a story.')
  await answersOf(page).locator('p').first().waitFor()
  await corral.json('/api/keys/short', undefined, { method: 'DELETE', local: true })
  await page.getByRole('alert').getByText('This key is not valid.').waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  t.comment('the next user')
  await enter(page, guest)
  await page.getByText('This chat was not found in this browser.').waitFor()
  t.equal(await page.getByText('Tell me a story.').count(), 0)
  await page.getByRole('link', { name: 'New chat' }).click()
  await answered(page, QUESTION)
})
