import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  chmodSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync
} from 'node:fs'
import { delimiter, join } from 'node:path'
import { parse as parseJson } from 'jsonc-parser'
import t, { type Test } from 'tap'
import {
  AGENTS,
  agentModels,
  chooseModel,
  contextProblem,
  formatCommand,
  type LaunchFacts,
  planLaunch
} from '../../command-line/launch/agents.ts'
import { applyChanges, type ChangedFile, formatDiff, undoChanges } from '../../command-line/launch/settings-edit.ts'
import { alive, until } from '../support/corral.ts'
import { sample, thorough } from '../support/thorough.ts'
import { type CommandOptions, commandEnvironment, corral, MAIN, newHome, writeScript } from './command.ts'
import { localModel } from './records.ts'
import { type Answer, refuse, scriptedServer } from './scripted-server.ts'
import { fixture, tables } from './tables.ts'
import { ENTER, onTerminal } from './terminal.ts'

const FACTS = tables.launchFacts as unknown as LaunchFacts
const LINUX = { env: {}, platform: 'linux' as const, read: () => undefined }

t.test('each agent gets its variables, arguments and files', async t => {
  const plans = Object.entries(AGENTS).map(([name, agent]) => [name, planLaunch(agent, FACTS, LINUX)])
  // undefined, which removes a variable, becomes null.
  const written = JSON.parse(JSON.stringify(Object.fromEntries(plans), (_, value) => value ?? null))
  t.strictSame(written, JSON.parse(fixture('launch-plans.json')))
  for (const [name, { args, own }] of plans as [string, ReturnType<typeof planLaunch>][]) {
    t.notMatch(JSON.stringify([args, own]), 'sesame', `${name} gets the key neither as an argument nor in a file`)
  }
})

t.test('agents follow the places and settings of the user', async t => {
  const fileOf = (name: string, platform: NodeJS.Platform, env = {}) =>
    planLaunch(AGENTS[name]!, FACTS, { ...LINUX, platform, env }).changes!.file
  for (const [name, platform, env, file] of tables.launchFiles!) t.equal(fileOf(name, platform, env), file)

  const small = planLaunch(AGENTS.claude!, { ...FACTS, context: 65_536 }, LINUX).env
  t.match(small, { CLAUDE_CODE_MAX_CONTEXT_TOKENS: '65536', CLAUDE_CODE_AUTO_COMPACT_WINDOW: undefined })

  const theirs = 'name: mine # a comment\nrules: [Be brief]\nmodels: [{ name: other }]\n'
  const read = (path: string) => (path === '/home/me/.continue/config.yaml' ? theirs : undefined)
  const [config] = Object.values(planLaunch(AGENTS.continue!, FACTS, { ...LINUX, read }).own)
  t.match(JSON.parse(config!), { name: 'mine', rules: ['Be brief'], models: [{ name: 'corral' }, { name: 'other' }] })
})

t.test('a model must have tools and a context for the first prompt', async t => {
  const model = (name: string, capabilities: string[], context: number, more = {}) =>
    agentModels(
      [{ ...localModel(name), capabilities, ...more }],
      [{ id: name, max_input_tokens: context, max_tokens: context, status: { value: 'unloaded' } }]
    )[0]!
  const needs = { title: 'Claude Code', minContext: 32_768 }
  const all = ['completion', 'tools']
  const old = model('a/old', all, 40_960)
  const later = model('a/new', all, 131_072, { modified_at: '2026-11-25T11:00:00.000Z' })
  const plain = model('a/plain', ['completion'], 131_072)
  const short = model('a/short', all, 8192)
  t.match(old, { answer: 10_240, tools: true, images: false })
  t.equal(later.answer, 32_000)
  t.strictSame(agentModels([localModel('a/unlisted')], []), [])
  const names = (found: object) =>
    'models' in found ? (found.models as { name: string }[]).map(({ name }) => name) : found
  t.same(names(chooseModel([old, plain, later, short], needs)), ['a/new', 'a/old'])
  t.same(names(chooseModel([{ ...old, loaded: true }, later], needs)), ['a/old', 'a/new'])
  t.same(names(chooseModel([plain], { ...needs, needsTools: false })), ['a/plain'])
  t.match(chooseModel([plain], needs), { problem: /^No model on this server can call tools.* corral pull / })
  t.match(chooseModel([plain, later], needs, 'a/plain'), { problem: /^"a\/plain" cannot call tools/ })
  t.match(chooseModel([plain, short], needs), { small: { name: 'a/short' } })
  t.match(contextProblem({ ...short, trained: 8192 }, needs), /trained for 8192\. Get one with: corral pull/)
  t.match(contextProblem({ ...short, trained: 65_536 }, needs), /has 8192\. Set models\."a\/short"\.options\.num_ctx/)
  t.equal(formatCommand({}, ['code', "it's"]), "code 'it'\\''s'")
})

/** The changes and the record of a launch of an agent that changes a file. */
function change(text: string | undefined, name: string, model = 'me/coder', earlier?: ChangedFile) {
  const { list } = planLaunch(AGENTS[name]!, { ...FACTS, model }, LINUX).changes!
  const base = earlier ? undoChanges(text, earlier).text : text
  const { text: changed, record } = applyChanges(base, list, earlier)
  return { text: changed, record: { path: '', folders: [], ...record } }
}

t.test('undo restores files of every kind', async t => {
  for (const [name, text] of tables.launchTexts!) {
    const before = text ?? undefined
    const first = change(before, name)
    t.match(first.text, 'me/coder')
    t.equal(undoChanges(first.text, first.record).text, before, `${name}: ${JSON.stringify(text)}`)
    const again = change(first.text, name, 'me/other', first.record)
    t.notMatch(again.text, 'me/coder', 'a second launch replaces the first')
    t.equal(undoChanges(again.text, again.record).text, before)
    t.equal(undoChanges(first.text, again.record).text, before, 'also if the second was killed before it wrote')
    t.equal(undoChanges(before, again.record).text, before, 'also if nothing was written')
    // The program rewrites the file, as programs without comments do.
    if (/[\r\n]\s*\/[/*]/.test(text ?? '')) {
      const line = (text as string).split(/\r?\n/).find(each => /^\s*\//.test(each))!
      t.match(again.text, line, 'comments stay')
      t.match(undoChanges(`${again.text} `, again.record).text, line)
    }
    const values = (json: string | null | undefined) => parseJson((json ?? '').replace('\ufeff', '')) ?? {}
    const rewritten = undoChanges(`${again.text} `, again.record)
    t.same(rewritten.kept, [])
    if (text === null && name === 'cline') t.equal(rewritten.text?.trim().replace(/\s/g, ''), '{"version":1}')
    else if (text === null) t.equal(rewritten.text, undefined)
    else t.same(values(rewritten.text), values(text), 'later changes only lose what corral added')
  }
  const theirs = '{"agent":{"default_model":{"provider":"x","model":"y"}},"theme":"One"}'
  const { text, record } = change(theirs, 'zed')
  const moved = text.replace('"One"', '"Two"')
  t.strictSame(JSON.parse(undoChanges(moved, record).text!), { ...JSON.parse(theirs), theme: 'Two' })
  const other = { ...JSON.parse(text), agent: { default_model: { provider: 'z', model: 'w' } } }
  const left = undoChanges(JSON.stringify(other), record)
  t.same(left.kept, ['agent.default_model'])
  t.strictSame(JSON.parse(left.text!), { agent: other.agent, theme: 'One' })
  const later = change(moved, 'zed', 'me/other', record)
  t.equal(
    undoChanges(later.text, later.record).text,
    undoChanges(moved, record).text,
    'changes between two launches stay'
  )
  t.equal(undoChanges(moved, later.record).text, undoChanges(moved, record).text)
  t.equal(undoChanges(undefined, record).text, undefined, 'a file that somebody has deleted')
  for (const [bad, message] of tables.launchMistakes!) t.throws(() => change(bad, 'zed'), { message })
  t.equal(formatDiff('{\n  "a": 1\n}', '{\n  "a": 2\n}'), '  {\n-   "a": 1\n+   "a": 2\n  }')
})

interface Setting {
  home: string
  /** The user's home folder. */
  user: string
  launch(args: string[], more?: Partial<CommandOptions>): ReturnType<typeof corral>
  env: Record<string, string>
  flags: string[]
}

const CODER = { ...localModel('me/coder'), capabilities: ['completion', 'tools'] }
const row = (id: string, context = 65_536) => ({
  id,
  max_input_tokens: context,
  max_tokens: context,
  status: { value: 'loaded' }
})

/** A scripted server, and programs that print what they are started with. */
async function setting(t: Test, routes: Record<string, Answer> = {}): Promise<Setting> {
  const home = newHome(t)
  const user = newHome(t)
  const bin = join(user, 'bin')
  mkdirSync(bin)
  for (const program of ['claude', 'codex', 'zed']) {
    writeScript(bin, program, 'printf "%s\\n" "$@"; env | grep -E "^(ANTHROPIC|CORRAL_API_KEY=)" | sort; exit 7')
  }
  const { flags } = await scriptedServer(t, {
    'GET /api/tags': reply => reply.end(JSON.stringify({ models: [CODER, localModel('me/plain')] })),
    'GET /v1/models': reply =>
      reply.end(JSON.stringify({ data: [row('me/coder'), row('me/plain')], models: [{ slug: 'me/coder' }] })),
    'POST /api/show': (reply, { model }) =>
      model === 'no/model'
        ? refuse(reply, 404, 'model_not_found', 'There is no model "no/model".')
        : reply.end(JSON.stringify({ details: { name: model } })),
    ...routes
  })
  const env = {
    HOME: user,
    PATH: `${bin}${delimiter}/usr/bin${delimiter}/bin`,
    XDG_CONFIG_HOME: '',
    ANTHROPIC_API_KEY: 'theirs'
  }
  const launch: Setting['launch'] = (args, more = {}) =>
    corral(['launch', ...flags, ...args], { home, ...more, env: { ...env, ...more.env } })
  return { home, user, launch, env, flags }
}

/** All files, links and folders below a folder, with modes and contents. */
function tree(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .sort()
    .map(name => {
      const path = join(folder, name)
      const stats = lstatSync(path)
      return `${name} ${stats.mode.toString(8)} ${stats.isFile() ? readFileSync(path, 'latin1') : ''}`
    })
}

t.test('launch starts the agent with the server, model and key', async t => {
  const { home, user, launch } = await setting(t)
  const started = await launch(['claude', '--', '-p', 'Hi there', '--model'], {
    env: { CORRAL_API_KEYS: 'sesame,other' }
  })
  t.match(started, { code: 7, stderr: /^Starting Claude Code with me\/coder, with a context of 65536 tokens\.\n$/ })
  t.match(
    started.stdout,
    /^-p\nHi there\n--model\nANTHROPIC_AUTH_TOKEN=sesame\nANTHROPIC_BASE_URL=http:\/\/127\.0\.0\.1:\d+\n/
  )
  t.notMatch(started.stdout, /ANTHROPIC_API_KEY/)
  t.strictSame(readdirSync(home), [], 'it needs no files')
  const codex = await launch(['codex', '--model', 'me/coder'])
  t.match(codex, { code: 7, stdout: /model_catalog_json='.*launch\/codex\/models\.json'.*CORRAL_API_KEY=unused/s })
  t.strictSame(JSON.parse(readFileSync(join(home, 'launch/codex/models.json'), 'utf8')), {
    models: [{ slug: 'me/coder' }]
  })
  const before = tree(user)
  const printed = await launch(['zed', '--print'], { env: { CORRAL_API_KEYS: 'sesame' } })
  t.match(printed, {
    code: 0,
    stderr: '',
    stdout: /\.config\/zed\/settings\.json\n\+ \{.*CORRAL_API_KEY="\$CORRAL_API_KEYS" \\\n {2}zed\n$/s
  })
  t.notMatch(printed.stdout, 'sesame')
  t.strictSame(tree(user), before)
  const listed = await launch([])
  t.match(listed, {
    code: 0,
    stdout:
      /^AGENT .*\nclaude +Claude Code +\/.*\/bin\/claude\n.*\nopencode +opencode +no +npm install -g opencode-ai\n/s
  })
})

t.test('launch says what is missing', async t => {
  const { home, user, launch, env } = await setting(t)
  for (const [words, code, message] of sample(tables.launchErrors!, 2)) {
    t.match(await launch(words.split(' ')), { code, stdout: '', stderr: new RegExp(`error: ${message}`) }, words)
  }
  t.match(await corral(['launch', 'claude', '--port', '1'], { home, env }), { code: 3, stderr: /No server is running/ })
  mkdirSync(join(user, '.config/zed'), { recursive: true })
  const file = join(user, '.config/zed/settings.json')
  writeFileSync(file, '{\n "a": }\n')
  t.match(await launch(['zed', '--yes']), {
    code: 1,
    stderr: /settings\.json cannot be changed: line 2 is not valid JSON/
  })
  writeFileSync(file, Buffer.from([0x22, 0xff]))
  t.match(await launch(['zed', '--yes']), { code: 1, stderr: /is not UTF-8/ })
  rmSync(file)
  symlinkSync('nowhere', file)
  t.match(await launch(['zed', '--yes']), { code: 1, stderr: /is a link to a file that does not exist/ })

  const closed: Answer = reply => refuse(reply, 401, 'unauthorized', 'A key is required.')
  const locked = await setting(t, { 'GET /api/tags': closed, 'GET /v1/models': closed })
  t.match(await locked.launch(['claude']), { code: 1, stderr: /requires an API key\. Set CORRAL_API_KEYS/ })
  const small = await setting(t, {
    'GET /v1/models': reply => reply.end(JSON.stringify({ data: [row('me/coder', 4096)] }))
  })
  t.match(await small.launch(['claude']), {
    code: 1,
    stderr: /at least 32768 tokens, and "me\/coder" has 4096\. Set models/
  })
})

t.test('launch changes settings after a yes, and undo restores them', async t => {
  const { home, user, launch, env, flags } = await setting(t)
  const dotfiles = join(user, 'dotfiles')
  mkdirSync(dotfiles)
  const file = join(dotfiles, 'settings.json')
  writeFileSync(file, '// mine\n{ "theme": "One" }\n')
  chmodSync(file, 0o640)
  mkdirSync(join(user, '.config/zed'), { recursive: true })
  symlinkSync('../../dotfiles/settings.json', join(user, '.config/zed/settings.json'))
  const before = tree(user)
  const refused = await launch(['zed'])
  t.match(refused, { code: 2, stderr: /\n\+ .*language_models.*error: Nothing was changed\. Add --yes/s })
  t.strictSame(tree(user), before)
  const terminal = onTerminal(t, ['launch', ...flags, 'zed'], home, { env })
  await terminal.sees('Change the file? [Y/n]')
  await terminal.press(ENTER, 'Starting Zed')
  t.equal(await terminal.ended(), 7)
  t.match(readFileSync(file, 'utf8'), /^\/\/ mine\n\{\s*"theme": "One",\n\s+"language_models"/)
  t.equal(statSync(file).mode & 0o777, 0o640)
  t.equal(statSync(join(home, 'launch/zed/changed.json')).mode & 0o777, 0o600)
  const again = await launch(['zed'])
  t.match(again, { code: 7, stderr: /^Starting Zed/ }, 'nothing is left to change')
  t.match(await launch(['cline', '--print'], { env: { CORRAL_API_KEYS: 'sesame' } }), { stdout: /"apiKey": "<key>"/ })
  t.match(await launch(['zed', '--undo']), { code: 0, stderr: `restored ${file}\n` })
  t.strictSame(tree(user), before)
  t.strictSame(tree(join(home, 'launch')), [])
  t.match(await launch(['--undo']), { code: 0, stderr: /^There is nothing to undo/ })

  writeScript(join(user, 'bin'), 'cline', 'exit 0')
  const clean = tree(user)
  const saved = await launch(['cline', '--yes'], { env: { CORRAL_API_KEYS: 'sesame' } })
  t.match(saved, { code: 0, stderr: /The file will contain the API key/ })
  t.match(readFileSync(join(user, '.cline/data/settings/providers.json'), 'utf8'), '"apiKey": "sesame"')
  t.notMatch(
    readFileSync(join(home, 'launch/cline/changed.json'), 'utf8'),
    'sesame',
    'the key is only in the file that needs it'
  )
  await launch(['zed', '--yes'])
  t.match(await launch(['--undo']), { code: 0, stderr: /removed .*providers\.json\nrestored .*settings\.json\n/ })
  t.strictSame(tree(user), clean, 'the folders are gone, too')
})

/** Kills the process at its nth call that changes files. */
const KILLER = `
import fs, { promises } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
let left = Number(process.env.KILL_AT)
for (const api of [fs, promises]) {
  for (const name of ['mkdir', 'open', 'rename', 'rm', 'rmdir', 'unlink', 'chmod', 'chown', 'fsync']) {
    const real = api[name]
    api[name] = (...values) => {
      if (process.argv.includes('launch') && --left === 0) process.kill(process.pid, 'SIGKILL')
      return real(...values)
    }
  }
}
syncBuiltinESMExports()
`

t.test('undo restores everything after a kill at any step', thorough, async t => {
  const { home, user, launch } = await setting(t)
  writeScript(join(user, 'bin'), 'cline', 'exit 0')
  const killer = join(home, 'killer.mjs')
  writeFileSync(killer, KILLER)
  const before = tree(user)
  const killedAt = (step: number, args: string[]) =>
    launch(args, { env: { NODE_OPTIONS: `--import=${killer}`, KILL_AT: `${step}` } })
  let killed: Awaited<ReturnType<typeof corral>>
  let step = 0
  do {
    killed = await killedAt(++step, ['cline', '--yes'])
    // A killed process holds its lock for four seconds.
    await killedAt(step, ['cline', '--undo'])
    t.match(await launch(['cline', '--undo']), { code: 0 })
    t.strictSame(tree(user), before, `killed at step ${step}`)
  } while (killed.signal === 'SIGKILL')
  t.ok(step > 8 && killed.code === 0, 'each step was tried')
})

t.test('signals reach the agent, and it ends with corral', async t => {
  const { home, user, env, flags } = await setting(t)
  const state = join(user, 'state')
  writeScript(
    join(user, 'bin'),
    'claude',
    `trap 'echo INT >> ${state}; exit 5' INT; trap 'exit 6' TERM; echo $$ > ${state}; while :; do sleep 0.05; done`
  )
  const start = async (): Promise<[ChildProcess, number]> => {
    rmSync(state, { force: true })
    const child = spawn(process.execPath, [MAIN, 'launch', ...flags, 'claude'], {
      cwd: home,
      env: commandEnvironment({ home, env }),
      stdio: 'ignore'
    })
    const pid = await until('the agent runs', () => {
      try {
        return Number(readFileSync(state, 'utf8'))
      } catch {
        return 0
      }
    })
    return [child, pid]
  }
  for (const [signal, code] of [
    ['SIGINT', 5],
    ['SIGTERM', 6]
  ] as const) {
    const [child, pid] = await start()
    child.kill(signal)
    t.same(await once(child, 'exit'), [code, null], signal)
    t.notOk(alive(pid))
  }
  const [child, pid] = await start()
  child.kill('SIGKILL')
  await until('the agent has ended', () => !alive(pid))
})
