import { spawnSync } from 'node:child_process'
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { DEMO, startCorral, until } from '../support/corral.ts'
import { engineBuildFolder } from '../support/engine-build.ts'
import { newHome, writeScript } from './command.ts'
import { CTRL_C, onTerminal } from './terminal.ts'

/** A folder for CORRAL_LLAMA_CPP with the real llama-server. Its smoke test waits until a file is removed. */
function slowBuild(t: Test) {
  const folder = newHome(t)
  const waits = join(folder, 'waits')
  writeFileSync(waits, '')
  const wait = `case "$1" in --version) while [ -e '${waits}' ]; do sleep 0.1; done;; esac`
  writeScript(folder, 'llama-server', `${wait}\nexec '${join(engineBuildFolder(), 'llama-server')}' "$@"`)
  return { folder, waits }
}

t.test('serve redraws one line at a terminal while it prepares llama.cpp, and explains the choice', async t => {
  const home = newHome(t)
  const { folder, waits } = slowBuild(t)
  const env = { CORRAL_LLAMA_CPP: folder, NO_COLOR: '1' }
  const terminal = onTerminal(t, ['serve', '--port', '0'], home, { columns: 60, rows: 50, env })
  await terminal.sees('Ctrl-C stops the server')
  await terminal.sees(/proving llama\.cpp \(2/)
  const working = await terminal.lines()
  t.match(working.at(-1), /^\S proving llama\.cpp \(\d/)
  t.equal(working.filter(line => line.includes('proving')).length, 1, 'it is one line')
  const { address } = JSON.parse(readFileSync(join(home, 'owner.json'), 'utf8'))
  const shown = working.join('\n')
  const command = shown.slice(shown.indexOf('curl '), shown.indexOf('\n\n  Ctrl-C'))
  t.ok(working.every(line => line.length <= 60))
  const called = spawnSync('sh', ['-c', command.replace('curl', `printf '%s\\n'`)], { encoding: 'utf8' })
  const [url, flag, ...body] = called.stdout.split('\n')
  t.same([url, flag], [`${address}/api/chat`, '-d'], 'commands can be copied from the screen')
  t.match(JSON.parse(body.join('\n')), { model: DEMO, messages: [{ role: 'user', content: 'Hi' }] })
  await terminal.press('')
  await fetch(address, { method: 'DELETE' })
  await terminal.sees(/WARN|INFO/)
  rmSync(waits)
  await terminal.sees(/is ready/)
  await until('the line has gone', async () => !(await terminal.lines()).some(line => line.includes('proving')))
  const text = (await terminal.lines()).join('\n')
  t.match(text, /^\[[\d:]+\] INFO: llama\.cpp is ready: cpu, since$\n {2}CORRAL_LLAMA_CPP names it; .*$/m)
  t.notMatch(text, 'source "system"', 'only "corral doctor" shows the attempts')
  await terminal.press(CTRL_C)
  t.equal(await terminal.ended(), 0)
  t.match((await terminal.lines()).at(-1), /INFO: stopped$/)
})

t.test('serve logs the steps without a terminal', async t => {
  const server = await startCorral(t)
  await until('llama.cpp is ready', () => server.log().includes('llama.cpp is ready: cpu, since '))
  t.match(server.log(), /"msg":"proving llama\.cpp"/)
  t.match(server.log(), /"msg":"llama\.cpp, source \\"system\\": chosen/)
})
