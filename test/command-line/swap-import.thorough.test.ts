import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { groupConflicts, groupsFor } from '../../command-line/swap/exclusion.ts'
import { expandMacros } from '../../command-line/swap/macros.ts'
import { convertSwapConfig } from '../../command-line/swap/swap-conversion.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { readServerCommand } from '../../runtimes/llama-server/server-command.ts'
import { splitCommand } from '../../runtimes/remote/programs/program-settings.ts'
import { CAPITAL_QUESTION, startCorral } from '../support/corral.ts'
import { engineBuildFolder } from '../support/engine-build.ts'
import { readCases } from '../support/fixture.ts'
import { corral, newHome } from './command.ts'

const DEMO_FILE = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const SCRIPT = join(packageRoot, 'test', 'fixtures', 'scripted-program.mjs')
const CASES = 'swap-cases.yaml'

const convert = (text: string) =>
  convertSwapConfig(text, { env: { WORD: 'a b', KEY: 's' }, folder: '/srv', exists: path => path.startsWith('/srv') })

t.test('macros are replaced as in llama-swap', async t => {
  const { macros, expanded, refused } = readCases<any>(CASES, 'macros')
  const expand = (value: unknown) => expandMacros(value, new Map(Object.entries(macros)), { HOME: '/home/me' }, 'it')
  for (const [value, expected] of expanded) t.strictSame(expand(value), expected, JSON.stringify(value))
  for (const [value, message] of refused) t.throws(() => expand(value), { message }, JSON.stringify(value))
})

t.test('readServerCommand turns arguments of llama-server into settings', async t => {
  for (const [command, expected] of readCases<[string, object][]>(CASES, 'serverCommands')) {
    t.match(readServerCommand(splitCommand(command), '/srv'), expected, command)
  }
})

t.test('models exclude each other as in llama-swap', async t => {
  type Case = { groups?: Record<string, unknown>; models: string; expected: string[] }
  for (const { groups = {}, models, expected } of readCases<Case[]>(CASES, 'exclusion')) {
    const found = groupsFor(models.split(' '), groupConflicts(groups).conflict).map(group => group.join(' '))
    t.strictSame(found, expected, JSON.stringify(groups))
  }
})

t.test('configurations of llama-swap become settings and notes', async t => {
  type Case = { title: string; config: object | string; expected?: object; notes?: string[]; error?: string }
  for (const { title, config, expected, notes = [], error } of readCases<Case[]>(CASES, 'configurations')) {
    const text = typeof config === 'string' ? config : JSON.stringify(config)
    if (error !== undefined) {
      t.throws(() => convert(text), { message: error }, title)
      continue
    }
    const result = convert(text)
    t.match(result, expected!, title)
    for (const note of notes) t.ok(result.notes.includes(note), `${title}: ${note}\n${result.notes.join('\n')}`)
  }
})

t.test('corral import --from llama-swap imports six models, which then answer', async t => {
  const home = newHome(t)
  const source = join(home, 'swap.yaml')
  const server = join(engineBuildFolder(), 'llama-server')
  const text = readFileSync(join(packageRoot, 'test', 'fixtures', 'six-swap-models.yaml'), 'utf8')
    .replaceAll('$demo', DEMO_FILE)
    .replaceAll('$server', server)
    .replaceAll('$node', process.execPath)
    .replaceAll('$script', SCRIPT)
  writeFileSync(source, text)
  const target = join(home, 'config.yaml')
  const existing = '# mine\nmodels:\n  llama-swap/small:\n    keep_alive: 7m # as I want it\n'
  writeFileSync(target, existing)
  const options = { home, env: { CORRAL_SWAP_WORD: 'one' } }
  const run = (...more: string[]) => corral(['import', '--from', 'llama-swap', source, ...more], options)

  const dry = await run('--dry-run')
  t.equal(dry.code, 0, dry.stderr)
  t.equal(readFileSync(target, 'utf8'), existing, 'a dry run changes nothing')
  t.match(dry.stderr, /would import .*tiny-chat-f16\.gguf as llama-swap\/small/)
  const { engines, models } = parse(dry.stdout)
  t.strictSame(Object.keys(engines), ['other-server', 'scripted'])
  t.strictSame(Object.keys(models), [
    'llama-swap/small',
    'team/second',
    'llama-swap/vectors',
    'someone/small-model-GGUF:Q4_K_M',
    'llama-swap/other-server',
    'llama-swap/scripted'
  ])
  for (const note of [
    /models\.llama-swap\/small\.keep_alive stays 7m\. llama-swap has -1\./,
    /models\.other-server\.cmd: It stays a command, because corral has no setting for its argument --tags\./,
    /models\.small: "small:fast" cannot be a name in corral/,
    /apiKeys: Create keys/,
    /peers: Add the models under remote\.models/,
    /somethingNew: It is unknown/
  ]) {
    t.match(dry.stderr, note)
  }
  t.notMatch(dry.stdout + dry.stderr, /secret-of-llama-swap/)

  const done = await run()
  t.equal(done.code, 0, done.stderr)
  t.match(done.stderr, /Saved to .*config\.yaml.*Restart corral.*\n.*corral pull someone\/small-model-GGUF:Q4_K_M/)
  t.equal(readFileSync(`${target}.bak`, 'utf8'), existing)
  const written = readFileSync(target, 'utf8')
  t.match(written, /^# mine\n.*keep_alive: 7m # as I want it/s)
  const again = await run()
  t.match(again, { code: 0, stderr: /already has all of these settings/ })
  t.equal(readFileSync(target, 'utf8'), written)

  const running = await startCorral(t, { home, config: written, env: options.env })
  const ask = async (model: string) => {
    const body = { model, messages: [CAPITAL_QUESTION], temperature: 0, max_tokens: 12 }
    const reply = await running.json('/v1/chat/completions', body)
    t.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body.choices[0].message.content as string
  }
  const loaded = async () => (await running.json('/api/ps')).body.models.map((each: any) => each.model).sort()
  const answer = await ask('gpt-4o-mini')
  t.match(answer, /Paris/)
  t.equal(await ask('other-server'), answer, 'the second llama-server answers like the own one')
  t.notOk((await loaded()).includes('llama-swap/small'), 'models of a group swap')
  t.match(await ask('scripted'), /^\d+ a file\.bin$/)
  t.equal(await ask('small'), answer)
  t.strictSame(await loaded(), ['llama-swap/scripted', 'llama-swap/small'])
  const vectors = await running.json('/v1/embeddings', { model: 'vectors', input: 'a' })
  t.equal(vectors.status, 200, JSON.stringify(vectors.body))
  t.ok((await loaded()).includes('llama-swap/scripted'), 'others stay')
  t.match(await running.json('/v1/chat/completions', { model: 'repository', messages: [CAPITAL_QUESTION] }), {
    status: 404
  })
})

t.test('corral import --from llama-swap reports what it cannot read', async t => {
  const home = newHome(t)
  const write = (text: string) => writeFileSync(join(home, 'config.yaml'), text)
  const table: [string, string[], RegExp][] = [
    ['models: { a: { pin: true } }', [], /it is not a configuration of llama-swap: no entry of "models" has a "cmd"/],
    ['models: [', [], /cannot be imported: line 1/],
    ['models: { a: { cmd: x } }', ['--all'], /imports a whole configuration/]
  ]
  for (const [text, more, message] of table) {
    write(text)
    const { code, stderr } = await corral(['import', '--from', 'llama-swap', ...more], { home })
    t.equal(code, 2, stderr)
    t.match(stderr, message)
  }
  const missing = await corral(['import', '--from', 'llama-swap', 'none.yaml'], { home })
  t.match(missing, { code: 2, stderr: /none\.yaml cannot be imported/ })
  t.match(await corral(['import', '--from', 'ollama', '--dry-run'], { home }), {
    code: 2,
    stderr: /--dry-run is for --from llama-swap/
  })
  t.notOk(existsSync(join(home, 'config.yaml.bak')))
})
