import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { alive, DEMO, endless, runtimesConfig, startCorral, until } from '../support/corral.ts'
import { newHome } from './command.ts'
import { onTerminal } from './terminal.ts'

/** A server on its own terminal. */
async function serveOnTerminal(t: Test, launcher = '') {
  const home = newHome(t)
  writeFileSync(join(home, 'config.yaml'), `shutdown_grace: 1s\n${runtimesConfig(1)}`)
  const terminal = onTerminal(t, ['serve', '--port', '0'], home, { launcher })
  await terminal.sees('Ctrl-C stops the server')
  const { pid, address } = JSON.parse(readFileSync(join(home, 'owner.json'), 'utf8'))
  t.teardown(() => {
    if (alive(pid)) process.kill(pid, 'SIGKILL')
  })
  const answers = async () => (await fetch(`${address}/api/health`)).status === 200
  return { terminal, home, pid: pid as number, address: address as string, answers }
}

t.test('SIGHUP makes a background server reload its configuration', async t => {
  const corral = await startCorral(t)
  corral.process.kill('SIGHUP')
  await until('nothing has changed', () => /config\.yaml was reloaded: no setting has changed/.test(corral.log()))
  corral.configure('limits: { n: 0 }\n')
  corral.process.kill('SIGHUP')
  await until('the error is logged', () => /config\.yaml:1:14 .*limits\.n must be/.test(corral.log()))
  corral.configure('limits: { n: 1 }\n')
  corral.process.kill('SIGHUP')
  await until('it is applied', () => /Now in effect: limits\.n: 128 → 1/.test(corral.log()))
  const many = await corral.json('/v1/completions', { model: DEMO, prompt: 'Hi', n: 2 })
  t.equal(many.body.error.code, 'over_limit')
  t.equal(await corral.end('SIGTERM'), 0)
})

t.test('a closed terminal stops the server started on it and its answers', async t => {
  const { terminal, home, pid, address } = await serveOnTerminal(t)
  const answer = await fetch(`${address}/api/chat`, { method: 'POST', body: JSON.stringify(endless(DEMO)) })
  t.equal(answer.status, 200)
  const text = answer.text()
  terminal.close()
  t.match(await text, /shutting down/)
  await until('the server ends', () => !alive(pid), 20_000)
  t.notOk(existsSync(join(home, 'owner.json')), 'the data directory is free')
  t.notOk(existsSync(join(home, 'private', 'corral.sock')), 'its socket is removed')
})

t.test('a server that gets no SIGHUP continues without its terminal and still obeys SIGTERM', async t => {
  const { terminal, home, pid, answers } = await serveOnTerminal(t, 'setsid --wait')
  terminal.close()
  // Each request writes a line to the closed terminal.
  for (let count = 0; count < 3; count++) {
    await fetch(JSON.parse(readFileSync(join(home, 'owner.json'), 'utf8')).address, { method: 'DELETE' })
  }
  t.ok(await answers())
  process.kill(pid, 'SIGTERM')
  await until('the server ends', () => !alive(pid), 20_000)
  t.notOk(existsSync(join(home, 'owner.json')))
})
