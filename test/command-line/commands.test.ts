import { copyFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { commandAction } from '../../command-line/program.ts'
import { shippedText } from '../../command-line/shipped-text.ts'
import { packageRoot, version } from '../../core/system/package-info.ts'
import { DEMO } from '../support/corral.ts'
import { sample } from '../support/thorough.ts'
import { checkCommands, corral, newHome } from './command.ts'
import { localModel } from './records.ts'
import { scriptedServer } from './scripted-server.ts'

const MODEL_FILE = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')

t.test('help is available for all commands', async t => {
  const home = newHome(t)
  const help = await corral(['--help'], { home })
  t.equal(help.code, 0)
  for (const part of ['Examples:', 'CORRAL_HOME', 'Exit codes:', 'config.yaml', '11435']) t.match(help.stdout, part)
  t.equal((await corral([], { home })).stdout, help.stdout, 'corral without a command shows help')
  t.same((await corral(['--version'], { home })).stdout, `${version}\n`)
  const names = 'serve run list ps show stop rm import doctor config version pull pulls convert runtime plugin'.split(
    ' '
  )
  for (const { name, code, stdout } of await Promise.all(
    sample(names, 4).map(async name => ({ name, ...(await corral([name, '--help'], { home })) }))
  )) {
    t.equal(code, 0, name)
    t.match(stdout, `Usage: corral ${name}`)
  }
  t.match(await corral(['help', 'runtime', 'use'], { home }), { code: 0, stdout: /Usage: corral runtime use/ })
})

t.test('every command has an action', async t => {
  const paths = [...shippedText('commands.txt').matchAll(/^== corral ([a-z -]+)/gm)].map(([, path]) => path!.trim())
  for (const path of paths.filter(path => !paths.some(other => other.startsWith(`${path} `)))) {
    t.type(await commandAction(path), 'function', path)
  }
})

t.test('commands work without a running server', async t => {
  const home = newHome(t)
  const [listed, shown] = await Promise.all([corral(['list', '--json'], { home }), corral(['show', DEMO], { home })])
  t.equal(listed.code, 0, listed.stderr)
  t.match(shown, { code: 0, stdout: /context length/ }, 'concurrently')
  t.match(JSON.parse(listed.stdout), { models: [{ name: DEMO, format: 'gguf' }] })
  const ps = await corral(['ps', '--json'], { home })
  t.equal(ps.code, 3)
  t.same(JSON.parse(ps.stdout), { models: [], loading: [] })
  t.match(JSON.parse((await corral(['version', '--json'], { home })).stdout), { corral: version, server: null })
  copyFileSync(MODEL_FILE, join(home, 'mine.gguf'))
  await checkCommands(t, 'without a server', words => corral(words, { home }))
  t.notMatch((await corral(['list'], { home })).stdout, 'me/mine', 'the others are still done')
  t.notOk(existsSync(join(home, 'owner.json')), 'the data directory is free')
  t.ok(
    readFileSync(join(home, 'logs', 'corral.log'), 'utf8').includes('listens on'),
    'the log is in the data directory'
  )
})

t.test('a closed standard output is not an error', async t => {
  const home = newHome(t)
  t.match(await corral(['list'], { home, closeStdout: true }), { code: 0, stderr: '' })
  t.match(await corral(['--help'], { home, closeStdout: true }), { code: 0, stderr: '' })
  t.notOk(existsSync(join(home, 'owner.json')))
})

t.test('commands load no plugins and few settings when a server is running', async t => {
  const models = [localModel('a/b')]
  const server = await scriptedServer(t, { 'GET /api/tags': reply => reply.end(JSON.stringify({ models })) })
  const home = newHome(t)
  const port = server.flags[1]!
  writeFileSync(join(home, 'plugin.mjs'), 'throw new Error("the plugin was loaded")')
  writeFileSync(join(home, 'config.yaml'), `port: ${port}\nplugins: [./plugin.mjs]\nlog_level: loud\n`)
  t.match(await corral(['list'], { home, env: { CORRAL_PORT: port } }), { code: 0, stdout: /a\/b/, stderr: '' })
  t.match(await corral(['list', '--json'], { home: newHome(t), env: { CORRAL_CONFIG: join(home, 'config.yaml') } }), {
    code: 2,
    stderr: /the plugin was loaded/
  })
})

t.test('config check and config show work, and every command reports configuration errors', async t => {
  const home = newHome(t)
  t.match(await corral(['config', 'check'], { home }), { code: 0, stdout: /the defaults apply: no errors/ })
  const shown = await corral(['config', 'show', '--json'], { home, env: { CORRAL_API_KEYS: 'hidden-key' } })
  t.match(JSON.parse(shown.stdout).settings[0], { name: 'home', value: home, origin: 'env CORRAL_HOME' })
  t.notMatch(shown.stdout, 'hidden-key')
  t.match((await corral(['config', 'show', '--port', '1234'], { home })).stdout, /^port +1234 +flag --port$/m)

  const refused = async (commands: readonly string[][], stderr: RegExp) => {
    for (const command of commands) {
      const ended = await corral(command, { home })
      t.match(ended, { code: 2, stdout: '', stderr }, command.join(' '))
      t.notMatch(ended.stderr, /\n\s+at /, 'no stack trace')
    }
  }
  writeFileSync(join(home, 'config.yaml'), 'log_level: info\nport: many\n')
  const all = [['config', 'check'], ['config', 'show'], ['serve'], ['list'], ['run', DEMO, 'hi']]
  await refused(sample(all, 3), /config\.yaml:2:7 .*port must be a whole number/)
  t.match(await corral(['doctor'], { home }), { code: 2, stdout: /config\.yaml:2:7/ })
  writeFileSync(join(home, 'config.yaml'), 'port: 1234\nprot: 1\n')
  const unknown = /config\.yaml:2:1: .*"prot".*did you mean port/
  t.match(await corral(['config', 'check'], { home }), { code: 0, stdout: /no errors, 1 warning/, stderr: unknown })
  await refused([['config', 'check', '--strict']], unknown)
  t.match(JSON.parse((await corral(['doctor', '--json'], { home })).stdout).config.problems, [{ line: 2 }])
  t.match(await corral(['config', 'show'], { home }), { code: 0, stdout: /^port +1234 /m }, 'the other settings apply')
})
