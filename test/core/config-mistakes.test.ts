import { join } from 'node:path'
import t from 'tap'
import { Type } from 'typebox'
import { formatProblems, unknownWarning } from '../../core/config/config-error.ts'
import { loadConfig } from '../../core/config/load.ts'
import { nearest } from '../../core/config/suggestion.ts'
import type { PluginDefinition } from '../../core/plugins/plugin.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { definitions, load, problemsOf } from './loaded-config.ts'

t.test('mistakes name place, setting, value and what is allowed', async t => {
  const table: [yaml: string, where: string, message: string | RegExp][] = [
    ['port: abc', '1:7', 'port must be a whole number from 0 to 65535; got "abc".'],
    ['\nport:   70000', '2:9', 'port must be a whole number from 0 to 65535; got 70000.'],
    ['port: 1.5', '1:7', /got 1\.5/],
    ['port: [1]', '1:7', /got a list\./],
    ['port: {a: 1}', '1:7', /got a group\./],
    ['host: ""', '1:7', 'host must be a host name or an address, without a port; got "".'],
    ['host: 5', '1:7', 'host must be a host name or an address, without a port; got 5.'],
    [
      'log_level: loud',
      '1:12',
      'log_level must be "trace", "debug", "info", "warn", "error", "fatal" or "silent"; got "loud".'
    ],
    ['body_limit: much', '1:13', /an amount of bytes such as 64MiB.*got "much"/],
    ['body_limit: -5', '1:13', /an amount of bytes.*got -5/],
    ['body_limit: .inf', '1:13', /got Infinity/],
    ['shutdown_grace: soon', '1:17', /a duration such as 30s.*got "soon"/],
    ['shutdown_grace: .nan', '1:17', /got NaN/],
    ['shutdown_grace: true', '1:17', /got true/],
    ['security:\n  insecure: yes', '2:13', 'security.insecure must be true or false; got "yes".'],
    ['security:\n  origins: https://a.b', '2:12', /security\.origins must be a list, each entry text.*got "https/],
    ['security:\n  origins:\n    - ok\n    - 7', '4:7', /security\.origins\.1 must be text that is not empty; got 7/],
    ['security: yes', '1:11', /security must be a group of settings.*got a text, which is not shown/],
    ['extra: {inner: {depth: 0}}', '1:24', 'extra.inner.depth must be a whole number, at least 1; got 0.'],
    ['extra:\n  colour: blue', '2:11', 'extra.colour must be a colour such as a1; got "blue".'],
    ['extra:\n  enabled: maybe', '2:12', 'extra.enabled must be true or false; got "maybe".'],
    ['security:\n  enabled: false', '2:3', /security has no setting "enabled"/],
    ['- port: 1', '1:1', /The configuration must be a group of settings.*got a list/],
    ['prot: 1', '1:1', 'There is no setting "prot"; did you mean port?'],
    ['prot:', '1:1', 'There is no setting "prot"; did you mean port?'],
    ['Log-Level: info', '1:1', 'There is no setting "Log-Level"; did you mean log_level?'],
    ['num_ctx: 1', '1:1', 'There is no setting "num_ctx"; did you mean defaults.num_ctx or limits.num_ctx?'],
    ['api_keys: [hush-hush]', '1:1', 'There is no setting "api_keys"; did you mean security.api_keys?'],
    ['home: /x', '1:1', /home cannot be set in the file.*CORRAL_HOME or --home/],
    ['zzzzzz: 1', '1:1', /There is no setting "zzzzzz"; known are host, port/],
    ['security:\n  api_key: [hush-hush]', '2:3', 'security has no setting "api_key"; did you mean security.api_keys?'],
    ['models:\n  tiny: {}', '2:3', /"tiny" is not a model name: the owner is missing/],
    ['models:\n  "../x": {}', '2:3', /is not a model name/],
    ['models:\n  a/b: {}\n  A/B:latest: {}', '3:3', '"A/B:latest" and "a/b" are the same model; keep one of them.'],
    ['models:\n  a/b: {pim: true}', '2:9', 'models."a/b" has no setting "pim"; did you mean models."a/b".pin?'],
    ['models:\n  a/b:\n    keep_alive: ages', '3:17', /models\."a\/b"\.keep_alive must be a duration/],
    [
      'models:\n  a/b:\n    options:\n      num_ctx: 0',
      '4:16',
      /models\."a\/b"\.options\.num_ctx must be a whole number/
    ],
    ['models:\n  a/b:\n    aliases: [c d]', '3:15', /"c d" is not a model name/],
    ['models:\n  a/b:\n    aliases: ["gpt-4o:Q8_0"]', '3:15', /names a variant/],
    ['models:\n  a/b: {aliases: [gpt-4o]}\n  e/f: {aliases: [GPT-4o]}', '3:19', /already an alias of "a\/b"/],
    ['models:\n  a/b:\n    aliases: ["c/d:Q8_0"]', '3:15', /names a variant; an alias is a name, or <owner>\/<name>/],
    [
      'models:\n  a/b: {aliases: [c/d]}\n  e/f: {aliases: [C/D]}',
      '3:19',
      /"C\/D" is already an alias of "a\/b"; keep one of them/
    ],
    ['models:\n  a/b:\n    draft: {model: "../x"}', '3:20', /is not a model name/],
    ['default_model: ../x', '1:16', /"\.\.\/x" is not a model name/],
    ['models:\n  a/b:\n    draft: {max_tokens: 3}', '3:12', /models\."a\/b"\.draft\.model is missing\. It must be /],
    ['models:\n  a/b:\n    lora: [{scale: 2}]', '3:12', /lora\.0\.path is missing\. It must be a path\./],
    ['defaults:\n  num_predict: lots', '2:16', /Option "num_predict" must be a whole number/],
    ['defaults:\n  cache_type_k: q9', '2:17', /must be "f32", "f16", "bf16", .* or "q5_1"; got "q9"\.$/],
    ['port: 1\nport: 2', '2:1', /set twice/],
    ['security:\n\tinsecure: true', '2:1', /tab/],
    ['host: "x', '1:9', /not valid YAML: Missing closing/],
    ['host: a: b', '1:7', /share a line/],
    ['host: !x y', '1:7', /Tags/],
    ['host: *nope', '1:7', /alias.*is undefined/],
    ['port: 1\n---\nport: 2', '2:1', /second document/],
    ['port: &x [*x]', '1:1', /contain themselves/]
  ]
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
  for (const [typed, expected] of [
    ['prot', 'port'],
    ['PORT', 'port'],
    ['loglevel', 'log_level'],
    ['log-levle', 'log_level'],
    ['model_directory', 'models_directory'],
    ['colour', undefined],
    ['', undefined],
    ['x'.repeat(5000), undefined]
  ] as const) {
    t.equal(nearest(typed, names), expected, typed.slice(0, 20))
  }
  const commands = [
    'serve',
    'run',
    'pull',
    'pulls',
    'list',
    'ps',
    'top',
    'rm',
    'show',
    'config',
    'completion',
    'search'
  ]
  for (const [typed, expected] of [
    ['rum', 'run'],
    ['rn', 'rm'],
    ['rune', 'run'],
    ['searhc', 'search'],
    ['serach', 'search'],
    ['srve', 'serve'],
    ['pul', 'pull'],
    ['pulss', 'pulls'],
    ['lst', 'list'],
    ['tpo', 'top'],
    ['conf', 'config'],
    ['compl', 'completion'],
    ['x', undefined],
    ['zz', undefined],
    ['delete', undefined]
  ] as const) {
    t.equal(nearest(typed, commands), expected, typed)
  }
  t.equal(nearest('search', commands.slice(0, -1)), undefined, 'nothing is similar')
})
