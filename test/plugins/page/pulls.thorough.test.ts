import type { Page } from 'playwright-core'
import t from 'tap'
import { randomProjector } from '../../../scripts/random-models.ts'
import { accessibilityFaults } from '../../support/browser.ts'
import { until } from '../../support/corral.ts'
import { startHubEmulator } from '../../support/hub-emulator/hub-emulator.ts'
import { corralWithHub, largeGguf, MIB, quantizedModels } from '../models/download/support.ts'
import { answered, pageTests, widthOf } from './support.ts'

const { Q8_0, Q4_K_M } = quantizedModels()
const BIRD = 'acme/Bird-GGUF'
const RECOMMENDED = 'Qwen/Qwen3-4B-GGUF'
const README = `---
license: apache-2.0
---
# A bird
<div align="center"><img src="https://tracker.example/x.png"> <b>Sings</b> well <!-- > hidden --></div>
<script>globalThis.isBroken = true</script>

It <i>flies</i>. See [the licence](LICENSE), [usage](#usage) and [a trick](javascript:globalThis.isBroken=true).

![A picture](images/bird.png)

## Usage
`
const hub = await startHubEmulator(t, {
  repositories: {
    [BIRD]: {
      files: {
        'README.md': README,
        'Bird-Q8_0.gguf': Q8_0,
        'Bird-Q4_K_M.gguf': Q4_K_M,
        'Bird-F32.gguf': largeGguf(700 * MIB),
        'mmproj-F16.gguf': randomProjector('vision')
      },
      downloads: 900,
      license: 'apache-2.0'
    },
    [RECOMMENDED]: { files: { 'Qwen3-4B-Q4_K_M.gguf': Q4_K_M } },
    'acme/Bird-Gated-GGUF': { files: { 'Bird-Q8_0.gguf': Q8_0 }, gated: 'manual', downloads: 5 }
  }
})
const corral = await corralWithHub(t, hub, { config: 'defaults:\n  temperature: 0\n' })
const test = pageTests(t, corral.url)

const SLOW = { total: MIB / 2 }
const CAPITAL = 'What is the capital of France?'

async function search(page: Page, words: string): Promise<void> {
  await page.getByRole('searchbox', { name: 'Search hubs' }).fill(words)
  await page.keyboard.press('Enter')
}

/** Searches for the model and opens its variants. */
async function openVariants(page: Page): Promise<void> {
  await search(page, 'bird')
  await page.getByRole('listitem').filter({ hasText: BIRD }).getByRole('button', { name: 'Choose' }).click()
  await page.getByRole('dialog').getByRole('radio').first().waitFor()
}

test('a model is found, downloaded, paused, loaded, used and deleted', { path: '/#/models' }, async (t, { page }) => {
  await page.getByText('No models installed yet.').waitFor()
  await page.getByRole('link', { name: 'Get a model' }).click()
  // Plans for a machine with less memory.
  await page.route('**/api/pull', async route => {
    const response = await route.fetch()
    const plan = await response.json()
    if (plan.memory) plan.memory.available = 6e8
    await route.fulfill({ response, json: plan })
  })
  await openVariants(page)
  const dialog = page.getByRole('dialog')
  const variant = (label: string) => dialog.locator('label').filter({ hasText: label })
  await variant('Q4_K_M').getByText('fits', { exact: true }).waitFor()
  await variant('F32')
    .getByText(/^too large by \d+ MB$/)
    .waitFor()
  t.match(await dialog.getByRole('link').first().getAttribute('href'), BIRD)
  t.strictSame(await accessibilityFaults(page), [])
  await variant('F32').getByText('original quality').waitFor()
  const order = () => dialog.locator('.choice > .grow').allInnerTexts()
  const before = await order()
  const download = dialog.getByRole('button', { name: /^Download/ })
  await variant('Q8_0').click()
  await download.and(page.locator(':enabled')).waitFor()
  await until('the variant is chosen', () => variant('Q8_0').getByRole('radio').isChecked())
  t.match(before, [/^Q4_K_M good quality/, /^Q8_0 almost original/, /^F32 original/])
  t.equal(before.filter(text => text.includes('best for this machine')).length, 1)
  t.same(await order(), before, 'the variants keep their order')
  hub.bandwidth = SLOW
  await download.click()
  await dialog.waitFor({ state: 'hidden' })

  t.comment('the download is paused, and resumed after a reload')
  const downloads = page.getByRole('region', { name: 'Downloads' })
  const completed = async () => Number(await downloads.getByRole('progressbar').getAttribute('value'))
  await until('bytes arrive', async () => (await completed()) > 0)
  await downloads.getByText('Files', { exact: true }).click()
  await downloads.getByText(/^Bird-Q8_0.gguf .* of /).waitFor()
  await downloads.getByText(/^mmproj-F16.gguf .* of /).waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await downloads.getByRole('button', { name: 'Pause' }).click()
  await downloads.getByText(/^paused/).waitFor()
  const paused = await completed()
  await page.reload()
  await downloads.getByText(/^paused/).waitFor()
  t.ok((await completed()) >= paused, 'the received bytes stay')
  hub.bandwidth = {}
  await downloads.getByRole('button', { name: 'Resume' }).click()
  await downloads.waitFor({ state: 'hidden' })
  const requests = hub.traffic.requests.filter(({ path, bytes }) => path === 'Bird-Q8_0.gguf' && bytes > 0)
  t.ok(requests.length > 0, 'it was downloaded')

  t.comment('the model is loaded and used')
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
  await answered(page, CAPITAL, BIRD)
  await page.getByRole('link', { name: 'Models', exact: true }).click()
  await line.getByRole('button', { name: 'Unload' }).click()
  await line.getByRole('button', { name: 'Load' }).waitFor()

  t.comment('the model is deleted after a confirmation')
  const remove = async () => {
    await line.getByRole('button', { name: /^More/ }).click()
    await line.getByRole('button', { name: 'Delete' }).click()
  }
  await remove()
  await dialog.getByText(/deletes its files from disk/).waitFor()
  await dialog.getByRole('button', { name: 'Cancel' }).click()
  t.ok(await line.isVisible(), 'Cancel deletes nothing')
  await remove()
  await dialog.getByRole('button', { name: 'Delete' }).click()
  await page.getByText('No models installed yet.').waitFor()
  t.strictSame((await corral.json('/api/tags')).body.models, [])
})

test('a newcomer gets a recommended model and chats with it', { path: '/#/models/get' }, async (t, { page }) => {
  await page.route('**/api/recommended', async route => {
    const response = await route.fetch()
    const reply = await response.json()
    for (const { size, memory } of reply.models) Object.assign(memory, { available: 8e9, fits: size < 7e9 })
    await route.fulfill({ response, json: reply })
  })
  await page.reload()
  const list = page.getByRole('region', { name: 'Models that fit this machine' })
  await list.getByRole('listitem').first().waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  const sizes = async () =>
    (await list.getByRole('listitem').allInnerTexts()).map(text => Number(/about ([\d.]+) GB/.exec(text)?.[1] ?? 0))
  const fitting = await sizes()
  t.same(
    fitting,
    fitting.toSorted((a, b) => b - a),
    'the largest first'
  )
  await list.getByRole('button', { name: 'Show models that are too large' }).click()
  await list
    .getByText(/^too large by /)
    .first()
    .waitFor()
  await list.getByRole('button', { name: 'Speech' }).click()
  await list.getByText('ggerganov/whisper.cpp:base').waitFor()
  await list.getByRole('button', { name: 'Chat', exact: true }).click()
  await list.getByRole('listitem').filter({ hasText: RECOMMENDED }).getByRole('button', { name: 'Choose' }).click()
  hub.bandwidth = SLOW
  await page
    .getByRole('dialog')
    .getByRole('button', { name: /^Download/ })
    .click()
  await page.getByRole('link', { name: 'Server', exact: true }).click()
  await page.getByRole('link', { name: /^Models \d+%$/ }).waitFor()
  hub.bandwidth = {}
  const notice = page.getByRole('status').filter({ hasText: `${RECOMMENDED} is installed.` })
  await notice.getByRole('button', { name: 'Chat' }).click()
  await answered(page, CAPITAL, RECOMMENDED)
})

test('a card shows the README safely, and what the model can do', { path: '/#/models/get' }, async (t, { page }) => {
  await openVariants(page)
  const dialog = page.getByRole('dialog')
  const readme = dialog.getByRole('region', { name: 'Description' })
  await readme.getByRole('heading', { name: 'Usage' }).waitFor()
  t.equal(
    (await readme.innerText()).replace(/\s+/g, ' '),
    ['A bird Sings well It flies. See the licence, usage and a trick.', 'A picture Usage'].join(' ')
  )
  for (const [name, path] of [
    ['the licence', 'LICENSE'],
    ['usage', 'README.md#usage'],
    ['A picture', 'images/bird.png']
  ] as const) {
    const link = readme.getByRole('link', { name })
    t.equal(await link.getAttribute('href'), `${hub.url}/${BIRD}/blob/main/${path}`)
  }
  t.equal(await readme.getByRole('link').count(), 3)
  t.equal(await readme.locator('img, script, b').count(), 0)
  t.equal(await page.evaluate('globalThis.isBroken'), undefined)
  for (const chip of ['vision', 'apache-2.0']) await dialog.getByText(chip, { exact: true }).waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await page.keyboard.press('Escape')
  await search(page, RECOMMENDED)
  await dialog.getByText('The hub has no description of this model.').waitFor()
})

test('newer revisions are found when the user looks, and downloaded', { path: '/#/models' }, async (t, opened) => {
  const { page, complaints, refusals } = opened
  const model = 'acme/Moving-GGUF'
  hub.add(model, { files: { 'Moving-Q8_0.gguf': Q8_0 } })
  await corral.json('/api/pull', { model, stream: false })
  const before = hub.traffic.requests.length
  const line = page.getByRole('listitem').filter({ hasText: model })
  const check = page.getByRole('button', { name: 'Check for newer revisions' })
  const notice = page.getByRole('status')
  const openDetails = async () => {
    await line.getByRole('button', { name: /^More/ }).click()
    await line.getByRole('button', { name: 'Details' }).click()
  }
  await line.waitFor()
  hub.change(model, { 'Moving-Q8_0.gguf': Q4_K_M })
  const { id } = (await hub.repository(model).at('main'))!
  t.equal(hub.traffic.requests.length, before, 'no hub is asked in the background')
  await check.click()
  await notice.getByText('1 model has a newer revision.').waitFor()
  await line.getByText('newer revision').waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await openDetails()
  await page.getByText(`The hub has a newer revision: ${id.slice(0, 12)}.`).waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  hub.bandwidth = SLOW
  await page.getByRole('button', { name: 'Update' }).click()
  await page.getByRole('region', { name: 'Downloads' }).getByText(model).waitFor()
  hub.bandwidth = {}
  await notice.getByText(`${model} is installed.`).waitFor()
  await openDetails()
  await page.getByText('This is the newest revision.').waitFor()
  t.match((await corral.json('/api/show', { model })).body.origin, { revision: id })
  await page.keyboard.press('Escape')
  await check.click()
  await notice.getByText('No model has a newer revision.').waitFor()

  const fault = hub.fault({ on: 'info', kind: 'status', status: 401 })
  await openDetails()
  await page.getByText(/^Could not check for a newer revision\. \S/).waitFor()
  t.equal(await page.getByRole('alert').count(), 0, 'errors are reported quietly')
  fault.remove()
  complaints.splice(0)
  refusals.splice(0)
})

test('results of a search are ordered and filtered', { path: '/#/models/get' }, async (t, { page }) => {
  await page.route('**/api/search?*', async route => {
    const response = await route.fetch()
    const reply = await response.json()
    for (const [index, model] of reply.models.entries()) {
      Object.assign(model, { size: 9 - index, memory: { required: 1, available: 1, fits: index > 0 } })
    }
    await route.fulfill({ response, json: reply })
  })
  await search(page, 'bird')
  const titles = () => page.getByRole('listitem').getByRole('heading').allInnerTexts()
  await page.getByRole('button', { name: 'Smallest' }).click()
  t.same(await titles(), ['acme/Bird-Gated-GGUF', BIRD])
  await page.getByRole('button', { name: 'Popular' }).click()
  t.same(await titles(), [BIRD, 'acme/Bird-Gated-GGUF'])
  await page.getByRole('button', { name: 'Only models that fit' }).click()
  t.same(await titles(), ['acme/Bird-Gated-GGUF'])
  t.strictSame(await accessibilityFaults(page), [])
})

const NARROW = { path: '/#/models/get', viewport: { width: 375, height: 700 }, mayFail: true }
test('failed downloads are retried or cancelled, and a missing hub is reported', NARROW, async (t, { page }) => {
  const fault = hub.fault({ on: 'bytes', kind: 'forbidden' })
  const dialog = page.getByRole('dialog')
  await openVariants(page)
  t.equal(await widthOf(page), 375)
  await dialog.getByRole('button', { name: /^Download/ }).click()
  const downloads = page.getByRole('region', { name: 'Downloads' })
  await downloads.getByText(/^failed/).waitFor()
  t.equal(await widthOf(page), 375, 'the reason fits the screen')
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
  t.equal(await page.getByText('is installed.').count(), 0, 'a cancelled download offers no chat')
  t.strictSame((await corral.json('/api/pulls')).body.pulls, [])

  await hub.goDown()
  await search(page, 'bird')
  await page.getByText(/^Hugging Face at .* cannot be used/).waitFor()
  await search(page, BIRD)
  await dialog.locator('.is-error').waitFor()
  t.strictSame(await accessibilityFaults(page), [])
  await hub.comeBack()
})
