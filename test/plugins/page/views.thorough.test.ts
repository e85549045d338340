import type { Page } from 'playwright-core'
import t from 'tap'
import { accessibilityFaults } from '../../support/browser.ts'
import { CAPITAL_QUESTION, DEMO, startCorral, until } from '../../support/corral.ts'
import { readFixture } from '../../support/fixture.ts'
import { startHubEmulator } from '../../support/hub-emulator/hub-emulator.ts'
import { MIB, NO_SETTINGS, quantizedModels } from '../models/download/support.ts'
import {
  answered,
  answersOf,
  ask,
  choose,
  ended,
  messageField,
  pageTests,
  signIn,
  startWriter,
  widthOf
} from './support.ts'

const { styled } = readFixture<{ styled: string }>('page-answers.yaml')
const TOOL = { name: 'look_up', arguments: '{"city": "Paris"}' }
const remote = await startWriter(t, (write, { messages }) => {
  const { role, content } = messages.at(-1)
  if (role === 'tool') return write({ content: 'It is sunny.' })
  if (content === 'How is the weather?') {
    return write({ tool_calls: [{ index: 0, id: 'call-1', type: 'function', function: TOOL }] })
  }
  write({ reasoning_content: 'Let me think.' })
  write({ content: styled })
})
const hub = await startHubEmulator(t, {
  repositories: { 'acme/Bird-GGUF': { files: { 'Bird-Q8_0.gguf': quantizedModels().Q8_0 } } },
  bandwidth: { total: MIB / 100 }
})
const config = `${remote}defaults:\n  temperature: 0\n`
const corral = await startCorral(t, { env: { ...NO_SETTINGS, HF_ENDPOINT: hub.url }, config })
const { key } = (await corral.json('/api/keys', { name: 'boss', role: 'admin' }, { local: true })).body
await corral.json('/api/pull', { model: 'acme/Bird-GGUF', detach: true }, { local: true })
await corral.json('/api/load', { model: DEMO, stream: false }, { local: true })
const test = pageTests(t, corral.url)

/** The views, each with a text in it. */
const VIEWS: [address: string, text: string | RegExp][] = [
  ['chat', 'What is on your mind?'],
  ['chat/none', 'This chat was not found in this browser.'],
  ['models', DEMO],
  ['models/get', 'Search'],
  ['server', 'This server'],
  ['server/logs', 'Log of'],
  ['server/usage', 'Total'],
  ['server/keys', 'boss'],
  ['server/audit', 'Refresh'],
  ['server/plugins', 'security'],
  ['playground', 'Send'],
  ['constructor', 'Page not found.'],
  ['100%', 'Page not found.']
]

for (const width of [1280, 375]) {
  for (const colorScheme of ['light', 'dark'] as const) {
    const look = { colorScheme, viewport: { width, height: 750 }, reducedMotion: 'reduce' } as const
    test(`views and dialogs are accessible and fit: ${colorScheme}, ${width} pixels wide`, look, async (t, opened) => {
      const { page } = opened
      const show = (address: string) => page.goto(`${corral.url}/#/${address}`)
      const button = (name: string | RegExp) => page.getByRole('button', { name, exact: true })
      const dialog = page.getByRole('dialog')
      const check = async (what: string) => {
        t.strictSame(await accessibilityFaults(page), [], what)
        t.equal(await widthOf(page), width, `${what}: nothing is wider than the screen`)
      }
      const checkAndClose = async (what: string) => {
        await check(what)
        await page.keyboard.press('Escape')
      }
      await page.getByLabel('Key', { exact: true }).waitFor()
      await check('key dialog')
      await signIn(opened, key)
      for (const [address, text] of VIEWS) {
        await show(address)
        await page.locator('main').getByText(text).locator('visible=true').first().waitFor()
        await check(address)
      }

      await show('chat')
      await button(/^Model:/).click()
      await checkAndClose('list of models')
      await choose(page, 'far/writer')
      const answer = await answered(page, 'Show everything.', 'far/writer')
      await answer.locator('math').waitFor()
      await answer.locator('.hljs-string').waitFor()
      await answer.getByText('Thoughts').click()
      await check('answer')
      await answer.getByRole('button', { name: 'More' }).click()
      await checkAndClose('menu of an answer')
      await answer.getByRole('button', { name: 'Edit' }).click()
      await checkAndClose('edited message')
      await button('Chat settings').click()
      await page.getByText('More options').click()
      await checkAndClose('chat settings')

      await page.getByRole('textbox', { name: 'Edit' }).waitFor({ state: 'hidden' })
      await ask(page, 'How is the weather?')
      await page.getByText('Calls look_up').waitFor()
      await check('tool call')
      await page.getByLabel('Result of look_up').fill('sun')
      await button('Submit result').click()
      await page.getByRole('article').getByText('It is sunny.').waitFor()
      await check('tool result')
      await button('Compare with another model').click()
      await page.getByRole('checkbox', { name: 'Send to all' }).waitFor()
      await check('two chats side by side')
      await page.keyboard.press('Control+k')
      await page.getByRole('option').first().waitFor()
      await checkAndClose('command palette')

      await show('models/get')
      await page.getByRole('region', { name: 'Downloads' }).getByRole('progressbar').waitFor()
      await page.getByRole('searchbox', { name: 'Search hubs' }).fill('bird')
      await page.keyboard.press('Enter')
      await button('Choose').click()
      await dialog.getByRole('radio').first().waitFor()
      await checkAndClose('download and variants')

      await show('models')
      const openModel = async (entry: string) => {
        await button(`More: ${DEMO}`).click()
        await check('menu of a model')
        await page.locator('.menu-list').getByRole('button', { name: entry }).click()
      }
      await openModel('Details')
      await dialog.getByText('Metadata').click()
      await checkAndClose('details of a model')
      await openModel('Settings')
      await dialog.getByText(/^Saved to/).waitFor()
      await checkAndClose('settings of a model')
      await openModel('Delete')
      await check('confirmation')
      await button('Cancel').click()
      await show('server/keys')
      await button('Create key').click()
      await checkAndClose('new key')
    })
  }
}

test('a window of 320 pixels cuts nothing off', { viewport: { width: 320, height: 600 } }, async (t, opened) => {
  await signIn(opened, key)
  const { page } = opened
  for (const [address, text] of VIEWS) {
    await page.goto(`${corral.url}/#/${address}`)
    await page.locator('main').getByText(text).locator('visible=true').first().waitFor()
    t.equal(await widthOf(page), 320, address)
  }
  await page.goto(`${corral.url}/#/chat`)
  await answered(page, `What is ${'long'.repeat(60)}?`)
  t.equal(await widthOf(page), 320)
})

/** Names and words that are the same in every language. */
const NAMES =
  /\/\S+\/config\.yaml|corral\/tiny-chat|far\/writer|writer|corral|acme\/Bird-GGUF(:Q8_0)?|llama(\.cpp)?|token|API|English|boss|POST|JSON|curl|Python|JavaScript/g
/** Elements with the words of users and models, with code, and with names from the server. */
const FOREIGN =
  '.recommended .card h2, .recommended .card .quiet, pre, code, option, textarea, [lang]:not(html), .message, .chat-list'
/** The same, and the server's own sentences, which are English: advice on builds, descriptions of plugins, logs. */
const FOREIGN_SERVER = `${FOREIGN}, main .card .grow, main dd, main td, .build-line`
/** The same, and texts from the files of a model. */
const FOREIGN_MODEL = `${FOREIGN}, dd, th, td, li`

/** Lists the texts that are shown or read out, except those in elements of a selector. */
const textsIn = async (page: Page, left: string) =>
  (await page.evaluate(`(() => {
    const found = new Set()
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    while (walk.nextNode()) {
      const { parentElement, data } = walk.currentNode
      if (data.trim() && !parentElement.closest('${left}') && parentElement.checkVisibility()) found.add(data.trim())
    }
    for (const name of ['aria-label', 'title', 'placeholder']) {
      for (const element of document.querySelectorAll('[' + name + ']')) {
        if (!element.closest('${left}')) found.add(element.getAttribute(name))
      }
    }
    return [...found]
  })()`)) as string[]

test('the Chinese page shows no English', { locale: 'zh-CN' }, async (t, opened) => {
  await signIn(opened, key)
  const { page } = opened
  t.equal(await page.evaluate('document.documentElement.lang'), 'zh')
  let count = 0
  const check = async (what: string, left = FOREIGN) => {
    let before: string[] = []
    let same = 0
    await until('the view is complete', async () => {
      const now = await textsIn(page, left)
      same = now.join() === before.join() ? same + 1 : 0
      before = now
      return same > 5
    })
    count += before.length
    const english = before.filter(text => /[A-Za-z]{3}/.test(text.replaceAll(NAMES, '')))
    t.strictSame(english, [], what)
  }
  for (const [view] of VIEWS) {
    await page.goto(`${corral.url}/#/${view}`)
    await page.locator('main:not([aria-busy])').waitFor()
    await check(view, view.startsWith('server') ? FOREIGN_SERVER : FOREIGN)
  }
  await page.goto(`${corral.url}/#/chat`)
  await page.locator('main .view-head .icon-button').last().click()
  await page.getByRole('dialog').locator('[name=system]').waitFor()
  await check('chat settings')
  await page.keyboard.press('Escape')
  await page.locator('.page-menu button').click()
  await check('page settings')
  await page.keyboard.press('Escape')
  await page.goto(`${corral.url}/#/models`)
  for (const [index, dialog] of ['details', 'settings', 'delete'].entries()) {
    await page.getByRole('button', { name: DEMO }).click()
    await check('menu of a model')
    await page.locator('.menu-list button').nth(index).click()
    await page.getByRole('dialog').locator('dl, form, .is-danger').first().waitFor()
    await check(`${dialog} of a model`, dialog === 'details' ? FOREIGN_MODEL : FOREIGN)
    await page.keyboard.press('Escape')
    await page.getByRole('dialog').waitFor({ state: 'hidden' })
  }
  t.ok(count > 300, `${count} texts were read`)
})

test('lines of a message follow their own direction', { locale: 'zh-CN' }, async (t, opened) => {
  await signIn(opened, key)
  const { page } = opened
  await page.locator('#message').fill('ما هي عاصمة فرنسا؟\nWhat is it?')
  await page.keyboard.press('Enter')
  await page.locator('.question-text').waitFor()
  const distances = (text: string) =>
    page.evaluate(`(() => {
      const element = document.querySelector('.question-text')
      const at = element.firstChild.data.indexOf('${text}')
      const range = document.createRange()
      range.setStart(element.firstChild, at)
      range.setEnd(element.firstChild, at + ${text.length})
      const { left, right } = range.getBoundingClientRect()
      const whole = element.getBoundingClientRect()
      return { left: left - whole.left, right: whole.right - right }
    })()`) as Promise<{ left: number; right: number }>
  t.ok((await distances('ما هي')).right < 2, 'Arabic starts at the right')
  t.ok((await distances('What')).left < 2, 'English starts at the left')
  t.strictSame(await accessibilityFaults(page), [])
})

test('the keyboard is enough to chat and to unload a model', {}, async (t, opened) => {
  await signIn(opened, key)
  const { page } = opened
  const focused = () =>
    page.evaluate(`(document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent).trim()`)
  /** Presses Tab until an element has the focus. */
  const tabTo = async (name: RegExp, key = 'Tab') => {
    for (let count = 0; count < 60; count++) {
      if (name.test(String(await focused()))) return
      await page.keyboard.press(key)
    }
    t.fail(`Tab does not lead to ${name}`)
  }
  await messageField(page).waitFor()
  await tabTo(/^Message$/)
  await page.keyboard.type(CAPITAL_QUESTION.content)
  await page.keyboard.press('Enter')
  await ended(page)
  await tabTo(/^Edit$/, 'Shift+Tab')
  await page.keyboard.press('Enter')
  t.equal(await focused(), 'Edit', 'the field has the focus')
  await page.keyboard.press('Escape')
  await page.getByRole('textbox', { name: 'Edit' }).waitFor({ state: 'hidden' })
  await tabTo(/^Regenerate$/)
  await page.keyboard.press('Enter')
  await page.getByText('2 of 2').waitFor()
  await ended(page)
  await tabTo(/^Previous version$/)
  await page.keyboard.press('Enter')
  await page.getByText('1 of 2').waitFor()
  await tabTo(/^Model: /)
  await page.keyboard.press('Enter')
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('Escape')
  t.match(await focused(), /^Model: /, 'the focus returns to the button of the menu')
  await tabTo(/^Models/, 'Shift+Tab')
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { name: 'Models', level: 1 }).waitFor()
  await tabTo(/^Unload$/)
  await page.keyboard.press('Enter')
  await page.getByRole('button', { name: 'Load', exact: true }).first().waitFor()
  t.equal(await answersOf(page).count(), 0)
})
