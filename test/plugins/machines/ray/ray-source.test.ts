import { chmodSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pino } from 'pino'
import t from 'tap'
import { RaySource } from '../../../../plugins/machines/ray/ray-source.ts'
import { alive, until } from '../../../support/corral.ts'

t.test('repeated looks leave one program running, and none after the end', async t => {
  const home = t.testdir()
  const pids = join(home, 'pids')
  const python = join(home, 'python')
  // Runs until its input ends, as the real program does.
  writeFileSync(python, `#!/bin/sh\necho $$ >>'${pids}'\necho '{"members": []}' >&3\nexec cat\n`)
  chmodSync(python, 0o755)
  const settings = { address: '127.0.0.1:6379', token_file: '', python, package_index: '' }
  const log = pino({ level: 'silent' })
  const source = new RaySource({ settings, home, log, env: { PATH: process.env.PATH } })
  let reports = 0
  const end = source.follow({ changed: () => reports++, fault: () => {} })
  await Promise.all(Array.from({ length: 5 }, () => source.look()))
  await until('the members are known', () => reports > 0)

  const running = () =>
    (existsSync(pids) ? readFileSync(pids, 'utf8').trim().split('\n') : []).map(Number).filter(alive)
  await until('one program is left', () => running().length === 1)
  await end()
  t.same(running(), [])
})
