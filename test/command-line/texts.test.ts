import { chmodSync, chownSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { nearestHarmless } from '../../command-line/program.ts'
import { corral, newHome } from './command.ts'

t.test('errors start with what is wrong and end with what to do', async t => {
  const home = newHome(t)
  for (const [command, code, text] of [
    [
      'audit',
      3,
      /^error: No server is running .*\. The audit log is read through the server\. Start one with "corral serve", or read logs\/audit\/\*\.jsonl in .*\.$/m
    ],
    [
      'log-level a b',
      3,
      /^error: No server is running .*\. Log levels belong to a running server\. Start one with: corral serve$/m
    ],
    ['ps', 3, /^error: No server is running .*\. No models are loaded\. Start one with/],
    ['capture list', 3, /^error: No server is running .*\. Only a running server can capture\. Start one with/],
    ['run a/b hi --format @/nonexist', 2, /^error: There is no file \/nonexist \(--format @<file>\)\.$/m],
    ['convert a/b', 2, /^error: The type is missing\. Add --dtype, such as --dtype q4_k_m or --dtype f16\.$/m],
    ['capture start', 2, /^error: The option --for <time> is missing\.$/m],
    ['completion powershell', 2, /^error: corral completes commands in bash, zsh and fish, not in "powershell"\.$/m],
    ['plugin new x y', 2, /^error: "x" is not a kind\. Allowed choices are engine/],
    ['usage --by moon', 2, /^error: --by cannot be "moon"\. Allowed choices are key/],
    ['usage --by', 2, /^error: --by needs a value\.$/m],
    ['show', 2, /^error: <model> is missing: corral show \[options\] <model>$/m],
    ['rmm x', 2, /^error: unknown command 'rmm'\n\(add/],
    ['rn', 2, /^error: unknown command 'rn'\n\(Did you mean run\?\)/],
    ['key revok a', 2, /^error: unknown command 'revok'\n\(add/],
    ['convert a/b --remov', 2, /^error: unknown option '--remov'\n\(add/],
    ['list --jsn', 2, /^error: unknown option '--jsn'\n\(Did you mean --json\?\)/]
  ] as [string, number, RegExp][]) {
    const ended = await corral(command.split(' '), { home })
    t.equal(ended.code, code, command)
    t.match(ended.stderr.trim(), text, command)
  }
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
