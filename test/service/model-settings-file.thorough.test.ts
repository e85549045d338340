import { chmodSync, existsSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import pino from 'pino'
import t from 'tap'
import { loadConfig } from '../../core/config/load.ts'
import { startServer } from '../../core/http/server.ts'
import { LogLevels } from '../../core/system/log-levels.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { CAPITAL_QUESTION, type Corral, DEMO, startCorral } from '../support/corral.ts'
import { engineBuildFolder } from '../support/engine-build.ts'
import { refusedWith } from '../support/failure.ts'
import { Agent, fetch } from '../support/quick-fetch.ts'

// Settings of one model, read from the configuration file and written to it.

const ROUTE = '/api/models/settings'
const HEAD = `# how we run it
defaults: { temperature: 0 } # no luck involved

models:
  # the small one
  corral/tiny-chat:
    keep_alive: 10m # long enough
    options:
      num_ctx: 1024 # plenty
      num_parallel: 1
`

const configPath = ({ home }: Corral) => join(home, 'config.yaml')
const readConfig = (corral: Corral) => readFileSync(configPath(corral), 'utf8')
const read = async (corral: Corral) =>
  (await corral.json(`${ROUTE}?model=${DEMO}`, undefined, { local: true })).body as {
    settings: Record<string, any>
    revision: string
    section: string
    file: string
  }
const send = (corral: Corral, settings: unknown, revision: string, local = true) =>
  corral.json(ROUTE, { model: DEMO, settings, revision }, { method: 'PUT', local })

const corral = await startCorral(t, { config: HEAD })
const written = readConfig(corral)

t.test("settings are written to the model's section and take effect immediately", async t => {
  const { revision, settings, section, file } = await read(corral)
  t.strictSame(settings, { keep_alive: '10m', options: { num_ctx: 1024, num_parallel: 1 } })
  t.strictSame([section, file], [DEMO, configPath(corral)])
  const options = { num_ctx: 2048, max_tokens: 3 }
  const { status, body } = await send(corral, { keep_alive: '10m', aliases: ['me/small'], options }, revision)
  t.equal(status, 200, JSON.stringify(body))
  t.strictSame(
    body.applied.map(({ setting }: { setting: string }) => setting).sort(),
    ['aliases', 'options.max_tokens', 'options.num_ctx', 'options.num_parallel'].map(name => `models."${DEMO}".${name}`)
  )
  t.equal(
    readConfig(corral),
    written
      .replace('num_ctx: 1024 # plenty\n      num_parallel: 1', 'num_ctx: 2048 # plenty\n      max_tokens: 3')
      .replace('max_tokens: 3\n', 'max_tokens: 3\n    aliases: [me/small]\n'),
    'comments and everything else stay'
  )
  const answer = await corral.json('/api/chat', { model: 'me/small', messages: [CAPITAL_QUESTION], stream: false })
  t.match(answer, { status: 200, body: { eval_count: 3 } })
  const { models } = (await corral.json('/api/ps')).body
  t.match(models, [{ name: DEMO, context_length: 2048 }])
})

t.test('invalid settings are refused as at the start, and nothing is written', async t => {
  const before = readConfig(corral)
  const { settings, revision } = await read(corral)
  for (const [wrong, said] of [
    [{ keep_alive: 'soon' }, /keep_alive must be a duration/],
    [{ pin: 'yes' }, /pin must be true or false; got "yes"/],
    [{ options: { num_ctx: 'big', temperature: -7 } }, /num_ctx.*temperature/s],
    [{ aliases: ['two words'] }, /two words/],
    [{ draft: {} }, /draft.*model is missing/]
  ] as const) {
    const { status, body } = await send(corral, { ...settings, ...wrong }, revision)
    t.match([status, body.code, body.error], [409, 'invalid_config', said], JSON.stringify(wrong))
    t.notMatch(body.error, /config\.yaml:\d/, 'the lines are not in the file')
  }
  t.match(await corral.json(ROUTE, { model: DEMO, settings: [], revision }, { method: 'PUT', local: true }), {
    status: 400
  })
  const unknown = await corral.json(`${ROUTE}?model=no/body`, undefined, { local: true })
  t.match(unknown, { status: 404, body: { code: 'model_not_found' } })
  t.equal(readConfig(corral), before)
  t.strictSame((await read(corral)).settings, settings)
})

t.test('only one of several concurrent writes succeeds', async t => {
  const { settings, revision } = await read(corral)
  const replies = await Promise.all(
    ['1m', '2m', '3m'].map(keep_alive => send(corral, { ...settings, keep_alive }, revision))
  )
  t.strictSame(replies.map(({ status }) => status).sort(), [200, 409, 409])
  t.match(
    replies.filter(({ status }) => status === 409).map(({ body }) => body.code),
    ['settings_changed', 'settings_changed']
  )
  const now = await read(corral)
  t.equal(now.settings.keep_alive, ['1m', '2m', '3m'][replies.findIndex(({ status }) => status === 200)])

  // Somebody edits the file: changes elsewhere in it are kept, and changes to this model are not overwritten.
  writeFileSync(
    configPath(corral),
    readConfig(corral).replace('# how we run it', '# how we run it today\nlog_level: warn')
  )
  t.equal((await send(corral, { ...now.settings, keep_alive: '4m' }, now.revision)).status, 200)
  t.match(readConfig(corral), /run it today\nlog_level: warn.*keep_alive: 4m # long enough/s)
  const { revision: old } = await read(corral)
  writeFileSync(configPath(corral), readConfig(corral).replace('keep_alive: 4m', 'keep_alive: 5m'))
  t.match(await send(corral, {}, old), { status: 409, body: { code: 'settings_changed' } })
  t.match(readConfig(corral), /keep_alive: 5m/)
})

t.test('settings that reach into the machine cannot be changed over the network', async t => {
  const { settings, revision } = await read(corral)
  const before = readConfig(corral)
  const remote = await send(corral, { ...settings, environment: { LD_PRELOAD: '/tmp/x.so' } }, revision, false)
  t.match(remote, { status: 403 })
  t.equal(readConfig(corral), before)
  const local = await send(corral, { ...settings, environment: { CORRAL_TEST: '1' } }, revision)
  t.equal(local.status, 200)
  t.match(readConfig(corral), /environment:\n\s+CORRAL_TEST: "1"/)
})

t.test('a file that cannot be changed stays as it is', async t => {
  const good = readConfig(corral)
  const { settings, revision } = await read(corral)
  chmodSync(configPath(corral), 0o444)
  const { status, body } = await send(corral, { ...settings, pin: true }, revision)
  t.match([status, body], [409, { code: 'config_not_editable', error: /read-only|permission/i }])
  t.equal(readConfig(corral), good)
  chmodSync(configPath(corral), 0o640)
  writeFileSync(configPath(corral), `${good}\nprot: [\n`)
  t.match(await send(corral, settings, revision), refusedWith(409, 'invalid_config', /config\.yaml:\d/))
  const shared = good
    .replace('  # the small one\n', '  me/base: &base { preload: false }\n')
    .replace(`  ${DEMO}:\n`, `  ${DEMO}:\n    <<: *base\n`)
  writeFileSync(configPath(corral), shared)
  const merged = await read(corral)
  t.equal(merged.settings.preload, false)
  const { preload, ...others } = merged.settings
  t.match(await send(corral, others, merged.revision), refusedWith(409, 'config_not_editable', /anchor/))
  t.equal(readConfig(corral), shared)
  writeFileSync(configPath(corral), good)
  t.equal((await send(corral, { ...settings, pin: true }, revision)).status, 200)
  if (process.platform !== 'win32') t.equal(statSync(configPath(corral)).mode & 0o777, 0o640, 'its permissions stay')
})

t.test('a file is created in the data directory if there is none', async t => {
  const home = t.testdir()
  const env = { CORRAL_HOME: home, CORRAL_PORT: '0', CORRAL_LLAMA_CPP: engineBuildFolder() }
  const load = (file?: string, text?: string) =>
    loadConfig({ flags: {}, env, cwd: dirname(packageRoot), definitions: builtInPlugins, file, text })
  const logs = new LogLevels(pino({ level: 'silent' }))
  const server = await startServer({ config: await load(), definitions: builtInPlugins, logs, load })
  t.teardown(() => server.close())
  const agent = new Agent({ connect: { socketPath: server.socket! } })
  t.teardown(() => agent.destroy())
  const ask = async (method: string, path: string, body?: object) => {
    const headers = { 'content-type': 'application/json' }
    const more = body && { body: JSON.stringify(body), headers }
    return (await fetch(`http://localhost${path}`, { method, dispatcher: agent, ...more })).json() as Promise<any>
  }
  const path = join(home, 'config.yaml')
  const { file, settings, revision } = await ask('GET', `${ROUTE}?model=${DEMO}`)
  t.strictSame([file, settings, existsSync(path)], [path, {}, false])
  const wrong = await ask('PUT', ROUTE, { model: DEMO, settings: { pin: 1 }, revision })
  t.strictSame([wrong.code, existsSync(path)], ['invalid_config', false])
  const report = await ask('PUT', ROUTE, { model: DEMO, settings: { pin: true }, revision })
  t.match(report, { file: path, applied: [{ setting: `models."${DEMO}".pin`, to: true }] })
  t.equal(readFileSync(path, 'utf8'), `models:\n  ${DEMO}:\n    pin: true\n`)
  t.equal(statSync(path).mode & 0o777, 0o600)
})
