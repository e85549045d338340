import t, { type Test } from 'tap'
import { accessibilityFaults, type OpenOptions, testBrowser } from '../../support/browser.ts'
import { DEMO, startCorral } from '../../support/corral.ts'
import { startHubEmulator } from '../../support/hub-emulator/hub-emulator.ts'
import { MIB, NO_SETTINGS, quantizedModels } from '../models/download/support.ts'
import { ask, enter, startWriter, widthOf } from './support.ts'

const browser = testBrowser(t)
const TOOL = { name: 'look_up', arguments: '{"city": "Paris"}' }
const remote = await startWriter(t, (write, { messages }) => {
  if (messages.at(-1).role === 'tool') write({ content: 'It is sunny.' })
  else write({ tool_calls: [{ index: 0, id: 'call-1', type: 'function', function: TOOL }] })
})
const hub = await startHubEmulator(t, {
  repositories: { 'acme/Bird-GGUF': { files: { 'Bird-Q8_0.gguf': quantizedModels().Q8_0 } } },
  bandwidth: { total: MIB / 100 }
})
const corral = await startCorral(t, { env: { ...NO_SETTINGS, HF_ENDPOINT: hub.url }, config: remote })
const { key } = (await corral.json('/api/keys', { name: 'boss', role: 'admin' }, { local: true })).body
await corral.json('/api/pull', { model: 'acme/Bird-GGUF', detach: true }, { local: true })

const LOOKS = [
  { colorScheme: 'light', viewport: { width: 1280, height: 800 } },
  { colorScheme: 'dark', viewport: { width: 375, height: 700 } },
  { colorScheme: 'light', viewport: { width: 375, height: 700 } },
  { colorScheme: 'dark', viewport: { width: 1280, height: 800 } }
] as const

for (const { colorScheme, viewport } of LOOKS) {
  const look: OpenOptions = { colorScheme, viewport, reducedMotion: 'reduce' }
  const title = `tools, settings, downloads, chats beside each other, ${colorScheme}, ${viewport.width} pixels wide`
  t.test(title, { skip: browser.skip }, async (t: Test) => {
    const { page, complaints } = await browser.open(t, corral.url, look)
    const check = async (what: string) => {
      t.strictSame(await accessibilityFaults(page), [], what)
      t.equal(await widthOf(page), viewport.width, `${what}: nothing is wider than the screen`)
    }
    await page.getByLabel('Key', { exact: true }).waitFor()
    await check('the question for a key')
    await enter(page, key)
    complaints.splice(0)

    await page.getByRole('button', { name: /^Model:/ }).click()
    await page
      .locator('.menu-list')
      .getByRole('button', { name: /far\/writer/ })
      .click()
    await ask(page, 'How is the weather?')
    await page.getByText('Calls look_up').waitFor()
    await check('a call of a tool')
    await page.getByLabel('Result of look_up').fill('sun')
    await page.getByRole('button', { name: 'Submit result' }).click()
    await page.getByRole('article').getByText('It is sunny.').waitFor()
    await check('the result of a tool')

    await page.getByRole('button', { name: 'Compare with another model' }).click()
    await page.getByRole('checkbox', { name: 'Send to all' }).waitFor()
    await check('two chats beside each other')
    await page.keyboard.press('Control+k')
    await page.getByRole('option').first().waitFor()
    await check('the palette')
    await page.keyboard.press('Escape')

    await page.goto(`${corral.url}/#/models/get`)
    await page.getByRole('region', { name: 'Downloads' }).getByRole('progressbar').waitFor()
    await page.getByRole('searchbox', { name: 'Search hubs' }).fill('bird')
    await page.keyboard.press('Enter')
    await page.getByRole('button', { name: 'Choose' }).click()
    await page.getByRole('dialog').getByRole('radio').first().waitFor()
    await check('a download under way, and choices')
    await page.keyboard.press('Escape')

    await page.goto(`${corral.url}/#/models`)
    await page.getByRole('button', { name: `More: ${DEMO}` }).click()
    await page.getByRole('button', { name: 'Settings', exact: true }).last().click()
    await page
      .getByRole('dialog')
      .getByText(/^Saved to/)
      .waitFor()
    await check('the settings of a model')
    await page
      .getByRole('dialog')
      .locator('details')
      .evaluateAll(all => {
        for (const each of all) each.setAttribute('open', '')
      })
    await check('all settings of a model')
    await page.keyboard.press('Escape')
    t.strictSame(complaints, [])
  })
}
