import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { DEMO, startCorral, until } from '../support/corral.ts'
import { sample, thorough } from '../support/thorough.ts'
import { checkCommands, corral, newHome } from './command.ts'

/** All tests but the last share this server. */
const server = await startCorral(t)
const { home } = server
const { port } = new URL(server.url)

/** A module for `node --import` that appends the URL of each loaded module to LOADED. */
const RECORD_MODULES = `
import { register } from 'node:module'
register('data:text/javascript,' + encodeURIComponent(${JSON.stringify(`
import { appendFileSync } from 'node:fs'
export async function load(url, context, next) {
  if (url.startsWith('file:')) appendFileSync(process.env.LOADED, url + ' ')
  return next(url, context)
}`)}))`

// The cost of a command is mostly the modules that it loads. With all of typebox it takes three times as long.
t.test('a command with a running server loads no plugins, no configuration and few packages', async t => {
  // A bundle does not show which modules a command needs.
  const program = join(packageRoot, 'dist', 'command-line', 'main.js')
  const loaded = join(home, 'loaded')
  const env = {
    LOADED: loaded,
    // `module.register`, which records the modules, is deprecated from Node.js 26.
    NODE_NO_WARNINGS: '1',
    NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(RECORD_MODULES)}`
  }
  for (const command of sample([['ps'], ['list'], ['show', DEMO], ['pulls'], ['__complete', 'run', '']], 2)) {
    writeFileSync(loaded, '')
    t.match(await corral(command, { home, program, env }), { code: 0, stderr: '' }, command.join(' '))
    const urls = readFileSync(loaded, 'utf8').trim().split(' ')
    const packages = new Set(urls.flatMap(url => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(url)?.[1] ?? []))
    t.same([...packages].sort(), ['commander', 'eventsource-parser', 'get-east-asian-width'], `${command[0]}: packages`)
    const forbidden = /dist\/(plugins|runtimes|core\/(http|plugins|answers))\/|config\/(load|yaml-file)/
    t.same(
      urls.filter(url => !url.includes('node_modules') && forbidden.test(url)),
      [],
      `${command[0]}: own modules`
    )
    t.ok(urls.length < 80, `${command[0]} loads ${urls.length} modules`)
  }
})

t.test('commands report a stopped server within a time limit', async t => {
  const recorded = () => JSON.parse(readFileSync(join(home, 'owner.json'), 'utf8')).address
  await until('its address is recorded', () => recorded() === server.url)
  server.process.kill('SIGSTOP')
  try {
    const silent = { code: 3, stdout: '', stderr: new RegExp(`process ${server.process.pid} .*stopped or overloaded`) }
    const ended = await Promise.all([corral(['ps'], { home }), corral(['list'], { home, env: { CORRAL_PORT: port } })])
    for (const each of ended) t.match(each, silent)
  } finally {
    server.process.kill('SIGCONT')
  }
})

t.test('commands use the private socket only for the server of their data directory', async t => {
  // Permissions show which path a command uses: only the private socket makes it an admin, who may read logs.
  t.match(await corral(['logs', DEMO], { home }), { code: 0 })
  t.match(await corral(['logs', DEMO, '--port', port], { home }), { code: 0 }, 'its own address')
  t.match(await corral(['logs', DEMO], { home, env: { CORRAL_PORT: port, CORRAL_API_KEYS: 'no-key-of-it' } }), {
    code: 0
  })

  const refused = /role "admin".*used TCP without a key, since .* CORRAL_API_KEYS .*corral key create/s
  const named = await corral(['logs', DEMO, '--host', 'localhost', '--port', port], { home })
  t.match(named, { code: 1, stdout: '', stderr: refused }, 'a name may belong to another server')

  const other = newHome(t)
  await checkCommands(t, 'by TCP without a key', words => corral(words, { home: other }), { port })

  rmSync(join(home, 'private', 'corral.sock'))
  t.match(await corral(['list'], { home }), { code: 0, stdout: /tiny-chat/ }, 'without its socket, the address is used')
  const blind = await corral(['logs', DEMO], { home })
  t.match(blind, { code: 1, stderr: /used TCP without a key, since .*cannot open .*corral\.sock/s })
})

t.test(
  'the private socket works with a long path, after a kill, and for a command without a server',
  thorough,
  async t => {
    const home = join(newHome(t), 'deep'.repeat(30))
    mkdirSync(home)
    const killed = await startCorral(t, { home })
    const { socket } = JSON.parse(readFileSync(join(home, 'owner.json'), 'utf8'))
    t.ok(socket.length < 104, socket)
    t.match(await corral(['logs', DEMO], { home }), { code: 0 })
    await killed.end('SIGKILL')

    t.match(await corral(['list'], { home }), { code: 0, stdout: /tiny-chat/ }, 'a server only for this command')
    const again = await startCorral(t, { home })
    t.equal(JSON.parse(readFileSync(join(home, 'owner.json'), 'utf8')).socket, socket)
    t.match(await corral(['logs', DEMO], { home }), { code: 0 })
    t.equal(await again.end('SIGTERM'), 0)
  }
)
