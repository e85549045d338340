import type { Page } from 'playwright-core'
import t from 'tap'
import { randomProjector } from '../../../scripts/random-models.ts'
import { accessibilityFaults, testBrowser } from '../../support/browser.ts'
import { until } from '../../support/corral.ts'
import { startHubEmulator } from '../../support/hub-emulator/hub-emulator.ts'
import { corralWithHub, largeGguf, MIB, quantizedModels } from '../models/download/support.ts'
import { ask, ended, widthOf } from './support.ts'

const browser = testBrowser(t)
const { Q8_0, Q4_K_M } = quantizedModels()
const BIRD = 'acme/Bird-GGUF'
const hub = await startHubEmulator(t, {
  repositories: {
    [BIRD]: {
      files: {
        'Bird-Q8_0.gguf': Q8_0,
        'Bird-Q4_K_M.gguf': Q4_K_M,
        'Bird-F32.gguf': largeGguf(700 * MIB),
        'mmproj-F16.gguf': randomProjector('vision')
      },
      downloads: 900,
      license: 'apache-2.0'
    },
    'acme/Bird-Gated-GGUF': { files: { 'Bird-Q8_0.gguf': Q8_0 }, gated: 'manual', downloads: 5 }
  }
})
const corral = await corralWithHub(t, hub, {
  config: 'defaults:\n  temperature: 0\n'
})

/** Searches, and opens the choices of what was found first. */
async function look(page: Page): Promise<void> {
  await page.getByRole('searchbox', { name: 'Search hubs' }).fill('bird')
  await page.keyboard.press('Enter')
  await page.getByRole('listitem').filter({ hasText: BIRD }).getByRole('button', { name: 'Choose' }).click()
  await page.getByRole('dialog').getByRole('radio').first().waitFor()
}

const SLOW = { total: MIB / 2 }

t.test(
  'a model is found, chosen, downloaded with a pause and a reload, loaded, asked, unloaded and deleted, all by mouse',
  { skip: browser.skip },
  async t => {
    const { page, complaints, refusals } = await browser.open(t, `${corral.url}/#/models`)
    await page.getByText('No models installed yet.').waitFor()
    await page.getByRole('link', { name: 'Get a model' }).click()
    // As a smaller machine would answer.
    await page.route('**/api/pull', async route => {
      const response = await route.fetch()
      const plan = await response.json()
      if (plan.memory) plan.memory.available = 6e8
      await route.fulfill({ response, json: plan })
    })
    await look(page)
    const dialog = page.getByRole('dialog')
    const choice = (label: string) => dialog.locator('label').filter({ hasText: label })
    await choice('Q4_K_M').getByText('fits', { exact: true }).waitFor()
    await choice('F32')
      .getByText(/^too large: .* of 600 MB$/)
      .waitFor()
    t.match(await dialog.getByRole('link').getAttribute('href'), BIRD)
    t.strictSame(await accessibilityFaults(page), [])
    const order = () => dialog.locator('.choice > .grow').allInnerTexts()
    const before = await order()
    await choice('Q8_0').click()
    await dialog
      .getByRole('button', { name: /^Download/ })
      .and(page.locator(':enabled'))
      .waitFor()
    await until('it is chosen', () => choice('Q8_0').getByRole('radio').isChecked())
    t.ok(before.length > 2)
    t.same(await order(), before, 'the choices keep their places')
    hub.bandwidth = SLOW
    await dialog.getByRole('button', { name: /^Download/ }).click()
    await dialog.waitFor({ state: 'hidden' })

    const downloads = page.getByRole('region', { name: 'Downloads' })
    const progress = downloads.getByRole('progressbar')
    const done = async () => Number(await progress.getAttribute('value'))
    await until('bytes come', async () => (await done()) > 0)
    await downloads.getByText('Files', { exact: true }).click()
    await downloads.getByText(/^Bird-Q8_0.gguf .* of /).waitFor()
    await downloads.getByText(/^mmproj-F16.gguf .* of /).waitFor()
    t.strictSame(await accessibilityFaults(page), [])

    await downloads.getByRole('button', { name: 'Pause' }).click()
    await downloads.getByText(/^paused/).waitFor()
    const paused = await done()
    await page.reload()
    await downloads.getByText(/^paused/).waitFor()
    t.ok((await done()) >= paused, 'what had come stays')
    hub.bandwidth = {}
    await downloads.getByRole('button', { name: 'Resume' }).click()
    await downloads.waitFor({ state: 'hidden' })
    t.ok(
      hub.traffic.requests
        .filter(({ path, bytes }) => path === 'Bird-Q8_0.gguf' && bytes > 0)
        .every(({ status }) => status === 206 || status === 200)
    )

    await page.getByRole('navigation', { name: 'Models' }).getByRole('link', { name: 'Installed' }).click()
    const line = page.getByRole('listitem').filter({ hasText: BIRD })
    await line.getByText('vision').waitFor()
    await line.getByRole('button', { name: 'Load' }).click()
    await line.getByText(/^in memory/).waitFor()
    await page
      .getByRole('img', { name: /^Memory: / })
      .locator('[title^="acme/Bird"]')
      .waitFor()
    await line.getByRole('button', { name: 'Chat' }).click()
    await ask(page, 'What is the capital of France?')
    await ended(page, BIRD)
    await page.getByRole('link', { name: 'Models', exact: true }).click()
    await line.getByRole('button', { name: 'Unload' }).click()
    await line.getByRole('button', { name: 'Load' }).waitFor()
    await line.getByRole('button', { name: /^More/ }).click()
    await line.getByRole('button', { name: 'Delete' }).click()
    await page
      .getByRole('dialog')
      .getByText(/deletes its files from disk/)
      .waitFor()
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click()
    t.ok(await line.isVisible(), 'nothing is deleted without a yes')
    await line.getByRole('button', { name: /^More/ }).click()
    await line.getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await page.getByText('No models installed yet.').waitFor()
    t.strictSame((await corral.json('/api/tags')).body.models, [])
    t.strictSame(complaints, [])
    t.strictSame(refusals, [])
  }
)

t.test('downloads that fail, are looked at again, cancelled; a hub that is away', { skip: browser.skip }, async t => {
  const { page } = await browser.open(t, `${corral.url}/#/models/get`, { viewport: { width: 375, height: 700 } })
  const fault = hub.fault({ on: 'bytes', kind: 'forbidden' })
  await look(page)
  t.equal(await widthOf(page), 375)
  await page
    .getByRole('dialog')
    .getByRole('button', { name: /^Download/ })
    .click()
  const downloads = page.getByRole('region', { name: 'Downloads' })
  await downloads.getByText(/^failed/).waitFor()
  t.equal(await widthOf(page), 375, 'why it failed fits the screen')
  t.strictSame(await accessibilityFaults(page), [])
  await downloads.getByRole('link', { name: 'Choose' }).click()
  await page
    .getByRole('dialog', { name: `${BIRD}:Q8_0` })
    .getByRole('radio')
    .first()
    .waitFor()
  await page.locator('.dialog-head').getByRole('button', { name: 'Close' }).click()
  fault.remove()
  hub.bandwidth = SLOW
  await downloads.getByRole('button', { name: 'Resume' }).click()
  await downloads.getByText(/^downloading/).waitFor()
  await downloads.getByRole('button', { name: 'Cancel download' }).click()
  await downloads.waitFor({ state: 'hidden' })
  t.strictSame((await corral.json('/api/pulls')).body.pulls, [])

  await hub.goDown()
  await page.getByRole('searchbox', { name: 'Search hubs' }).fill('bird')
  await page.keyboard.press('Enter')
  await page.getByText(/^Hugging Face at .* cannot be used/).waitFor()
  await page.getByRole('searchbox', { name: 'Search hubs' }).fill(BIRD)
  await page.keyboard.press('Enter')
  await page.getByRole('dialog').locator('.is-error').waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await hub.comeBack()
})
