import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { CAPITAL_ANSWER, DEMO, llamaServersBelow, runtimesConfig, startCorral, until } from '../support/corral.ts'
import { thorough } from '../support/thorough.ts'
import { checkCommands, commandEnvironment, corral, MAIN, newHome } from './command.ts'
import { localModel } from './records.ts'
import { type Answer, event, refuse, scriptedServer } from './scripted-server.ts'

const CAPITAL = 'What is the capital of France?'

t.test('commands find a running server and use its API key', async t => {
  const server = await startCorral(t, { env: { CORRAL_API_KEYS: 'sesame' } })
  const { home } = server
  const env = { CORRAL_API_KEYS: 'sesame' }
  const port = new URL(server.url).port

  t.match(await corral(['list'], { home }), { code: 0 }, 'the private socket needs no key')
  const elsewhere = newHome(t)
  t.match(await corral(['list', '--port', port], { home: elsewhere }), {
    code: 1,
    stderr: /requires an API key.*CORRAL_API_KEYS.*used TCP, since it is not known to be the server of/
  })
  const shown = JSON.parse((await corral(['show', DEMO, '--json'], { home, env })).stdout)
  t.match(shown, { details: { name: DEMO }, model_info: {} })
  const ask = (words: string[]) => corral(words, { home, env })
  await checkCommands(t, 'with a key', ask, { url: server.url })

  const asked = await corral(['run', DEMO, CAPITAL, '--temperature', '0', '--verbose'], { home, env })
  t.match(asked, { code: 0, stdout: `${CAPITAL_ANSWER}\n`, stderr: /answer {3}\d+ tokens in .* tokens\/s/ })
  t.notMatch(asked.stderr, 'No server is running')
  const other = newHome(t)
  t.match(
    await corral(['run', DEMO, '--temperature', '0', '--port', port], { home: other, env, input: `${CAPITAL}\n` }),
    { code: 0, stdout: `${CAPITAL_ANSWER}\n`, stderr: '' },
    'found by its port, with a prompt from a pipe'
  )
  t.same(readdirSync(other), [], 'a client needs no data directory')
  const short = await corral(['run', DEMO, CAPITAL, '--temperature', '0', '--max-tokens', '2'], { home, env })
  t.ok(short.stdout.length < CAPITAL_ANSWER.length && CAPITAL_ANSWER.startsWith(short.stdout.trim()), short.stdout)
  t.match(await corral(['run', DEMO], { home, env, input: 'word '.repeat(40_000) }), { code: 1, stderr: /context/ })

  await checkCommands(t, 'with a loaded model', ask, { url: server.url })
  const doctor = JSON.parse((await corral(['doctor', '--json'], { home, env })).stdout)
  t.match(doctor.data.holder, { pid: server.process.pid, address: server.url })

  t.match(await corral(['serve'], { home }), { code: 1, stderr: new RegExp(`process ${server.process.pid}`) })
  const taken = await corral(['serve', '--port', port], { home: other })
  t.match(taken, { code: 1, stderr: /used by another program.*--port/ })
  t.equal(await server.end('SIGINT'), 0, 'Ctrl-C stops a server properly')
})

t.test('serve stops cleanly at a signal during the start', thorough, async t => {
  const home = newHome(t)
  writeFileSync(join(home, 'config.yaml'), 'prot: 1\nnew_plugin: { speed: 3 }\n')
  const child = spawn(process.execPath, [MAIN, 'serve', '--port', '0'], {
    cwd: home,
    env: commandEnvironment({ home }),
    stdio: ['ignore', 'pipe', 'ignore']
  })
  let log = ''
  child.stdout.on('data', text => (log += text))
  await until('the data directory is claimed', () => existsSync(join(home, 'owner.json')))
  child.kill('SIGTERM')
  t.same(await once(child, 'close'), [0, null])
  t.match(log, /config\.yaml:1:1: There is no setting \\"prot\\"; did you mean port\? It is ignored\./)
  t.match(
    log,
    /config\.yaml:2:1: There is no setting \\"new_plugin\\"/,
    'settings of another version only cause warnings'
  )
  t.notOk(existsSync(join(home, 'owner.json')))
})

t.test('run starts its own server and stops it', async t => {
  const home = newHome(t)
  const free = createServer().listen(0, '127.0.0.1')
  await once(free, 'listening')
  const { port } = free.address() as { port: number }
  free.close()
  const own = ['--port', String(port)]
  writeFileSync(join(home, 'config.yaml'), runtimesConfig(1))

  const asked = await corral(['run', DEMO, 'What is the capital', 'of France?', '--temperature', '0', ...own], { home })
  t.match(asked, { code: 0, stdout: `${CAPITAL_ANSWER}\n`, stderr: /No server is running.*corral serve/ })
  t.notOk(existsSync(join(home, 'owner.json')), 'it ended with the answer')

  const interrupted = await corral(['run', DEMO, CAPITAL, ...own], { home, interruptAt: 'No server is running' })
  t.match(interrupted, { code: 130, stdout: '' })
  t.notMatch(interrupted.stderr, 'error')
  t.notOk(existsSync(join(home, 'owner.json')))
  t.same(llamaServersBelow(process.pid), [], 'no engine remains')
})

t.test('a request refused during shutdown goes to the next server, unless a server was named', thorough, async t => {
  const refusedFirst =
    (times: number, body: object): Answer =>
    (reply, _, count) =>
      count <= times ? refuse(reply, 503, 'shutting_down', 'corral is shutting down.') : reply.end(JSON.stringify(body))
  const models = [localModel('a/b')]
  const home = newHome(t)
  const { flags, bodies } = await scriptedServer(t, {
    'GET /api/tags': refusedFirst(2, { models }),
    'DELETE /api/delete': refusedFirst(1, {}),
    'GET /api/runtimes': refusedFirst(9, {}),
    'GET /api/ps': refusedFirst(1, { models: [] }),
    'POST /api/runtimes/use': (reply, body, count) =>
      // Once before the request, once during it.
      count === 1
        ? refuse(reply, 503, 'shutting_down', 'corral is shutting down.')
        : reply.end(
            event(
              count === 2
                ? { status: 'error', error: 'corral is shutting down.', code: 'shutting_down' }
                : { status: 'success', build: { id: `the-${body.runtime}`, version: 'b1' } }
            )
          )
  })
  t.match(await corral(['list', ...flags], { home }), { code: 0, stdout: /a\/b/, stderr: '' })
  t.match(await corral(['rm', 'me/one', 'me/two', ...flags], { home }), {
    code: 0,
    stderr: /deleted me\/one.*deleted me\/two/s
  })
  t.strictSame(
    bodies('DELETE /api/delete').map(({ model }) => model),
    ['me/one', 'me/one', 'me/two'],
    'completed requests are not repeated'
  )
  t.match(await corral(['runtime', 'use', 'cpu', ...flags], { home }), { code: 0, stderr: /New engines use the-cpu/ })
  t.match(await corral(['runtime', 'list', ...flags], { home }), { code: 1, stderr: /^error: corral is shutting down/ })
  t.equal(bodies('GET /api/runtimes').length, 4, 'the number of retries is limited')
  t.match(await corral(['ps', ...flags], { home }), { code: 1, stderr: /^error: corral is shutting down/ })
})

t.test('after a dropped connection only reads go to the next server', thorough, async t => {
  const home = newHome(t)
  const dropFirst: Answer = (reply, _, count) => {
    if (count === 1) reply.socket!.resetAndDestroy()
    else reply.end('{"models":[]}')
  }
  const { flags, bodies } = await scriptedServer(t, { 'GET /api/tags': dropFirst, 'DELETE /api/delete': dropFirst })
  t.match(await corral(['list', ...flags], { home }), { code: 0 })
  t.match(await corral(['rm', 'me/one', ...flags], { home }), { code: 1, stderr: /closed before the reply/ })
  t.equal(bodies('DELETE /api/delete').length, 1)
})
