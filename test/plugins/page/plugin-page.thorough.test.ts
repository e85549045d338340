import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../../core/system/package-info.ts'
import { testBrowser } from '../../support/browser.ts'
import { startCorral } from '../../support/corral.ts'

const browser = testBrowser(t)
const describe = join(packageRoot, 'dist', 'examples', 'describe-api', 'index.js')
const lost = join(
  t.testdir({
    'lost.mjs': `export default { name: 'lost', api: 1, description: '', optional: true, options: { type: 'object', properties: {} },
    setup: () => ({ web: { title: 'Lost', path: '/lost' }, routes: async app => { app.post('/lost', async () => 1) } }) }`
  }),
  'lost.mjs'
)
const corral = await startCorral(t, { config: `plugins: ${JSON.stringify([describe, lost])}\n` })

t.test('the list of plugins names their pages', async t => {
  const { plugins } = (await corral.json('/api/plugins', undefined, { local: true })).body
  const found = (name: string) => plugins.find((plugin: { name: string }) => plugin.name === name)
  t.match(found('describe-api'), { state: 'active', web: { title: 'What can models do?', path: '/describe-api/page' } })
  t.match(found('lost'), { state: 'failed', reason: /no route GET \/lost/ })
  t.notOk('web' in found('storage'))
})

t.test('the page shows them in a frame without rights', { skip: browser.skip }, async t => {
  const { page, complaints } = await browser.open(t, `${corral.url}/#/server/plugins`)
  await page.evaluate("sessionStorage.setItem('secret', 'key')")
  await page.getByRole('button', { name: 'What can models do?' }).click()
  const frame = page.frameLocator('iframe')
  await frame.getByText('POST /describe-api/describe').waitFor()
  t.equal(await page.locator('iframe').getAttribute('sandbox'), 'allow-scripts allow-forms')
  const inside = page.frames().find(each => each.url().endsWith('/describe-api/page'))!
  t.equal(await inside.evaluate('origin'), 'null', 'it is of no origin')
  await t.rejects(inside.evaluate('parent.sessionStorage.secret'), 'it cannot read the page')
  await t.rejects(inside.evaluate('sessionStorage.length'))
  t.strictSame(complaints, [])
})
