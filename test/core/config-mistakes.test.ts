import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { Type } from 'typebox'
import { formatProblems, unknownWarning } from '../../core/config/config-error.ts'
import { loadConfig } from '../../core/config/load.ts'
import { nearest } from '../../core/config/suggestion.ts'
import type { PluginDefinition } from '../../core/plugins/plugin.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { readCases } from '../support/fixture.ts'
import { definitions, load, problemsOf } from './loaded-config.ts'

t.test('mistakes name place, setting, value and what is allowed', async t => {
  const table: [yaml: string, where: string, message: string | RegExp][] = readCases('config-cases.yaml', 'mistakes')
  for (const [yaml, where, message] of table) {
    const problems = await problemsOf(t, { yaml })
    t.match(problems, [{ where: `config.yaml:${where}`, message }], JSON.stringify(yaml))
    t.equal(problems.length, 1, `one sentence for ${JSON.stringify(yaml)}`)
  }
})

t.test('environment and flags are checked, and so is the file although they override it', async t => {
  const problems = await problemsOf(t, {
    yaml: 'port: abc\nhost: 1\n',
    env: { CORRAL_PORT: 'abc', CORRAL_LOG_LEVEL: 'loud', CORRAL_INSECURE: 'maybe', CORRAL_API_KEYS: 'x' },
    flags: { port: '99999', logLevel: 'info' }
  })
  t.same(
    problems.map(({ where, line, setting }) => [where, line, setting]),
    [
      ['config.yaml:1:7', 1, 'port'],
      ['config.yaml:2:7', 2, 'host'],
      ['env CORRAL_PORT', undefined, 'port'],
      ['env CORRAL_LOG_LEVEL', undefined, 'log_level'],
      ['env CORRAL_API_KEYS', undefined, 'security.api_keys'],
      ['env CORRAL_INSECURE', undefined, 'security.insecure'],
      ['flag --port', undefined, 'port']
    ]
  )
  const text = formatProblems(problems)
  t.match(text, /^The configuration has 7 mistakes:\n {2}config\.yaml:1:7 /)
  t.match(text, /CORRAL_PORT +port must be a whole number from 0 to 65535; got "abc"\./)
  t.match(formatProblems(problems.slice(0, 1)), /^The configuration has a mistake:/)
})

t.test('unknown settings are ignored and reported, wrong values are mistakes', async t => {
  const yaml =
    'prot: 1\nport: 4000\nold_plugin: {a: {b: 1}}\nextra: {inner: {depth: 7, width: 2}}\nmodels:\n  a/b: {pim: 1, pin: true}'
  const config = await load(t, { yaml })
  t.match(config.unknown, [
    { where: 'config.yaml:1:1', setting: 'prot', message: /did you mean port\?/ },
    { where: 'config.yaml:3:1', setting: 'old_plugin' },
    { where: 'config.yaml:4:27', setting: 'extra.inner.width' },
    { where: 'config.yaml:6:9', setting: 'models."a/b".pim' }
  ])
  t.equal(config.unknown.length, 4)
  t.equal(config.core.port, 4000)
  t.strictSame(config.sections.extra?.inner, { depth: 7 })
  t.strictSame(config.core.models['a/b'], { pin: true })
  t.notOk('old_plugin' in config.sections || 'prot' in config.core)

  const error = await load(t, { yaml: 'prot: 1\nport: x' }).catch(error => error)
  t.match(
    error.problems,
    [{ setting: 'port' }, { setting: 'prot' }],
    'a mistake is reported together with unknown settings'
  )
  await t.rejects(load(t, { yaml: 'home: /elsewhere' }), { name: 'ConfigError' }, 'it would be another data directory')
})

t.test('unknown options of models and defaults are reported', async t => {
  const check = async (yaml: string) => {
    const cwd = t.testdir({ 'config.yaml': yaml, home: {} })
    const env = { CORRAL_HOME: join(cwd, 'home'), CORRAL_CONFIG: 'config.yaml' }
    return await loadConfig({ flags: {}, env, cwd, definitions: builtInPlugins })
  }
  const config = await check(`defaults:
  temprature: 0.5
  min_p: 0.1
  num_thread: 4
models:
  a/b: { options: { num_cxt: 5, zzzzzz: 1, grammar: x } }
  far/away: { options: { guided_json: 1 } }
remote:
  models: { Far/Away: { model: x, servers: [{ url: 'http://127.0.0.1:9/v1' }] } }
`)
  t.strictSame(
    config.unknown.map(({ where, message }) => [where, message]),
    [
      ['config.yaml:2:3', 'defaults has no option "temprature"; did you mean defaults.temperature?'],
      ['config.yaml:6:21', 'models."a/b".options has no option "num_cxt"; did you mean models."a/b".options.num_ctx?'],
      ['config.yaml:6:33', 'models."a/b".options has no option "zzzzzz": neither corral nor its engines know it.']
    ],
    'options of other servers are not known'
  )
  t.match((await check('defaults: { contxt: fixed }')).unknown, [{ message: /did you mean defaults\.context\?/ }])
  t.match((await check(`models: { a/b: { options: { context: fixed } } }`)).unknown.length, 1, 'only of defaults')
  const shipped = readFileSync(join(packageRoot, 'config.yaml'), 'utf8')
  t.same((await check(shipped)).unknown, [], 'the file that corral starts with has no mistakes')
  t.match(unknownWarning(config.unknown[0]!), /did you mean .*\? It is passed on to the engine\.$/)
  t.match(config.core.defaults, { temprature: 0.5, temperature: 0.7 }, 'it stays')
  t.match(await check('defaults: {"__proto__": {a: 1}, constructor: 1}').then(({ unknown }) => unknown.length), 2)
})

t.test('malicious files are refused quickly', async t => {
  const bomb = Array.from({ length: 12 }, (_, i) => `x${i}: &x${i} [${Array(9).fill(i ? `*x${i - 1}` : 'lol')}]`)
  t.match(await problemsOf(t, { yaml: bomb.join('\n') }), [{ message: /multiply/ }])
  t.match(await problemsOf(t, { yaml: '['.repeat(100_000) }), [{ where: /^config\.yaml:/ }])
  const cwd = t.testdir({ 'config.yaml': Buffer.from([0x70, 0x3a, 0x20, 0xff, 0xfe]) })
  const binary = await loadConfig({ flags: {}, env: {}, cwd, definitions }).catch(error => error)
  t.match(binary.problems, [{ message: /not UTF-8/ }])
  const proto = await problemsOf(t, { yaml: '__proto__: {port: 1}\nconstructor: 1\ntoString:' })
  t.equal(proto.length, 3)
  t.notOk(({} as { port?: unknown }).port)
  const found = await load(t, { yaml: 'port: nonsense' }).catch(error => error)
  t.match(found.message, /config\.yaml was read because it is in the working directory; --config names another file/)
})

t.test('plugins with unusable names or options are refused', async t => {
  const plugin = (name: string, options: unknown) =>
    ({ name, api: 1, description: 'x', options, setup: () => ({}) }) as PluginDefinition
  const ok = Type.Object({})
  const table: [PluginDefinition[], code: string, message: RegExp][] = [
    [[plugin('port', ok)], 'plugin_name_invalid', /"port"/],
    [[plugin('home', ok)], 'plugin_name_invalid', /"home"/],
    [[plugin('Bad Name', ok)], 'plugin_name_invalid', /lower-case/],
    [[plugin('a', ok), plugin('a', ok)], 'plugin_duplicate', /Two plugins are called "a"/],
    [[plugin('a', Type.Object({ x: Type.String() }))], 'plugin_options_invalid', /a\.x has neither a default/],
    [[plugin('a', { type: 'object', tpye: 1 })], 'plugin_options_invalid', /"a" is unusable: .*unknown keyword/]
  ]
  for (const [definitions, code, message] of table) {
    await t.rejects(loadConfig({ flags: {}, env: {}, cwd: t.testdir({}), definitions }), { code, message })
  }
})

t.test('nearest suggests the setting that was probably meant', async t => {
  const names = ['port', 'host', 'log_level', 'models_directory']
  for (const [typed, expected] of readCases<[string, string | undefined][]>('config-cases.yaml', 'nearestSettings')) {
    t.equal(nearest(typed, names), expected, typed)
  }
  t.equal(nearest('x'.repeat(5000), names), undefined, 'a long name')
  const commands = readCases<string[]>('config-cases.yaml', 'commands')
  for (const [typed, expected] of readCases<[string, string | undefined][]>('config-cases.yaml', 'nearestCommands')) {
    t.equal(nearest(typed, commands), expected, typed)
  }
  t.equal(nearest('search', commands.slice(0, -1)), undefined, 'nothing is similar')
})
