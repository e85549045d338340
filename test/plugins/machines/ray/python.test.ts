import { execFile, spawnSync } from 'node:child_process'
import { chmodSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { pino } from 'pino'
import t from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { RaySource } from '../../../../plugins/machines/ray/index.ts'
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

const python = ['python3', '/usr/bin/python3'].find(
  name => spawnSync(name, ['-c', 'import unittest, sys; sys.exit(sys.version_info < (3, 10))']).status === 0
)

t.test(
  'the tests of the Python program pass',
  {
    skip: python === undefined ? 'no Python 3.10 is here' : process.platform !== 'linux' && 'it is for Linux'
  },
  async t => {
    const folder = join(packageRoot, 'test', 'plugins', 'machines', 'ray')
    const run = promisify(execFile)(python!, [
      '-B',
      join(folder, 'corral_ray_test.py'),
      join(packageRoot, 'plugins', 'machines', 'ray')
    ])
    const { stderr } = await run.catch((error: { stderr: string; message: string }) => {
      t.fail(error.stderr || error.message)
      return error
    })
    t.match(stderr, /Ran [1-9]\d* tests/)
  }
)
