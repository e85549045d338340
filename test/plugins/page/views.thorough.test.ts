import t, { type Test } from 'tap'
import { accessibilityFaults, type OpenOptions, testBrowser } from '../../support/browser.ts'
import { startCorral } from '../../support/corral.ts'
import { answersOf, ask, ended, enter, startWriter, widthOf } from './support.ts'

const browser = testBrowser(t)
const WRITTEN =
  '# Head\n\nText with `code`, **bold** and [a link](https://example.org).\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n- [x] done\n- [ ] not\n\n```js\nconst a = "text" // comment\n```\n\n$$\\frac{1}{2}$$\n\n> quoted'
const remote = await startWriter(t, write => {
  write({ reasoning_content: 'Let me think.' })
  write({ content: WRITTEN })
})
const corral = await startCorral(t, { config: `${remote}defaults:\n  temperature: 0\n` })
await corral.json('/api/load', { model: 'corral/tiny-chat', stream: false })
const { key } = (await corral.json('/api/keys', { name: 'boss', role: 'admin' }, { local: true })).body
const open = async (t: Test, look?: OpenOptions) => {
  const opened = await browser.open(t, corral.url, look)
  await enter(opened.page, key)
  // The refusal that made it ask for the key.
  opened.complaints.splice(0)
  opened.refusals.splice(0)
  return opened
}

/** Each view, and what shows that it is there. */
const VIEWS: [address: string, text: string | RegExp][] = [
  ['#/chat', 'What is on your mind?'],
  ['#/chat/none', 'This chat was not found in this browser.'],
  ['#/models', 'corral/tiny-chat'],
  ['#/models/get', 'Search'],
  ['#/server', 'This server'],
  ['#/server/logs', 'Model'],
  ['#/server/usage', 'Total'],
  ['#/server/keys', 'boss'],
  ['#/server/audit', 'Refresh'],
  ['#/server/plugins', 'security'],
  ['#/playground', 'Send'],
  ['#/constructor', 'Page not found.'],
  ['#/100%', 'Page not found.']
]

const LOOKS = [
  { colorScheme: 'light', viewport: { width: 1280, height: 800 } },
  { colorScheme: 'dark', viewport: { width: 1280, height: 800 } },
  { colorScheme: 'light', viewport: { width: 375, height: 700 } },
  { colorScheme: 'dark', viewport: { width: 375, height: 700 } }
] as const

for (const { colorScheme, viewport } of LOOKS) {
  const look = { colorScheme, viewport, reducedMotion: 'reduce' as const }
  t.test(`every view and dialog, ${colorScheme}, ${viewport.width} pixels wide`, { skip: browser.skip }, async t => {
    const { page, complaints, refusals } = await open(t, look)
    const check = async (what: string) => {
      t.strictSame(await accessibilityFaults(page), [], what)
      t.equal(await widthOf(page), viewport.width, `${what}: nothing is wider than the screen`)
    }
    for (const [address, text] of VIEWS) {
      await page.goto(`${corral.url}/${address}`)
      await page.locator('main').getByText(text).first().waitFor()
      await check(address)
    }
    await page.goto(`${corral.url}/#/chat`)
    await page.getByRole('button', { name: /^Model:/ }).click()
    await check('the list of models')
    await page.getByRole('button', { name: /far\/writer/ }).click()
    await ask(page, 'Show me all.')
    const answer = await ended(page, 'far/writer')
    await answer.locator('math').waitFor()
    await answer.locator('.hljs-string').waitFor()
    await answer.getByText('Thoughts').click()
    await check('an answer')
    await answer.getByRole('button', { name: 'More' }).click()
    await check('the menu of an answer')
    await page.keyboard.press('Escape')
    await answer.getByRole('button', { name: 'Edit' }).click()
    await check('a message that is edited')
    await page.keyboard.press('Escape')
    await page.getByRole('button', { name: 'Chat settings' }).click()
    await page.getByText('More options').click()
    await check('the settings of a chat')
    await page.keyboard.press('Escape')
    await page.goto(`${corral.url}/#/models`)
    await page.getByRole('button', { name: 'More: corral/tiny-chat' }).click()
    await check('the menu of a model')
    await page.getByRole('button', { name: 'Details' }).click()
    await page.getByRole('dialog').getByText('Metadata').click()
    await check('the details of a model')
    await page.keyboard.press('Escape')
    await page.getByRole('button', { name: 'More: corral/tiny-chat' }).click()
    await page.getByRole('button', { name: 'Delete' }).click()
    await check('the question before a model is deleted')
    await page.getByRole('button', { name: 'Cancel' }).click()
    await page.goto(`${corral.url}/#/server/keys`)
    await page.getByRole('button', { name: 'Create key' }).click()
    await check('a new key')
    await page.keyboard.press('Escape')
    t.strictSame(complaints, [])
    t.strictSame(refusals, [])
  })
}

t.test('in the narrowest windows nothing is cut off', { skip: browser.skip }, async t => {
  const { page, complaints } = await open(t, { viewport: { width: 320, height: 600 } })
  for (const [address, text] of VIEWS) {
    await page.goto(`${corral.url}/${address}`)
    await page.locator('main').getByText(text).first().waitFor()
    t.equal(await widthOf(page), 320, address)
  }
  await page.goto(`${corral.url}/#/chat`)
  await ask(page, `What is ${'long'.repeat(60)}?`)
  await ended(page)
  t.equal(await widthOf(page), 320)
  t.strictSame(complaints, [])
})

t.test('Chinese, and text that runs from right to left', { skip: browser.skip }, async t => {
  const { page, complaints } = await browser.open(t, corral.url, { locale: 'zh-CN' })
  await page.locator('input[type=password]').fill(key)
  await page.keyboard.press('Enter')
  await page.locator('#message').waitFor()
  complaints.splice(0)
  t.equal(await page.evaluate('document.documentElement.lang'), 'zh')
  for (const [address] of VIEWS) {
    await page.goto(`${corral.url}/${address}`)
    await page.locator('main').waitFor()
    t.notMatch(await page.locator('.sidebar nav').innerText(), /[A-Za-z]{4}/, address)
  }
  await page.goto(`${corral.url}/#/chat`)
  await page.locator('#message').fill('ما هي عاصمة فرنسا؟\nWhat is it?')
  await page.keyboard.press('Enter')
  const question = page.locator('.question-text')
  await question.waitFor()
  const box = (text: string) =>
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
  t.ok((await box('ما هي')).right < 2, 'one line begins at the right')
  t.ok((await box('What')).left < 2, 'the other at the left')
  t.strictSame(await accessibilityFaults(page), [])
  t.strictSame(complaints, [])
})

t.test('a whole task by the keyboard alone', { skip: browser.skip }, async t => {
  const { page, complaints } = await open(t)
  const focused = () =>
    page.evaluate(`(document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent).trim()`)
  /** Goes on by Tab until something has the focus. */
  const tabTo = async (name: RegExp, key = 'Tab') => {
    for (let count = 0; count < 60; count++) {
      if (name.test(String(await focused()))) return
      await page.keyboard.press(key)
    }
    t.fail(`Tab does not lead to ${name}`)
  }
  await page.getByLabel('Message', { exact: true }).waitFor()
  await tabTo(/^Message$/)
  await page.keyboard.type('What is the capital of France?')
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
  t.match(await focused(), /^Model: /, 'the focus is back')
  await tabTo(/^Models$/, 'Shift+Tab')
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { name: 'Models', level: 1 }).waitFor()
  await tabTo(/^Unload$/)
  await page.keyboard.press('Enter')
  await page.getByRole('button', { name: 'Load', exact: true }).first().waitFor()
  t.equal(await answersOf(page).count(), 0)
  t.strictSame(complaints, [])
})
