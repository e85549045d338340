import type { Page } from 'playwright-core'
import t from 'tap'
import { testBrowser } from '../../support/browser.ts'
import { DEMO, startCorral, until } from '../../support/corral.ts'
import { startHubEmulator } from '../../support/hub-emulator/hub-emulator.ts'
import { MIB, NO_SETTINGS, quantizedModels } from '../models/download/support.ts'

const browser = testBrowser(t)
const hub = await startHubEmulator(t, {
  repositories: { 'acme/Bird-GGUF': { files: { 'Bird-Q8_0.gguf': quantizedModels().Q8_0 } } },
  bandwidth: { total: MIB / 100 }
})
const corral = await startCorral(t, { env: { ...NO_SETTINGS, HF_ENDPOINT: hub.url } })
const { key } = (await corral.json('/api/keys', { name: 'boss', role: 'admin' }, { local: true })).body
await corral.json('/api/pull', { model: 'acme/Bird-GGUF', detach: true }, { local: true })
await corral.json('/api/load', { model: DEMO, stream: false }, { local: true })

/** Names and words that are the same in every language. */
const NAMES =
  /\/\S+\/config\.yaml|corral\/tiny-chat|corral|acme\/Bird-GGUF(:Q8_0)?|llama(\.cpp)?|token|API|English|boss|POST|JSON|curl|Python|JavaScript/g
/** Where people and models speak, code, and names that the server chooses. */
const OTHERS = 'pre, code, option, textarea, [lang]:not(html), .message, .chat-list'
/** Where the server's own sentences stand, which are English: advice on builds, what plugins say of themselves, logs. */
const OF_SERVER = `${OTHERS}, main .card .grow, main dd, main td, .build-line`

/** Where a model's files say something. */
const OF_MODEL = `${OTHERS}, dd, th, td, li`

/** Texts that are shown or read out, but for what is in elements of a selector. */
const textsOf = async (page: Page, left: string) =>
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

const VIEWS = [
  'chat',
  'models',
  'models/get',
  'server',
  'server/logs',
  'server/usage',
  'server/keys',
  'server/audit',
  'server/plugins',
  'playground',
  'none'
]

t.test('in Chinese no English is left', { skip: browser.skip }, async t => {
  const { page, complaints } = await browser.open(t, corral.url, { locale: 'zh-CN' })
  await page.locator('input[type=password]').fill(key)
  await page.keyboard.press('Enter')
  await page.locator('#message').waitFor()
  complaints.splice(0)
  let count = 0
  const check = async (what: string, left = OTHERS) => {
    let before: string[] = []
    let same = 0
    await until('the view is there', async () => {
      const now = await textsOf(page, left)
      same = now.join() === before.join() ? same + 1 : 0
      before = now
      return same > 5
    })
    count += before.length
    const english = before.filter(text => /[A-Za-z]{3}/.test(text.replaceAll(NAMES, '')))
    t.strictSame(english, [], what)
  }
  for (const view of VIEWS) {
    await page.goto(`${corral.url}/#/${view}`)
    await page.locator('main:not([aria-busy])').waitFor()
    await check(view, view.startsWith('server') ? OF_SERVER : OTHERS)
  }
  await page.goto(`${corral.url}/#/chat`)
  await page.locator('main .view-head .icon-button').last().click()
  await page.getByRole('dialog').locator('[name=system]').waitFor()
  await check('the settings of a chat')
  await page.keyboard.press('Escape')
  await page.locator('.page-menu button').click()
  await check('the settings of the page')
  await page.keyboard.press('Escape')
  await page.goto(`${corral.url}/#/models`)
  await page.getByRole('button', { name: DEMO }).click()
  await check('the menu of a model')
  for (const [index, dialog] of ['details', 'settings', 'delete'].entries()) {
    if (index > 0) await page.getByRole('button', { name: DEMO }).click()
    await page.locator('.menu-list button').nth(index).click()
    await page.getByRole('dialog').locator('dl, form, .is-danger').first().waitFor()
    await check(`${dialog} of a model`, dialog === 'details' ? OF_MODEL : OTHERS)
    await page.keyboard.press('Escape')
    await page.getByRole('dialog').waitFor({ state: 'hidden' })
  }
  t.ok(count > 300, `${count} texts were read`)
  t.strictSame(complaints, [])
})
