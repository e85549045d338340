import { chmodSync, chownSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { nearestHarmless } from '../../command-line/program.ts'
import { sample } from '../support/thorough.ts'
import { corral, newHome } from './command.ts'
import { pattern, tables } from './tables.ts'

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
