import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { accessibilityFaults, testBrowser } from '../../support/browser.ts'
import { DEMO, startCorral, until } from '../../support/corral.ts'

const browser = testBrowser(t)

t.test('an admin changes the settings of a model in the page', { skip: browser.skip }, async t => {
  const corral = await startCorral(t, {
    config: `models:\n  ${DEMO}:\n    max_concurrent: 1 # one after the other\n    options: { num_ctx: 1024, top_k: 5 }\n`
  })
  const text = () => readFileSync(join(corral.home, 'config.yaml'), 'utf8')
  const link = await corral.json('/api/sessions/links', {}, { local: true })
  const { page, complaints } = await browser.open(t, corral.url + new URL(link.body.address).hash)
  await page.getByRole('link', { name: 'Models', exact: true }).click()
  const open = async () => {
    await page.getByRole('button', { name: `More: ${DEMO}` }).click()
    await page.getByRole('listitem').getByRole('button', { name: 'Settings', exact: true }).click()
    await page.getByLabel('num_ctx').waitFor()
  }
  await open()
  t.strictSame(await accessibilityFaults(page), [])
  t.equal(await page.getByLabel('num_ctx').inputValue(), '1024')
  const others = page.getByLabel('Other settings')
  t.strictSame(JSON.parse(await others.inputValue()), { max_concurrent: 1, options: { top_k: 5 } })
  await page.getByLabel('num_ctx').fill('2048')
  await page.getByLabel('keep_alive').fill('soon')
  await page.getByLabel('pin').selectOption('true')
  await page.getByLabel('Aliases').fill('me/small, me/tiny')
  await page.getByRole('button', { name: 'Save' }).click()
  await page
    .getByRole('alert')
    .getByText(/keep_alive must be a duration/)
    .waitFor()
  t.notMatch(text(), /2048/, 'nothing is written')
  await page.getByLabel('keep_alive').fill('20m')
  await others.fill('{"max_concurrent": ')
  await page.getByRole('button', { name: 'Save' }).click()
  await page.getByText(/Invalid JSON for this field/).waitFor()
  await others.fill('{"max_concurrent": 1, "options": {"top_k": 7}}')
  await page.getByRole('button', { name: 'Save' }).click()
  await until('it is written', () => text().includes('2048'))
  t.match(text(), /max_concurrent: 1 # one after the other\n {4}options: \{ ?num_ctx: 2048, top_k: 7 ?\}/)
  t.match(text(), /aliases: \[me\/small, me\/tiny\]/)
  t.match(text(), /pin: true/)

  await open()
  t.equal(await page.getByLabel('keep_alive').inputValue(), '20m')
  await page.getByLabel('pin').selectOption('')
  await page.getByRole('button', { name: 'Save' }).click()
  await until('it is taken back', () => !text().includes('pin:'))
  t.strictSame(
    complaints.filter(text => !text.includes('409')),
    []
  )
})
