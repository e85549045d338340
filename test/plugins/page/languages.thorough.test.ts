import { spawnSync } from 'node:child_process'
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { brotliDecompressSync } from 'node:zlib'
import t from 'tap'
import { packageRoot } from '../../../core/system/package-info.ts'
import { testBrowser } from '../../support/browser.ts'
import { newKey, startCorral } from '../../support/corral.ts'

// At the depth of the page's source, so that its relative imports work.
const trial = join(packageRoot, '.cache', `trial-page-${process.pid}`)
const [from, to] = [join(trial, 'browser'), join(trial, 'built')]
t.teardown(() => rmSync(trial, { recursive: true, force: true }))
cpSync(join(packageRoot, 'plugins', 'page', 'browser'), from, { recursive: true })
const english = JSON.parse(readFileSync(join(from, 'texts', 'en.json'), 'utf8'))

/** Builds the page with these texts in Polish, which has four forms for counts. */
function buildWith(texts: object) {
  writeFileSync(join(from, 'texts', 'pl.json'), JSON.stringify(texts))
  const script = pathToFileURL(join(packageRoot, 'scripts', 'build-page.mjs'))
  const code = `import { buildPage } from '${script}'\nawait buildPage(...${JSON.stringify([from, to])})`
  return spawnSync(process.execPath, ['--input-type=module', '--eval', code], { encoding: 'utf8' })
}

/** Puts all texts in quotation marks. */
function translated(texts: Record<string, any>): Record<string, any> {
  if ('one' in texts && 'other' in texts) {
    return Object.fromEntries(['one', 'few', 'many', 'other'].map(form => [form, `{count} ${form}`]))
  }
  return Object.fromEntries(
    Object.entries(texts).map(([name, text]) => [name, typeof text === 'string' ? `‹${text}›` : translated(text)])
  )
}
const polish = { ...translated(english), language: 'Polski' } as Record<string, any>

t.test('a file of texts adds a language', async t => {
  const { status, stderr } = buildWith(polish)
  t.equal(status, 0, stderr)
  const browser = testBrowser(t)
  if (browser.skip) return t.comment(browser.skip)
  const corral = await startCorral(t)
  const key = await newKey(corral, 'boss', { role: 'admin' })
  const { page } = await browser.open(t, 'about:blank', { locale: 'pl-PL' })
  await page.route(`${corral.url}/`, async route => {
    const html = readFileSync(join(to, 'index.html'), 'utf8')
    const body = html.replaceAll('{base}', './').replaceAll('{files}', './page/').replace('{conversations}', 'browser')
    await route.fulfill({ response: await route.fetch(), body })
  })
  await page.route(`${corral.url}/page/*`, async route => {
    const name = basename(new URL(route.request().url()).pathname)
    const contentType = name.endsWith('.css') ? 'text/css' : 'text/javascript'
    await route.fulfill({ contentType, body: brotliDecompressSync(readFileSync(join(to, `${name}.br`))) })
  })
  await page.addInitScript(`sessionStorage.setItem('corral-key', '${key}')`)
  await page.goto(`${corral.url}/#/server/plugins`)
  await page
    .getByText(/^[234] few$/)
    .first()
    .waitFor()
  await page
    .getByText(/^\d+ many$/)
    .first()
    .waitFor()
  await page.getByRole('heading', { name: '‹Server›' }).waitFor()
  t.equal(await page.evaluate('document.documentElement.lang'), 'pl')
  await page.getByRole('button', { name: '‹Settings›' }).click()
  for (const name of ['Polski', '中文', 'English']) await page.getByRole('button', { name, exact: true }).click()
  await page.getByRole('heading', { name: 'Server', exact: true }).waitFor()
})

t.test('the build names missing and wrong texts', async t => {
  const { newChat, ...lacking } = polish
  for (const [texts, fault] of [
    [lacking, 'newChat is missing'],
    [{ ...polish, tea: '‹tea›' }, 'tea is unknown'],
    [{ ...polish, useModel: '‹Use›' }, 'useModel needs the values {model}'],
    [{ ...polish, routes: { one: '1', other: '{count}' } }, 'routes.few is missing']
  ] as const) {
    const { status, stderr } = buildWith(texts)
    t.not(status, 0, fault)
    t.match(stderr, new RegExp(`pl\\.json are not complete:\\n${fault.replace(/[{}.]/g, '\\$&')}`))
  }
})
