import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../../core/system/package-info.ts'
import { accessibilityFaults } from '../../support/browser.ts'
import { TINY_SAFETENSORS } from '../../support/conversion-python.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral, until } from '../../support/corral.ts'
import { importModel, MODEL, placeEnvironment, scriptedPython } from '../models/conversion/support.ts'
import { ask, ended, pageTests } from './support.ts'

const describe = join(packageRoot, 'dist', 'examples', 'describe-api', 'index.js')
/** A plugin whose page does not exist. */
const lost = join(
  t.testdir({
    'lost.mjs': `export default { name: 'lost', api: 1, description: '', optional: true, options: { type: 'object', properties: {} },
    setup: () => ({ web: { title: 'Lost', path: '/lost' }, routes: async app => { app.post('/lost', async () => 1) } }) }`
  }),
  'lost.mjs'
)
const corral = await startCorral(t, {
  config: `plugins: ${JSON.stringify([describe, lost])}\ndefaults: { temperature: 0 }\nmodels:\n  ${DEMO}:\n    max_concurrent: 1 # one after the other\n    options: { num_ctx: 1024, top_k: 5 }\n`
})
const test = pageTests(t, corral.url)

t.test('the list of plugins names their pages', async t => {
  const { plugins } = (await corral.json('/api/plugins', undefined, { local: true })).body
  const find = (name: string) => plugins.find((plugin: { name: string }) => plugin.name === name)
  t.match(find('describe-api'), { state: 'active', web: { title: 'What can models do?', path: '/describe-api/page' } })
  t.match(find('lost'), { state: 'failed', reason: /no route GET \/lost/ })
  t.notOk('web' in find('storage'))
})

test('the page of a plugin cannot read the page around it', { path: '/#/server/plugins' }, async (t, { page }) => {
  await page.evaluate("sessionStorage.setItem('secret', 'key')")
  await page.getByRole('button', { name: 'What can models do?' }).click()
  await page.frameLocator('iframe').getByText('POST /describe-api/describe').waitFor()
  t.equal(await page.locator('iframe').getAttribute('sandbox'), 'allow-scripts allow-forms')
  const inside = page.frames().find(each => each.url().endsWith('/describe-api/page'))!
  t.equal(await inside.evaluate('origin'), 'null', 'the frame has no origin')
  await t.rejects(inside.evaluate('parent.sessionStorage.secret'))
  await t.rejects(inside.evaluate('sessionStorage.length'))
})

test('an admin changes the settings of a model', { mayFail: true }, async (t, { page, complaints }) => {
  const text = () => readFileSync(join(corral.home, 'config.yaml'), 'utf8')
  const link = await corral.json('/api/sessions/links', {}, { local: true })
  await page.goto('about:blank')
  await page.goto(`${corral.url}/${new URL(link.body.address).hash}`)
  await page.getByRole('link', { name: 'Models', exact: true }).click()
  const open = async () => {
    await page.getByRole('button', { name: `More: ${DEMO}` }).click()
    await page.getByRole('listitem').getByRole('button', { name: 'Settings', exact: true }).click()
    await page.getByLabel('num_ctx').waitFor()
  }
  const save = () => page.getByRole('button', { name: 'Save' }).click()
  await open()
  t.strictSame(await accessibilityFaults(page), [])
  t.equal(await page.getByLabel('num_ctx').inputValue(), '1024')
  const others = page.getByLabel('Other settings')
  t.strictSame(JSON.parse(await others.inputValue()), { max_concurrent: 1, options: { top_k: 5 } })

  t.comment('each setting shows its value in force, its origin and the memory')
  const setting = (name: string) => page.locator('.setting', { has: page.locator(`[name=${name}]`) })
  const memory = page.getByText(/^Memory with these settings: \d+ MB/)
  await memory.waitFor()
  t.match(
    await setting('num_ctx').textContent(),
    /num_ctx · --ctx-size.*set for this model.*Reset to 4,096 \(default\)/
  )
  t.match(await setting('temperature').textContent(), /0 · for all models, in config\.yaml/)
  t.match(await setting('num_parallel').textContent(), /4 · default/)
  await page.getByLabel('num_ctx').fill('8192')
  await memory.filter({ hasText: /\d+ MB more than now.*fits/ }).waitFor()
  await page.getByLabel('num_ctx').fill('99999')
  await setting('num_ctx').getByText('Limited to 32,768.').waitFor()
  await setting('num_ctx').getByRole('button').click()
  t.equal(await page.getByLabel('num_ctx').inputValue(), '')
  await setting('num_ctx').getByText('4,096 · default').waitFor()
  await page.getByLabel('n_gpu_layers').fill('3000000000')
  await save()
  t.equal(await page.locator(':invalid[name=n_gpu_layers]').count(), 1, 'the browser refuses it')
  await setting('n_gpu_layers').getByRole('alert').waitFor()
  await page.getByLabel('n_gpu_layers').fill('')

  t.comment('invalid settings are not written')
  await page.getByLabel('num_ctx').fill('2048')
  await page.getByLabel('keep_alive').fill('soon')
  await setting('keep_alive')
    .getByText(/must be seconds or a duration/)
    .waitFor()
  await page.getByLabel('pin').selectOption('true')
  await page.getByLabel('Aliases').fill('me/small, me/tiny')
  await save()
  const alert = page.getByRole('alert')
  await alert.getByText(/keep_alive.* must be/).waitFor()
  t.notMatch(text(), /2048/)
  await page.getByLabel('keep_alive').fill('20m')
  await others.fill('{"max_concurrent": ')
  await save()
  await alert.getByText(/Invalid JSON for this field/).waitFor()

  await others.fill('{"max_concurrent": 1, "options": {"top_k": 7}}')
  await save()
  await until('the settings are written', () => text().includes('2048'))
  t.match(text(), /max_concurrent: 1 # one after the other\n {4}options: \{ ?num_ctx: 2048, top_k: 7 ?\}/)
  t.match(text(), /aliases: \[me\/small, me\/tiny\]/)
  t.match(text(), /pin: true/)
  await open()
  t.equal(await page.getByLabel('keep_alive').inputValue(), '20m')
  await page.getByLabel('pin').selectOption('')
  await save()
  await until('the setting is removed', () => !text().includes('pin:'))
  // Replies with 400 and 409 are expected.
  t.strictSame(
    complaints.filter(text => !/40[09]/.test(text)),
    []
  )
})

test('an admin reads the log, the load of the last hour and the use of keys', {}, async (t, { page }) => {
  const link = await corral.json('/api/sessions/links', {}, { local: true })
  await page.goto('about:blank')
  await page.goto(`${corral.url}/${new URL(link.body.address).hash}`)
  await page.getByRole('link', { name: 'Server', exact: true }).click()
  await page.getByRole('button', { name: '1 hour' }).click()
  await page.waitForResponse(/api\/history\?range=hour/)
  t.equal(await page.locator('.live-chart canvas').count(), 4)
  await page.getByText('Meaning of these words').click()
  await page.getByText('What more models may take.').waitFor()
  t.match(await page.locator('.memory').first().textContent(), /reserved · [\d.]+ \wB free · [\d.]+ GB of \d+ GB used/)

  await page.getByRole('link', { name: 'Logs', exact: true }).click()
  const lines = page.locator('.log')
  await lines.getByText(/listens on/).waitFor()
  await page.getByRole('searchbox').fill('LISTENS ON')
  await page.getByText('1 line', { exact: true }).waitFor()
  await page.getByLabel('Level').selectOption('errors')
  await lines.getByText('Nothing yet.').waitFor()
  await page.getByRole('searchbox').fill('')
  await page.getByLabel('Level').selectOption('all')
  const follow = page.getByRole('checkbox', { name: 'Follow' })
  await page.setViewportSize({ width: 1280, height: 250 })
  await until('it follows', async () => (await lines.evaluate(log => log.scrollTop)) > 0)
  await lines.evaluate(log => log.scrollTo(0, 0))
  await until('reading stops it', async () => !(await follow.isChecked()))
  await page.getByLabel('Log of').selectOption(DEMO)
  t.equal(await page.getByLabel('Level').count(), 0, 'lines of engines have no level')
  t.strictSame(await accessibilityFaults(page), [])
})

t.test('the machines of a cluster show their models and replicas', async t => {
  const node = await startCorral(t)
  const members = `members: [{ name: node-1, url: "${node.url}" }]`
  const gateway = await startCorral(t, {
    config: `storage:\n  demo_model: false\ncluster:\n  ${members}\n  replicas: { min: 1 }\n`
  })
  const gatewayTest = pageTests(t, gateway.url)
  await gatewayTest('replicas', { path: '/#/server/machines' }, async (t, { page }) => {
    await page.getByRole('heading', { name: 'node-1' }).waitFor()
    const row = page.getByRole('row').filter({ hasText: DEMO })
    await until('the replica is loaded', async () => /11node-1/.test((await row.textContent()) ?? ''))
    t.strictSame(await accessibilityFaults(page), [])
  })
})

test('a button installs the converter, and the failed answer is retried', { mayFail: true }, async (t, { page }) => {
  await corral.json('/api/delete', { model: DEMO }, { method: 'DELETE' })
  await importModel(corral, TINY_SAFETENSORS)
  await ask(page, CAPITAL_QUESTION.content)
  const failure = page.getByRole('alert').filter({ hasText: 'conversion_not_installed' })
  t.match((await failure.textContent()) ?? '', /about \d\.\d GB/)
  // With the packages in place, the button has nothing to download.
  await placeEnvironment(corral, scriptedPython(t).path)
  await failure.getByRole('button', { name: 'Install' }).click()
  await page.getByText(CAPITAL_ANSWER, { exact: true }).waitFor()
  t.ok(await ended(page, MODEL))
})
