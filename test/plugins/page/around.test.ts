import { readFileSync } from 'node:fs'
import t from 'tap'
import { accessibilityFaults, testBrowser } from '../../support/browser.ts'
import { startCorral } from '../../support/corral.ts'

const browser = testBrowser(t)
const corral = await startCorral(t, { config: 'defaults:\n  temperature: 0\n' })

t.test(
  'chats are found by what was said, saved, taken back, and shown beside each other',
  { skip: browser.skip },
  async t => {
    const { page, complaints, refusals } = await browser.open(t, corral.url)
    await page.getByLabel('Message', { exact: true }).fill('What is the capital of France?')
    await page.keyboard.press('Enter')
    const answers = page.getByRole('article', { name: /^Answer from/ })
    await answers.getByText('Paris').waitFor()
    await answers.getByText(/context tokens used/).waitFor()

    await page.keyboard.press('Control+Shift+o')
    await page.getByRole('heading', { name: 'What is on your mind?' }).waitFor()
    await page.keyboard.press('Control+k')
    await page.getByRole('combobox').fill('is paris')
    const found = page.getByRole('option', { name: 'What is the capital of France?' })
    await found.waitFor()
    t.strictSame(await accessibilityFaults(page), [])
    await page.keyboard.press('Enter')
    await answers.getByText('Paris').waitFor()

    const downloads = page.waitForEvent('download')
    await page.getByRole('button', { name: 'Settings', exact: true }).click()
    await page.getByRole('button', { name: 'Export all chats' }).click()
    const file = await (await downloads).path()
    const saved = JSON.parse(readFileSync(file, 'utf8'))
    t.match(saved, { corral: 'chats', chats: [{ title: 'What is the capital of France?' }], messages: [{}, {}] })

    await page.getByRole('button', { name: /^More: What is/ }).click()
    await page.getByRole('button', { name: 'Delete', exact: true }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('heading', { name: 'What is on your mind?' }).waitFor()
    const link = page.getByRole('link', { name: 'What is the capital of France?' })
    t.equal(await link.count(), 0)
    await page.getByLabel('Import chats').setInputFiles(file)
    await link.click()
    await answers.getByText('Paris').waitFor()

    await page.getByRole('button', { name: 'Compare with another model' }).click()
    await page.getByRole('checkbox', { name: 'Send to all' }).waitFor()
    t.strictSame(await accessibilityFaults(page), [])
    await page.getByLabel('Message', { exact: true }).first().fill('What is 7 + 8?')
    await page.keyboard.press('Enter')
    await answers.getByText('= 15').nth(1).waitFor()
    t.equal(await answers.count(), 4, 'both chats have both answers')
    t.strictSame(complaints, [])
    t.strictSame(refusals, [])
  }
)

t.test('the link of an admin opens what is for admins, once', { skip: browser.skip }, async t => {
  const { body } = await corral.json('/api/sessions/links', {}, { local: true })
  const { page, complaints } = await browser.open(t, body.address)
  await page.getByRole('link', { name: 'Server' }).click()
  await page.getByRole('link', { name: 'Keys' }).click()
  await page.getByRole('button', { name: 'Create key' }).waitFor()
  t.notMatch(page.url(), 'open=')
  t.strictSame(complaints, [])
  const again = await browser.open(t, body.address)
  await again.page.getByRole('alert').waitFor()
  await again.page.getByRole('link', { name: 'Server' }).click()
  await again.page.getByRole('link', { name: 'Usage' }).waitFor()
  t.equal(await again.page.getByRole('link', { name: 'Keys' }).count(), 0)
})
