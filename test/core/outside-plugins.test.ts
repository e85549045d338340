import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import t, { type Test } from 'tap'
import { Type } from 'typebox'
import type { ConfigError } from '../../core/config/config-error.ts'
import { loadConfig } from '../../core/config/load.ts'
import { definitionFault, outsidePlugins, toAuditEntry } from '../../core/plugins/outside-plugins.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { planPlugins } from '../../core/plugins/plugin-order.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { corral as command } from '../command-line/command.ts'
import { DEMO, startCorral } from '../support/corral.ts'
import { readCases } from '../support/fixture.ts'
import { newFolder } from '../support/folder.ts'

/** A folder with these files, away from other packages. */
function folderOf(t: Pick<Test, 'teardown'>, files: Record<string, string | object>): string {
  const folder = newFolder(t)
  for (const [name, content] of Object.entries(files)) {
    const path = join(folder, name)
    mkdirSync(dirname(path), { recursive: true })
    writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content))
  }
  return folder
}

const esm = (name: string) => `export default { name: '${name}', api: 1, setup: () => ({}) }`

const find = (folder: string) => outsidePlugins({ flags: {}, env: { CORRAL_HOME: folder }, cwd: folder })

t.test('toAuditEntry finds the file of a package', async t => {
  const cases: [object, string][] = readCases('plugin-cases.yaml', 'entries')
  for (const [description, file] of cases) t.equal(toAuditEntry(description), file, JSON.stringify(description))
})

t.test('loadPlugin refuses modules that are not plugins', async t => {
  const good = { name: 'a', api: 1, setup: () => ({}) }
  t.equal(definitionFault(good), undefined)
  t.equal(definitionFault({ ...good, needs: ['storage'], offers: [], options: { type: 'object' } }), undefined)
  const cases: [unknown, RegExp][] = [
    [undefined, /no plugin as its default export/],
    [() => {}, /no plugin as its default export/],
    [[good], /no plugin as its default export/],
    [{ ...good, name: 7 }, /without a "name"/],
    [{ ...good, api: 2 }, /version 2 of the plugin contract, and this corral supports version 1/],
    [{ ...good, api: undefined }, /version null/],
    [{ ...good, setup: {} }, /without a function "setup"/],
    [{ ...good, needs: 'storage' }, /"offers" or "needs"/],
    [{ ...good, offers: [1] }, /"offers" or "needs"/],
    [{ ...good, options: [] }, /not a JSON schema of an object/],
    [{ ...good, options: { type: 'string' } }, /not a JSON schema of an object/]
  ]
  for (const [value, fault] of cases) t.match(definitionFault(value), fault)
})

t.test('outsidePlugins loads files, folders and packages in the order of the list', async t => {
  const byUrl = folderOf(t, { 'a plugin.mjs': esm('f') })
  const folder = folderOf(t, {
    'config.yaml': `plugins: [./b.mjs, ./c, "@me/d", e, ./b.mjs, "${pathToFileURL(join(byUrl, 'a plugin.mjs')).href}"]`,
    'b.mjs': esm('b'),
    'c/package.json': { type: 'module', main: 'main.js' },
    'c/main.js': esm('c'),
    'node_modules/@me/d/package.json': { type: 'module', exports: { import: './d.js' }, corral: { api: 1 } },
    'node_modules/@me/d/d.js': esm('d'),
    'node_modules/e/package.json': {},
    'node_modules/e/index.js': `exports.__esModule = true; exports.default = { name: 'e', api: 1, setup() {} }`
  })
  const found = await find(folder)
  t.same(
    found.map(({ name, description, options }) => ({ name, description, options })),
    ['b', 'c', 'd', 'e', 'f'].map(name => ({ name, description: '', options: { type: 'object', properties: {} } }))
  )
})

t.test('invalid lists are reported by the check of the whole file', async t => {
  for (const text of ['', 'plugins: ./a.js', 'plugins: [7, "", null]', 'plugins: [./a.js', '- plugins']) {
    t.same(await find(folderOf(t, { 'config.yaml': text })), [], text)
  }
  t.same(await find(folderOf(t, {})), [])
})

t.test('all plugins that cannot be loaded are reported with their places', async t => {
  const list = readCases<[name: string, message: RegExp][]>('plugin-cases.yaml', 'unloadable')
  const folder = folderOf(t, {
    'config.yaml': `plugins:\n${list.map(([name]) => `  - ${name}\n`).join('')}`,
    'broken.mjs': 'throw new Error("out of sorts")',
    'lonely.mjs': 'import "a-package-that-is-not-installed"',
    'empty.mjs': 'export const a = 1',
    'newer/package.json': { corral: { api: 2 } },
    'newer/index.js': 'throw new Error("must not be loaded")',
    'bad/package.json': 'no JSON'
  })
  const { problems } = await find(folder).then(
    () => t.fail('it was loaded') as never,
    (error: ConfigError) => error
  )
  t.equal(problems.length, list.length)
  for (const [at, [, message]] of list.entries()) {
    t.match(problems[at], { line: at + 2, column: 5, setting: 'plugins', message })
    t.ok(problems[at]!.where.endsWith(`config.yaml:${at + 2}:5`), problems[at]!.where)
  }
})

t.test('an optional plugin with a mistake is returned with its fault', async t => {
  const plugin = (name: string, more: string) => `export default { name: '${name}', optional: true, ${more} }`
  const folder = folderOf(t, {
    'config.yaml':
      'plugins: [./newer.mjs, ./storage.mjs, ./twin.mjs, ./twin-too.mjs, ./schema.mjs, ./idle.mjs]\nnewer: {any: 1}',
    'newer.mjs': plugin('newer', 'api: 2, setup: () => ({})'),
    'storage.mjs': plugin('storage', 'api: 1, setup: () => ({})'),
    'twin.mjs': plugin('twin', 'api: 1, setup: () => ({})'),
    'twin-too.mjs': plugin('twin', 'api: 1, setup: () => ({})'),
    'schema.mjs': plugin(
      'schema',
      `api: 1, options: { type: 'object', properties: { a: { type: 'nonsense' } } }, setup() {}`
    ),
    'idle.mjs': plugin('idle', 'api: 1')
  })
  const builtIn = [
    definePlugin({ name: 'storage', api: 1, description: '', options: Type.Object({}), setup: () => ({}) })
  ]
  const places = { flags: {}, env: { CORRAL_HOME: folder }, cwd: folder }
  const found = await outsidePlugins(places, builtIn)
  const faults = [
    /newer\.mjs is written for version 2 of the plugin contract, and this corral supports version 1\.$/,
    /Two plugins are called "storage"/,
    undefined,
    /Two plugins are called "twin"/,
    /options schema of plugin "schema" is unusable/,
    /idle\.mjs exports a plugin without a function "setup"\.$/
  ]
  for (const [at, { name, fault, path }] of found.entries()) {
    if (faults[at]) t.match(fault, faults[at], name)
    else t.equal(fault, undefined, name)
    t.ok(path?.startsWith(folder))
  }
  const config = await loadConfig({ ...places, definitions: [...builtIn, ...found] })
  t.same(config.sections.newer, { any: 1 }, 'their sections are not checked')
  const { order, leftOut } = planPlugins([...builtIn, ...found], () => true)
  const actual = order.map(({ name }) => name)
  t.same(actual, ['storage', 'twin'])
  t.same(
    leftOut.map(({ definition, state }) => [definition.name, state]),
    [
      ['newer', 'failed'],
      ['storage', 'failed'],
      ['twin', 'failed'],
      ['schema', 'failed'],
      ['idle', 'failed']
    ]
  )
})

/** It only makes the start of its command faster: `npm ci --ignore-scripts` can build the page too. */
const NEEDLESS = ['node_modules/esbuild']

t.test('no dependency needs an install script, and no dependency of users has one', t => {
  const { packages } = JSON.parse(readFileSync(join(packageRoot, 'package-lock.json'), 'utf8'))
  const names = Object.keys(packages).filter(name => packages[name].hasInstallScript)
  t.same(names, NEEDLESS, 'npm ci would run them')
  t.ok(NEEDLESS.every(name => packages[name].dev))
  t.end()
})

/** The example of docs/plugins.md, without its type. */
const SHELF = /```ts\n(import \{ definePlugin \}[^`]*name: 'shelf'.*?)```/s
  .exec(readFileSync(join(packageRoot, 'docs', 'plugins.md'), 'utf8'))![1]!
  .replace('<{ unit: number }>', '')

t.test('a server runs the plugin of the guide, and leaves out a failing one', async t => {
  const folder = folderOf(t, {
    'shelf.mjs': SHELF,
    'unlucky.mjs': `export default { name: 'unlucky', api: 1, optional: true, setup() { throw new Error('no luck') } }`
  })
  const plugins = `plugins: [${join(folder, 'shelf.mjs')}, ${join(folder, 'unlucky.mjs')}]\n`
  const corral = await startCorral(t, { config: `${plugins}shelf: { unit: 1000 }` })
  t.match(corral.log(), /Plugin \\"unlucky\\" could not be set up: no luck\. It is left out/)
  const { body: all } = await corral.json('/api/tags')
  const size = all.models.find((model: any) => model.model === DEMO).size
  t.same(await corral.json('/api/shelf'), { status: 200, body: { models: 1, size: size / 1000 } })
  const { body: document } = await corral.json('/openapi.json')
  t.ok(document.paths['/api/shelf'].get, 'its routes are documented')
  const { body: report } = await corral.json('/api/plugins')
  const reportOf = (name: string) => report.plugins.find((plugin: any) => plugin.name === name)
  t.match(reportOf('shelf'), {
    state: 'active',
    api: 1,
    optional: true,
    path: join(folder, 'shelf.mjs'),
    needs: ['catalog'],
    services: [],
    routes: ['GET /api/shelf'],
    hooks: []
  })
  t.match(reportOf('unlucky'), { state: 'failed', reason: /could not be set up: no luck/, routes: [] })
  t.match(reportOf('storage'), { state: 'active', optional: false, services: ['storage'], path: undefined })
  t.equal((await corral.json('/api/delete', { model: DEMO }, { method: 'DELETE' })).status, 200)
  t.match(await corral.json('/api/shelf'), {
    status: 200,
    body: { models: 0, size: 0 }
  })

  const home = folderOf(t, { 'config.yaml': `${plugins}shelf: { unit: none }` })
  const wrong = await command(['config', 'check'], { home })
  t.not(wrong.code, 0)
  t.match(wrong.stderr + wrong.stdout, /config\.yaml:2:16 .*unit/)
})
