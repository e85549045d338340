import { execFile, spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'

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
