import { mkdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import pino from 'pino'
import t from 'tap'
import { loadConfig } from '../../core/config/load.ts'
import { startServer } from '../../core/http/server.ts'
import { definePlugin, type PluginDefinition, type PluginOffer } from '../../core/plugins/plugin.ts'
import { LogLevels } from '../../core/system/log-levels.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import type { JsonSchema } from '../../core/system/schema-check.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { startTestCorral } from '../../testing/test-corral.ts'
import { alive, CAPITAL_QUESTION, DEMO, endless, startCorral, until } from '../support/corral.ts'
import { refusedWith } from '../support/failure.ts'
import { thorough } from '../support/thorough.ts'

const chat = { model: DEMO, messages: [CAPITAL_QUESTION], stream: false }

/** Most tests share this server. */
const corral = await startCorral(t)

/** Reads the configuration again, after a new one is written if it is given. */
async function reload(config?: string) {
  if (config !== undefined) corral.configure(config)
  return await corral.json('/api/reload', undefined, { method: 'POST', local: true })
}

const answered = async (server = corral) => (await server.json('/api/chat', chat)).body
/** The loaded models, also when keys are required. */
const loaded = async () => (await corral.json('/api/ps', undefined, { local: true })).body.models

t.test('a reload applies changes immediately and names settings that need a restart', async t => {
  await reload('defaults: { max_tokens: 3, temperature: 0 }\n')
  t.match(await answered(), { eval_count: 3 })
  const changed = await reload(
    `defaults: { max_tokens: 4, temperature: 0 }\nport: 9\nhost: 127.0.0.9\nlimits: { n: 2 }\nhub: {}\n`
  )
  t.equal(changed.status, 200)
  t.strictSame(changed.body.applied, [
    { setting: 'defaults.max_tokens', from: 3, to: 4 },
    { setting: 'limits.n', from: 128, to: 2 }
  ])
  t.strictSame(changed.body.restart, [{ setting: 'host', from: '127.0.0.1', to: '127.0.0.9' }])
  t.strictSame(changed.body.overridden, [{ setting: 'port', by: 'flag --port' }], 'a flag overrides the file')
  t.match(changed.body.unknown, [{ where: /config\.yaml:5:1$/, message: /no setting "hub"/ }])
  t.match(await answered(), { eval_count: 4 })
  const many = await corral.json('/v1/chat/completions', { ...chat, n: 3 })
  t.match(many, { status: 400, body: { error: { code: 'over_limit' } } })

  const again = await reload(`defaults: { max_tokens: 4, temperature: 0 }\nport: 9\nhost: 127.0.0.9\n`)
  t.strictSame(again.body.applied, [{ setting: 'limits.n', from: 2, to: 128 }], 'a removed setting has its default')
  t.strictSame(again.body.restart.length, 1, 'settings that need a restart are still listed')
  t.strictSame(again.body.overridden, [], 'settings without effect are reported once')
  const back = await reload(`defaults: { max_tokens: 4, temperature: 0 }\n`)
  t.match(back.body, { applied: [], restart: [], unknown: [] })
})

t.test('an invalid file is refused with its line, and the old settings stay', async t => {
  await reload('defaults: { max_tokens: 3 }\n')
  const path = join(corral.home, 'config.yaml')
  const refused = async (what: string, { line, column }: { line?: number; column?: number } = {}) => {
    const { status, body } = await reload()
    t.match({ status, body }, { status: 409, body: { code: 'invalid_config' } }, what)
    t.match(body.error, /The settings stay as they were/)
    if (line) t.match(body.problems[0], { file: path, line, column })
    t.match(await answered(), { eval_count: 3 }, `${what}: nothing has changed`)
    return body
  }
  writeFileSync(path, 'defaults:\n  max_tokens: 5\n  top_p: many\nlimits: { n: 2 }\n')
  await refused('a wrong value', { line: 3, column: 10 })
  writeFileSync(path, 'defaults: { max_tokens: 7 }\nmodels: {"')
  await refused('half a file', { line: 2, column: 11 })
  writeFileSync(path, Buffer.from([0xff, 0xfe, 0]))
  await refused('no text')
  rmSync(path)
  t.match(await refused('no file'), { error: /it does not exist/ })
  t.match(corral.log(), /top_p must be/)
  t.match(corral.log(), /"level":50/)
})

/** A second model, with the files of the first. */
async function withSecond(): Promise<string> {
  const path = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
  t.equal((await corral.json('/api/import', { path, model: 'me/two' }, { local: true })).status, 200)
  return 'me/two'
}

/** Process ids of engines by model name. */
function pidsByModel(): Record<string, number> {
  const loads = corral.log().matchAll(/"pid":(\d+)[^\n]*"msg":"loaded ([^"]+)"/g)
  return Object.fromEntries(
    [...loads].map(([, pid, name]) => [name!, Number(pid)]).filter(([, pid]) => alive(pid as number))
  )
}

t.test('a reload under load breaks no answer, and reloads only models whose settings changed', async t => {
  const limits = 'models: { corral/tiny-chat: { options: { num_parallel: 8, num_ctx: 1024 } } }\n'
  await reload(limits)
  const second = await withSecond()
  await corral.json('/api/load', { model: DEMO }, { local: true })
  await corral.json('/api/load', { model: second }, { local: true })
  const before = pidsByModel()
  t.equal(Object.keys(before).length, 2)
  const stream = (model: string) => corral.events('/api/chat', endless(model, { max_tokens: 150, num_ctx: 1024 }))
  const streams = Array.from({ length: 8 }, (_, at) => stream(at % 2 ? DEMO : second))
  for (let round = 0; round < 6; round++) {
    const { body } = await reload(`${limits}limits: { n: ${1 + (round % 2)} }\n`)
    t.equal(body.applied?.length, 1)
  }
  const other = limits.replace('1024', '512')
  await reload(other)
  const late = answered()
  for (const events of await Promise.all(streams)) t.match(events.at(-1), { done: true, eval_count: 150 })
  t.match(await late, { done: true })
  const after = pidsByModel()
  t.equal(after[second], before[second], 'the untouched one')
  t.not(after[DEMO], before[DEMO], 'the one with other settings')
  const running = await loaded()
  t.match(
    running.find(({ name }: { name: string }) => name === DEMO),
    { context_length: 512 }
  )
  await corral.json('/api/delete', { model: second }, { method: 'DELETE', local: true })
})

t.test('a reload applies aliases, keep_alive, memory and log levels', async t => {
  await reload('')
  await corral.json('/api/load', { model: DEMO }, { local: true })
  const before = pidsByModel()
  t.equal((await corral.json('/api/chat', { ...chat, model: 'my/helper' })).status, 404)
  t.notMatch(corral.log(), /"level":20/)
  const { body } = await reload(
    `log_level: debug\nmodels: { corral/tiny-chat: { aliases: [my/helper], keep_alive: 1h } }\n`
  )
  t.equal(body.applied.length, 3)
  t.equal((await corral.json('/api/chat', { ...chat, model: 'my/helper' })).status, 200)
  await until('debug messages are logged', () => /"level":20/.test(corral.log()))
  t.same(pidsByModel(), before, 'neither needs another engine')
  const [{ expires_at }] = await loaded()
  t.ok(Date.parse(expires_at) - Date.now() > 3_000_000, 'an hour')

  await reload('scheduler: { memory: 1MiB }\n')
  await until('models over the budget are unloaded', () => corral.enginePids().length === 0)
  t.match(await answered(), { code: 'insufficient_memory' })
  await reload('models: { corral/tiny-chat: { preload: true } }\n')
  await until('it is loaded in advance', () => DEMO in pidsByModel())
  t.match(await answered(), { done: true })
})

t.test('a model whose settings change during its load is loaded with the new ones', thorough, async t => {
  const fresh = await startCorral(t)
  const answer = answered(fresh)
  await until('it loads', () => /loading corral\/tiny-chat/.test(fresh.log()))
  await fresh.reload('defaults: { num_ctx: 1024 }\n')
  t.match(await answer, { done: true })
  t.match((await fresh.json('/api/ps')).body.models, [{ context_length: 1024 }])
})

t.test('the default model answers only requests that name no model', async t => {
  await reload('defaults: { max_tokens: 3, temperature: 0 }\n')
  const messages = [CAPITAL_QUESTION]
  const requests: [path: string, body: object][] = [
    ['/v1/chat/completions', { messages }],
    ['/v1/chat/completions', { messages, model: null }],
    ['/v1/completions', { prompt: 'Paris' }],
    ['/v1/responses', { input: 'Paris' }],
    ['/completion', { prompt: 'Paris' }],
    ['/tokenize', { content: 'Paris' }]
  ]
  for (const [path, body] of requests) t.equal((await corral.send(path, body)).status, 400, `${path} without one`)
  await reload('defaults: { max_tokens: 3, temperature: 0 }\ndefault_model: corral/tiny-chat\n')
  for (const [path, body] of requests) t.equal((await corral.send(path, body)).status, 200, `${path} with one`)
  const { body } = await corral.json('/v1/chat/completions', { messages })
  t.equal(body.model, DEMO, 'the answer names the model')
  const missing = await corral.json('/v1/chat/completions', { messages, model: 'gpt-4o' })
  t.match(missing, { status: 404, body: { error: { code: 'model_not_found' } } })
  t.equal((await corral.send('/v1/chat/completions', { messages, model: '' })).status, 400, 'a name is required')
})

t.test('outside plugins take, refuse or fail on new options', thorough, async t => {
  const taken: unknown[] = []
  let says = (_size: number): void => undefined
  const plugin = (name: string, offer: object): PluginDefinition =>
    definePlugin({
      name,
      api: 1,
      optional: true,
      options: {
        type: 'object',
        properties: { size: { type: 'integer', default: 1 }, fixed: { type: 'integer', default: 1, restart: true } }
      },
      setup: () => offer
    })
  const corral = await startTestCorral({
    config: 'security: { api_keys: [admin-of-the-test] }\n',
    plugins: [
      plugin('takes', { reload: (options: unknown) => void taken.push(options) }),
      plugin('wary', {
        check: ({ size }: { size: number }) => {
          if (size > 8) throw new Error('8 is the maximum')
        },
        reload: ({ size }: { size: number }) => says(size)
      }),
      plugin('still', {})
    ]
  })
  t.teardown(() => corral.close())
  const reloadWith = async (config: string) => {
    writeFileSync(join(corral.home, 'config.yaml'), `security: { api_keys: [admin-of-the-test] }\n${config}\n`)
    const headers = { authorization: 'Bearer admin-of-the-test' }
    const reply = await fetch(`${corral.url}/api/reload`, { method: 'POST', headers })
    return { status: reply.status, body: (await reply.json()) as any }
  }
  const done = await reloadWith('takes: { size: 2, fixed: 2 }\nstill: { size: 2 }')
  t.match(done, {
    status: 200,
    body: { applied: [{ setting: 'takes.size' }], restart: [{ setting: 'takes.fixed' }, { setting: 'still.size' }] }
  })
  t.same(taken, [{ enabled: true, size: 2, fixed: 1 }])

  const refused = await reloadWith('takes: { size: 3 }\nwary: { size: 9 }')
  t.match(refused, refusedWith(500, 'reload_failed', /"wary" does not accept .*: 8 is the maximum/))
  t.equal(taken.length, 1, 'no plugin gets new options')

  says = size => {
    if (size === 7) throw new Error('seven')
  }
  const failed = await reloadWith('takes: { size: 4 }\nwary: { size: 7 }')
  t.match(failed, refusedWith(500, 'reload_failed', /seven.*The previous settings are in effect again/))
  t.match(taken.slice(1), [{ size: 4 }, { size: 2 }], 'the others keep their options')

  says = size => {
    throw new Error(`not even ${size}`)
  }
  const stuck = await reloadWith('wary: { size: 6 }')
  t.match(stuck, { status: 500, body: { error: /except those of wary: restart the server/ } })
})

t.test('a watched file is read again after any kind of write', thorough, async t => {
  const head = 'watch_config: true\n'
  const corral = await startCorral(t, { config: head })
  const path = join(corral.home, 'config.yaml')
  const inForce = (line: string | RegExp) => until(String(line), () => corral.log().match(line))
  corral.configure(`${head}limits: { n: 2 }\n`)
  await inForce(/limits\.n: 128 → 2/)
  writeFileSync(`${path}.new`, `${head}limits: { n: 3 }\n`)
  renameSync(`${path}.new`, path)
  await inForce(/limits\.n: 2 → 3/)
  writeFileSync(path, `${head}limits: { n: `)
  await inForce(/config\.yaml:2:.*The settings stay as they were/)
  rmSync(path)
  await inForce(/it does not exist/)
  mkdirSync(path)
  await inForce(/it is a folder/)
  rmSync(path, { recursive: true })
  symlinkSync(`${path}.other`, path)
  writeFileSync(`${path}.other`, `${head}limits: { n: 4 }\n`)
  await inForce(/limits\.n: 3 → 4/)
  writeFileSync(`${path}.other`, 'limits: { n: 5 }\n')
  await inForce(/watch_config: true → false/)
  writeFileSync(`${path}.other`, 'limits: { n: 6 }\n')
  corral.process.kill('SIGHUP')
  await inForce(/limits\.n: 5 → 6/)
  t.equal((await corral.send('/api/health')).status, 200)
})

t.test('built-in plugins reload every setting except those marked for a restart in config.yaml', async t => {
  const offers = new Map<string, PluginOffer>()
  const definitions = builtInPlugins.map((plugin): PluginDefinition => {
    return {
      ...plugin,
      async setup(context, options) {
        const offer = await plugin.setup(context, options)
        offers.set(plugin.name, offer)
        return offer
      }
    }
  })
  const home = t.testdir({ 'config.yaml': 'runtimes: { sources: [] }\n' })
  const env = { CORRAL_HOME: home, CORRAL_PORT: '0' }
  const config = await loadConfig({ flags: {}, env, cwd: home, definitions })
  const server = await startServer({ config, definitions, logs: new LogLevels(pino({ level: 'silent' })) })
  t.teardown(() => server.close())
  for (const { name, options } of builtInPlugins) {
    const { restart = false, properties = {} } = options as JsonSchema
    const settings = Object.values(properties)
    if (settings.length === 0) continue
    const isLive = !restart && settings.some(setting => !setting.restart)
    t.equal(isLive, offers.get(name)?.reload !== undefined, name)
  }
})

// This test comes last, because every request needs a key once there is one.
t.test('a reload applies keys, origins and hosts', async t => {
  await reload('security: { api_keys: [first-key-of-the-list, second-key] }\n')
  const as = (key: string) => ({ headers: { authorization: `Bearer ${key}` } })
  // The stream may end before the reload has answered, so it is awaited from the start.
  const stream = corral.events('/api/chat', endless(DEMO), as('second-key')).catch(error => [{ error: String(error) }])
  await until('it runs', async () => (await loaded())[0]?.running === 1)
  const { body } = await reload(
    'security: { api_keys: [third-key-of-the-list], origins: ["https://a.example"], hosts: [b.example] }\n'
  )
  t.strictSame(body.applied.at(-1), { setting: 'security.api_keys', secret: true }, 'no key is shown')
  t.notMatch(JSON.stringify(body), /third-key/)
  t.notMatch(corral.log(), /third-key|second-key/)
  t.match((await stream).at(-1), { error: /removed from the configuration|terminated/ }, 'its answers end')
  t.equal((await corral.send('/api/tags', undefined, as('second-key'))).status, 401)
  t.equal((await corral.send('/api/tags', undefined, as('third-key-of-the-list'))).status, 200)
  const origin = (name: string) => ({ headers: { ...as('third-key-of-the-list').headers, origin: name } })
  t.equal((await corral.send('/api/tags', undefined, origin('https://a.example'))).status, 200)
  t.equal((await corral.send('/api/tags', undefined, origin('https://c.example'))).status, 403)

  await reload('')
  t.equal((await corral.send('/api/tags')).status, 401, 'a key is still required')
  const wrong = await reload('security: { trusted_proxies: ["300.1"] }\nlimits: { n: 1 }\n')
  t.match(wrong, { status: 409, body: { code: 'invalid_config', error: /trusted_proxies/ } })
  const many = { ...chat, n: 2, max_tokens: 1 }
  t.equal((await corral.json('/v1/chat/completions', many, { local: true })).status, 200, 'none of it applies')
})
