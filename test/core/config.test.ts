import { readFileSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { type ConfigError, formatProblems } from '../../core/config/config-error.ts'
import { describeConfig, formatConfig } from '../../core/config/config-text.ts'
import { CoreConfigSchema } from '../../core/config/core-schema.ts'
import { loadConfig } from '../../core/config/load.ts'
import type { ConfigFlags } from '../../core/config/overrides.ts'
import { changesBetween, LiveConfig, withoutRestarts } from '../../core/config/reloader.ts'
import { composeConfigSchema } from '../../core/config/setting-schema.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { renderDefaultConfig } from '../../scripts/default-config.ts'
import { readCases } from '../support/fixture.ts'
import { definitions, load, problemsOf } from './loaded-config.ts'

t.test('loadConfig without sources returns the defaults', async t => {
  const config = await load(t, {})
  t.equal(config.file, undefined)
  t.equal(config.core.port, 11435)
  t.equal(config.core.defaults.num_ctx, 4096)
  t.same(config.core.models, {})
  t.same(config.sections, {
    security: { origins: [], api_keys: [], insecure: false },
    runtimes: { llama_cpp: '' },
    extra: { enabled: true, pause: '5m', limit: '1MiB', inner: { depth: 3 }, ratio: 0.5, colour: 'a1', secrets: [] }
  })
  t.equal(config.origins.port, 'default')
  t.equal(config.origins['extra.inner.depth'], 'default')
  t.ok(Object.isFrozen(config.core) && Object.isFrozen(config.core.defaults) && Object.isFrozen(config.sections.extra))
  t.equal(config.paths.models, join(config.paths.home, 'models'))
})

t.test('flags override the environment, which overrides the file, which overrides defaults', async t => {
  const yaml = 'host: from.file\nport: 1\nlog_level: warn\nsecurity:\n  insecure: true\n'
  const env = { CORRAL_HOST: 'from.env', CORRAL_PORT: '2', CORRAL_LOG_LEVEL: '', CORRAL_API_KEYS: 'abc, def,,' }
  const config = await load(t, { yaml, env, flags: { port: '3' } })
  const { host, port, log_level, body_limit } = config.core
  t.same({ host, port, log_level, body_limit }, { host: 'from.env', port: 3, log_level: 'warn', body_limit: '64MiB' })
  t.same(config.sections.security, { origins: [], api_keys: ['abc', 'def'], insecure: true })
  t.match(config.origins, {
    home: 'env CORRAL_HOME',
    host: 'env CORRAL_HOST',
    port: 'flag --port',
    log_level: 'config.yaml:3:1',
    body_limit: 'default',
    'security.insecure': 'config.yaml:5:3',
    'security.api_keys': 'env CORRAL_API_KEYS'
  })
})

t.test('every variable and flag reaches its setting', async t => {
  type Case = [sources: Parameters<typeof load>[1], path: string, expected: unknown]
  for (const [sources, path, expected] of readCases<Case[]>('config-cases.yaml', 'sources')) {
    const found = path.split('.').reduce((value: any, key) => value[key], await load(t, sources))
    t.same(found, expected, JSON.stringify(sources))
  }
  t.equal((await load(t, { flags: { models: '~/m' } })).paths.models, join(homedir(), 'm'))
})

t.test('the configuration file is found, and its relative paths start at its folder', async t => {
  const cwd = t.testdir({
    'config.yaml': 'port: 1',
    other: { 'a.yaml': 'port: 2\nmodels_directory: stock\nruntimes: {llama_cpp: ../bin}', 'b.yaml': 'port: 3' },
    empty: {},
    home: { 'config.yaml': 'port: 4' }
  })
  const env = { CORRAL_HOME: 'home' }
  const from = (flags: ConfigFlags, extra: NodeJS.ProcessEnv, sub = '') =>
    loadConfig({ flags, env: { ...env, CORRAL_HOME: join(cwd, 'home'), ...extra }, cwd: join(cwd, sub), definitions })
  t.equal((await from({}, {})).core.port, 1, 'the working directory before the data directory')
  t.equal((await from({}, { CORRAL_CONFIG: '' }, 'empty')).core.port, 4, 'the data directory last')
  t.equal((await from({}, { CORRAL_CONFIG: 'other/b.yaml' })).core.port, 3)
  const named = await from({ config: 'other/a.yaml' }, { CORRAL_CONFIG: 'other/b.yaml' })
  t.equal(named.core.port, 2)
  t.equal(named.file, join(cwd, 'other/a.yaml'))
  t.equal(named.origins.port, `${join('other', 'a.yaml')}:1:1`)
  t.equal(named.paths.models, join(cwd, 'other/stock'), "a file's paths start at its folder")
  t.equal(named.sections.runtimes!.llama_cpp, join(cwd, 'bin'))
  const given = await from({ models: 'stock' }, { CORRAL_LLAMA_CPP: '../x' }, 'other')
  t.equal(given.paths.models, join(cwd, 'other/stock'), 'others start at the working directory')
  t.equal(given.sections.runtimes!.llama_cpp, join(cwd, 'x'))

  for (const [flags, extra, where, message] of [
    [{ config: 'nowhere.yaml' }, {}, 'flag --config', /nowhere\.yaml cannot be read: it does not exist\./],
    [{}, { CORRAL_CONFIG: 'nowhere.yaml' }, 'env CORRAL_CONFIG', /does not exist/],
    [{ config: 'other' }, {}, 'flag --config', /it is a folder/],
    [{ home: '' }, {}, 'flag --home', /home must be a path; got ""/]
  ] as const) {
    await t.rejects(from(flags, extra), { name: 'ConfigError', code: 'invalid_config', problems: [{ where, message }] })
  }
})

t.test('settings of the built-in plugins are checked', async t => {
  const problems = async (yaml: string) => {
    const cwd = t.testdir({ 'config.yaml': yaml })
    const env = { CORRAL_HOME: join(cwd, 'home'), CORRAL_CONFIG: 'config.yaml' }
    const sources = { flags: {}, env, cwd, definitions: builtInPlugins }
    const found = await loadConfig(sources).then(
      ({ unknown }) => unknown,
      (error: ConfigError) => error.problems
    )
    return found.map(({ message }) => message)
  }
  for (const [yaml, message] of readCases<[string, string | RegExp][]>('config-cases.yaml', 'pluginMistakes')) {
    t.match(await problems(yaml), [message], yaml)
  }
  for (const yaml of [
    'scheduler: {keep_alive: 9999h, fair_wait: 0, room_timeout: 0s}',
    'runtimes: {hang_timeout: 0, load_timeout: 500h}',
    'security: {hosts: [models.example.org, "fd00::1", my_host]}'
  ]) {
    t.same(await problems(yaml), [], yaml)
  }
})

t.test('paths of folders and programs of the built-in plugins are resolved', async t => {
  const cwd = t.testdir({ other: { 'a.yaml': 'runtimes: {llama_cpp: ../bin}\nconversion: {python: ./venv/python}' } })
  const load = (flags: ConfigFlags) =>
    loadConfig({ flags, env: { CORRAL_HOME: join(cwd, 'home') }, cwd, definitions: builtInPlugins })
  const { sections } = await load({ config: 'other/a.yaml' })
  t.equal(sections.runtimes!.llama_cpp, join(cwd, 'bin'))
  t.equal(sections.conversion!.python, join(cwd, 'other/venv/python'))
  t.equal((await load({ llamaCpp: 'bin' })).sections.runtimes!.llama_cpp, join(cwd, 'bin'))
  writeFileSync(join(cwd, 'config.yaml'), 'conversion: {python: python3.12}')
  t.equal((await load({ config: 'config.yaml' })).sections.conversion!.python, 'python3.12', 'looked up on the PATH')
})

t.test('secrets are never printed', async t => {
  const secret = 'hush-hush'
  for (const yaml of readCases<string[]>('config-cases.yaml', 'secrets')) {
    const text = formatProblems(await problemsOf(t, { yaml }))
    t.match(text, 'config.yaml:', JSON.stringify(yaml))
    t.notMatch(text, secret, JSON.stringify(yaml))
  }
  const config = await load(t, { yaml: `security:\n  api_keys: [${secret}, ${secret}2]` })
  const described = describeConfig(config, definitions)
  t.notMatch(JSON.stringify(described), secret)
  t.notMatch(formatConfig(described), secret)
  t.match(
    described.settings.find(({ name }) => name === 'security.api_keys'),
    {
      value: ['(hidden)', '(hidden)'],
      origin: 'config.yaml:2:3'
    }
  )
})

t.test('empty values, aliases and anchors of YAML are supported', async t => {
  const yaml = `
defaults: &base
  num_ctx: 2048
  num_predict: 7
  Temperature_Of_Engine: 1
  seed:
models:
  a/b:
    options:
      <<: *base
      num_gpu: 3
      cache_type_k: q8_0
  c/d:
security:
port:
`
  const config = await load(t, { yaml })
  t.equal(config.core.port, 11435, 'a setting without a value counts as not set')
  t.same(config.sections.security, { origins: [], api_keys: [], insecure: false })
  t.match(config.core.defaults, { num_ctx: 2048, max_tokens: 7, seed: -1, Temperature_Of_Engine: 1 })
  t.notOk('num_predict' in config.core.defaults, 'an alias becomes its canonical name')
  t.match(config.core.models['a/b']?.options, { num_ctx: 2048, n_gpu_layers: 3, cache_type_k: 'q8_0' })
  t.match(config.origins, {
    'defaults.num_ctx': 'config.yaml:3:3',
    'defaults.max_tokens': 'config.yaml:4:3',
    'defaults.top_p': 'default',
    'models."a/b".options.num_ctx': 'config.yaml:3:3',
    'models."a/b".options.n_gpu_layers': 'config.yaml:11:7'
  })
  t.match(await problemsOf(t, { yaml: 'defaults: &b\n  num_ctx: x\nmodels:\n  a/b:\n    options: *b' }), [
    { where: 'config.yaml:2:12', setting: 'defaults.num_ctx' },
    { where: 'config.yaml:2:12', setting: 'models."a/b".options.num_ctx' }
  ])
  for (const empty of ['', '# nothing\n', '---\n', '\uFEFFport: 11435']) {
    t.equal((await load(t, { yaml: empty })).core.port, 11435, JSON.stringify(empty))
  }
})

t.test('config show lists settings with their origins', async t => {
  const config = await load(t, { yaml: 'port: 8080\nmodels:\n  a/b: {pin: true}\n', env: { CORRAL_HOST: '::1' } })
  const described = describeConfig(config, definitions)
  t.equal(described.file, config.file)
  t.same(described.settings[0], { name: 'home', value: config.paths.home, origin: 'env CORRAL_HOME' })
  const byName = Object.fromEntries(described.settings.map(({ name, ...rest }) => [name, rest]))
  t.same(byName.port, { value: 8080, origin: 'config.yaml:1:1' })
  t.same(byName['models."a/b".pin'], { value: true, origin: 'config.yaml:3:9' })
  t.same(byName['extra.enabled'], { value: true, origin: 'default' })
  t.equal(new Set(described.settings.map(({ name }) => name)).size, described.settings.length)
  const text = formatConfig(described)
  t.match(text, `Configuration file: ${config.file}`)
  t.match(text, /\nport +8080 +config\.yaml:1:1\n/)
  t.match(text, /\nhost +"?::1"? +env CORRAL_HOST\n/)
  t.match(text, /\nsecurity\.origins +\[\] +default\n/)
  t.match(formatConfig(describeConfig(await load(t, {}), definitions)), /^No configuration file was found/)
})

t.test('the rendered file contains every default', async t => {
  const config = await load(t, { yaml: renderDefaultConfig(definitions) })
  const defaults = await load(t, {})
  t.same(config.core, defaults.core)
  t.same(config.sections, defaults.sections)
  for (const [name, origin] of Object.entries(config.origins)) {
    if (name !== 'home') t.match(origin, /^config\.yaml:\d+:\d+$/, `${name} is in the file`)
  }
})

t.test('the shipped config.yaml is up to date and contains exactly the defaults', async t => {
  const path = join(packageRoot, 'config.yaml')
  t.equal(readFileSync(path, 'utf8'), renderDefaultConfig(builtInPlugins), 'run "npm run config:write"')
  const from = (flags: ConfigFlags) =>
    loadConfig({ flags, env: { CORRAL_HOME: '/nowhere' }, cwd: t.testdir({}), definitions: builtInPlugins })
  const [shipped, defaults] = [await from({ config: path }), await from({})]
  t.equal(defaults.file, undefined)
  t.same(shipped.core, defaults.core)
  t.same(shipped.sections, defaults.sections)
  t.same(
    Object.entries(shipped.origins)
      .filter(([, origin]) => origin === 'default')
      .map(([name]) => name),
    [],
    'every setting is in the file'
  )
})

t.test('the schemas of all settings compile and accept their own defaults', async t => {
  // Checked like outside plugins, since the defaults of corral's own settings are not checked at runtime.
  const core = { name: 'core', api: 1, description: '', options: CoreConfigSchema, setup: () => ({}) } as const
  const { root, check } = composeConfigSchema([core, ...builtInPlugins].map(plugin => ({ ...plugin, builtIn: false })))
  const values: Record<string, unknown> = {}
  t.same(check(values), [])
  t.same(Object.keys(values), Object.keys(root.properties!))
  t.match(values.core, { port: 11435 })
})

const { root } = composeConfigSchema(definitions)

const onlyExtra = { canReload: (name: string) => name === 'extra', isRenewed: () => false }

t.test('changesBetween lists the differences between two configurations', async t => {
  const before = await load(t, {
    yaml: `
port: 1
models: { a/b: { pin: true, options: { num_ctx: 512 } }, c/d: { lora: [{ path: x.gguf }] } }
defaults: { mirostat: 1 }
extra: { pause: 1m, secrets: [old] }
`
  })
  const after = await load(t, {
    yaml: `
host: other.example
models: { a/b: { pin: true, options: { num_ctx: 1024 } }, e/f: {} }
security: { api_keys: [secret] }
extra: { pause: 2m, secrets: [new], enabled: false }
limits: { reader_stall: 1m }
`
  })
  const changes = changesBetween(root, before, after, onlyExtra)
  const listed = changes.map(({ name, from, to, isSecret, restart }) => {
    return `${name} ${isSecret ? '(secret)' : `${JSON.stringify(from)} ${JSON.stringify(to)}`}${restart ? ' restart' : ''}`
  })
  t.same(listed.sort(), [
    'defaults.mirostat 1 undefined',
    'extra.enabled true false restart',
    'extra.pause "1m" "2m"',
    'extra.secrets (secret)',
    'host "127.0.0.1" "other.example" restart',
    'limits.reader_stall "60s" "1m"',
    'models."a/b".options.num_ctx 512 1024',
    `models."c/d".lora ${JSON.stringify(before.core.models['c/d']!.lora)} undefined`,
    'port 1 11435 restart',
    'security.api_keys (secret) restart'
  ])

  const next = withoutRestarts(after, changes)
  t.match(next.core, { host: '127.0.0.1', port: 1, limits: { reader_stall: '1m' } })
  t.same(next.core.models, after.core.models)
  t.match(next.sections, { security: { api_keys: [] }, extra: { pause: '2m', enabled: true, secrets: ['new'] } })
  t.ok(Object.isFrozen(next.core) && Object.isFrozen(next.sections.extra))
  t.same(
    changesBetween(root, next, after, onlyExtra).map(({ name }) => name),
    ['host', 'port', 'security.api_keys', 'extra.enabled'],
    'settings that need a restart continue to differ'
  )
  const found = changesBetween(root, after, after, onlyExtra)
  t.same(found, [])
})

t.test('the view of a live configuration returns the current values', async t => {
  const [before, after] = [await load(t, { yaml: 'port: 1\n' }), await load(t, { yaml: 'limits: { n: 1 }\n' })]
  const live = new LiveConfig(before)
  const { core } = live.view
  t.same({ ...core }, before.core)
  live.current = after
  t.same({ ...core }, after.core)
  t.equal(core.limits, after.core.limits, 'without copying them')
  t.throws(() => Object.assign(core, { port: 2 }))
})
