import t from 'tap'
import { testBrowser } from '../../support/browser.ts'
import { TINY_SAFETENSORS } from '../../support/conversion-python.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, startCorral } from '../../support/corral.ts'
import { importModel, MODEL, placeEnvironment, scriptedPython } from '../models/conversion/support.ts'
import { ask, ended } from './support.ts'

const browser = testBrowser(t)

t.test(
  'the page says what a conversion would install, and installs it by a button',
  { skip: browser.skip },
  async t => {
    const corral = await startCorral(t, { config: 'defaults: { temperature: 0 }\n' })
    await corral.json('/api/delete', { model: 'corral/tiny-chat' }, { method: 'DELETE' })
    await importModel(corral, TINY_SAFETENSORS)
    const { page } = await browser.open(t, corral.url)
    await ask(page, CAPITAL_QUESTION.content)
    const failure = page.getByRole('alert').filter({ hasText: 'conversion_not_installed' })
    t.match((await failure.textContent()) ?? '', /about \d\.\d GB/)
    // What the installation would have made; then the button has nothing left to do but to go on.
    await placeEnvironment(corral, scriptedPython(t).path)
    await failure.getByRole('button', { name: 'Install' }).click()
    await page.getByText(CAPITAL_ANSWER, { exact: true }).waitFor()
    t.ok(await ended(page, MODEL))
  }
)
