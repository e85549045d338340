import { chmodSync, chownSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { formatCounters } from '../../command-line/chat-session.ts'
import { CommandFailure, EXIT, exitCodeFor, explainFailure, Interrupted } from '../../command-line/command-failure.ts'
import { formatProcessor, formatRunning } from '../../command-line/commands/loaded-models.ts'
import { formatModel, formatModels, nextStep } from '../../command-line/commands/stored-models.ts'
import { formatTable, printable, relativeTime, wrapLines } from '../../command-line/output.ts'
import { nearestHarmless } from '../../command-line/program.ts'
import {
  clientAddress,
  planAddresses,
  readServerSettings,
  recordedAddress,
  type ServerSettings,
  toServerSettings
} from '../../command-line/server-address.ts'
import { ConfigError } from '../../core/config/config-error.ts'
import { loadConfig } from '../../core/config/load.ts'
import type { ConfigFlags } from '../../core/config/overrides.ts'
import { CorralError } from '../../core/errors.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { sample } from '../support/thorough.ts'
import { corral, newHome } from './command.ts'
import { loadingModel, localModel, runningModel, shownModel } from './records.ts'
import { scriptedServer } from './scripted-server.ts'
import { pattern, tables } from './tables.ts'
import { onTerminal } from './terminal.ts'

const NOW = new Date('2026-11-21T12:00:00.000Z')

t.test('relativeTime formats times relative to now', async t => {
  for (const [moment, text] of tables.relativeTime!) t.equal(relativeTime(moment, NOW), text, moment)
})

t.test('formatBytes is decimal and shows differences of 0.1 GB', async t => {
  for (const [bytes, text] of tables.formatBytes!) t.equal(formatBytes(bytes), text, `${bytes}`)
})

t.test('formatModels and formatRunning format tables', async t => {
  const model = localModel('a/b')
  t.equal(
    formatModels(
      [
        { ...model, name: 'a/old', modified_at: '2026-11-20T11:00:00.000Z' },
        { ...model, name: 'a/new' }
      ],
      NOW
    ),
    [
      'NAME     ID                SIZE    FORMAT    MODIFIED',
      'a/new    da5b44900113    4.1 MB    gguf      1 hour ago',
      'a/old    da5b44900113    4.1 MB    gguf      1 day ago'
    ].join('\n'),
    'newest first'
  )
  const running = runningModel('a/b')
  const loading = { ...loadingModel('c/d'), status: 'loading 42%' }
  t.equal(
    formatRunning({ models: [running], loading: [loading] }, NOW),
    [
      'NAME    ID              MEMORY    PROCESSOR    CONTEXT    CACHE HITS    UNTIL',
      'a/b     da5b44900113    4.1 MB    100% CPU        4096           75%    in 4 minutes',
      'c/d                                                                     loading 42%'
    ].join('\n')
  )
  const guessing = { ...running, speculation: { method: 'mtp', tokens_per_second: { none: 20.6, mtp: 38.2 } } }
  t.match(formatRunning({ models: [guessing], loading: [] }, NOW), /SPEED .*38 tokens\/s \(mtp\), 21 without +in/s)
  t.match(formatModels([{ ...model, size: 0 }], NOW), / unknown +gguf/, 'unknown size')
  t.equal(formatModels([], NOW), 'NAME    ID    SIZE    FORMAT    MODIFIED', 'titles alone')
  for (const [size, vram, text] of tables.formatProcessor!) t.equal(formatProcessor(size, vram), text)
})

t.test('formatTable keeps every cell whole', async t => {
  for (const [titles, rows, width, lines] of tables.formatTable!) {
    t.same(formatTable(titles, rows, width ?? undefined).split('\n'), lines)
  }
})

t.test('wrapLines breaks at words, below the second column', async t => {
  for (const [text, width, lines] of tables.wrapLines!) {
    t.same(wrapLines(text, width).split('\n'), lines)
    t.equal(wrapLines(text, Number.POSITIVE_INFINITY), text)
  }
})

t.test('formatModels fits 40 columns', async t => {
  const models = [localModel('a/b'), localModel('unsloth/a-model-with-a-rather-long-name:Q4')]
  const server = await scriptedServer(t, { 'GET /api/tags': reply => reply.end(JSON.stringify({ models })) })
  const terminal = onTerminal(t, ['list', ...server.flags], newHome(t), { columns: 40 })
  t.equal(await terminal.ended(), 0)
  t.match(terminal.screen(), /unsloth\/a-model-with-a-rather-long-name:Q4\r\n {2}ID da5b44900113 {3}SIZE 4.1 MB\r\n/)
  const piped = await corral(['list', ...server.flags], { home: newHome(t) })
  t.equal(piped.stdout.split('\n').length, 4, 'one line per model otherwise')
})

t.test('formatModel describes a model', async t => {
  const model = shownModel('a/b')
  const text = formatModel(
    {
      ...model,
      details: { ...model.details, family: 'llama\x1b[2J' },
      capabilities: ['completion', 'tools'],
      files: [{ path: 'm.gguf', size: 10, role: 'model', sha256: 'd' }],
      license: 'MIT\nPermission is hereby granted'
    },
    NOW
  )
  t.match(text, /architecture {2}llama\[2J$/m, 'control characters are removed')
  t.match(text, /license +MIT\n/, 'the first line of the licence')
  t.match(text, 'completion, tools')
  t.match(text, /m\.gguf {2}10 B {2}model/)
  t.notMatch(text, 'undefined')
  t.equal(printable('a\tb\nc\r\x1b]0;x\x07\u009b31m'), 'a\tb\nc]0;x31m')
})

t.test('nextStep suggests what a model can do', async t => {
  for (const [capabilities, suggested] of tables.nextStep!) t.equal(nextStep('o/m', capabilities), suggested)
})

t.test('planAddresses decides where to look for a server', async t => {
  for (const [origins, host, port, named, byFlag, local, usual] of tables.planAddresses!) {
    const plan = { named: named ?? undefined, byFlag, local, usual: usual ?? undefined }
    t.same(planAddresses({ host, port, origins }), plan, JSON.stringify([origins, host, port]))
  }
  t.equal(clientAddress('::', 1), 'http://[::1]:1')
  t.equal(clientAddress('[::1]', 1), 'http://[::1]:1')
  t.equal(recordedAddress('http://0.0.0.0:8080'), 'http://127.0.0.1:8080')
  t.equal(recordedAddress('http://[::]:8080'), 'http://[::1]:8080')
  t.equal(recordedAddress('http://127.0.0.1:0'), undefined, 'not listening yet')
  t.equal(recordedAddress(''), undefined)
})

t.test('readServerSettings agrees with the whole configuration', async t => {
  const folder = t.testdir()
  const read = async (yaml: string, env: Record<string, string> = {}, flags: ConfigFlags = {}) => {
    writeFileSync(join(folder, 'config.yaml'), yaml)
    const places = { flags, env: { CORRAL_HOME: folder, ...env }, cwd: folder }
    return {
      light: await readServerSettings(places),
      load: () => loadConfig({ ...places, definitions: builtInPlugins })
    }
  }
  for (const [yaml, env, flags] of tables.readServerSettings!) {
    const { light, load } = await read(yaml, env, flags)
    const whole = toServerSettings(await load())
    const told = ({ host, port, apiKey, paths }: ServerSettings) => [host, port, apiKey, paths.home, paths.ownerFile]
    t.same(told(light!), told(whole), yaml)
    t.same(planAddresses(light!), planAddresses(whole), yaml)
  }
  for (const [yaml, env, flags] of tables['readServerSettings leaves to the loader']!) {
    const { light, load } = await read(yaml, env, flags)
    t.equal(light, undefined, `${yaml} is left to the loader`)
    await t.rejects(load(), { name: 'ConfigError' })
  }
})

t.test('explainFailure returns messages and exit codes', async t => {
  for (const [error, exitCode, text] of [
    [new CommandFailure(EXIT.noServer, 'gone'), 3, 'gone'],
    [new CorralError('model_not_found', 'no'), 4, 'no'],
    [new CorralError('invalid_model_name', 'no'), 2, 'no'],
    [new CorralError('load_failed', 'no'), 1, 'no'],
    [new ConfigError([{ where: 'flag --port', message: 'bad' }]), 2, /flag --port {2}bad/],
    [new Error('taken'), 1, 'taken'],
    [new Interrupted(130), 130, undefined]
  ] as const) {
    const explained = explainFailure(error)
    t.equal(explained.exitCode, exitCode)
    if (text instanceof RegExp) t.match(explained.text, text)
    else t.equal(explained.text, text)
  }
  t.equal(exitCodeFor('model_not_loaded'), 4)
  t.equal(exitCodeFor(undefined), 1)
})

t.test('formatCounters formats token counts and speed', async t => {
  const text = formatCounters({
    total_duration: 3e9,
    prompt_eval_count: 20,
    prompt_eval_duration: 2e9,
    eval_count: 0,
    load_duration: 5e8
  })
  t.match(text, 'prompt   20 tokens in 2.00 s, 10.0 tokens/s')
  t.match(text, 'answer   0 tokens\n')
  t.match(text, 'loading  0.50 s')
})

t.test('errors start with what is wrong and end with what to do', async t => {
  const home = newHome(t)
  for (const [command, code, text] of sample(tables.errors!, 4)) {
    const ended = await corral(command.split(' '), { home })
    t.match(ended, { code, stdout: '', stderr: pattern(`error: ${text}\n`) }, command)
  }
  t.same(readdirSync(home), [], 'none of these started anything')
  t.match((await corral(['completion', '--help'], { home })).stdout, /print a script that completes commands/)
  t.match(
    (await corral(['capture', '--help'], { home })).stdout,
    /Nothing is captured until an admin starts a capture\./
  )
  t.match(
    (await corral(['key', '--help'], { home })).stdout,
    /After the last key is revoked, the server still requires one\./
  )
})

t.test('a typo is never corrected to a destructive command', async t => {
  const known = ['run', 'rm', 'stop', 'show', 'revoke', 'uninstall', 'cancel', 'drain', 'remove', 'list', 'rotate']
  for (const typed of ['rm', 'r', 'rmm', 'stpo', 'sto', 'revok', 'unistall', 'cancle', 'drian', 'remov', 'rotat']) {
    t.notMatch(nearestHarmless(typed, known) ?? '', /^(rm|stop|revoke|uninstall|cancel|drain|remove|rotate)$/, typed)
  }
  t.equal(nearestHarmless('rn', known), 'run')
})

t.test('a folder without permission is named in the error', { skip: process.getuid?.() !== 0 }, async t => {
  const home = newHome(t)
  chmodSync(home, 0o755)
  const data = join(home, 'data')
  mkdirSync(data)
  writeFileSync(join(data, 'owner.json'), '{}', { mode: 0o600 })
  chownSync(data, 12_345, 0)
  chmodSync(data, 0o700)
  const asNobody = { home, env: { CORRAL_HOME: data } }
  const ended = await corral(['list'], { ...asNobody, uid: 65_534 })
  t.equal(ended.code, 1)
  t.match(ended.stderr, `The data directory ${data} cannot be used (permission denied).`)
  t.match(ended.stderr, `It belongs to user 12345. Run: sudo -u 12345 corral list --home ${data}`)
  const logs = join(home, 'other')
  mkdirSync(logs)
  const denied = await corral(['list'], { home, env: { CORRAL_HOME: logs }, uid: 65_534 })
  t.match(
    denied.stderr,
    /^error: The log folder .*logs cannot be created \(permission denied\)\. Set CORRAL_HOME to a writable folder/
  )
})
