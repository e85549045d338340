import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { freePort } from '../../../../core/system/free-port.ts'
import type { TestCorral } from '../../../../testing/test-corral.ts'
import { until } from '../../../support/corral.ts'

const PROGRAMS = ['redis-server', 'valkey-server']
const PASSWORD = 'secret-of-redis'

/** Starts a real Redis or Valkey. Skips the test and returns undefined if neither is installed. */
export async function startRedis(t: Test) {
  const program = PROGRAMS.find(name => spawnSync(name, ['--version']).status === 0)
  if (!program) {
    t.comment(`${PROGRAMS.join(' or ')} is not installed`)
    t.pass('skipped: there is no redis-server on this machine', { skip: 'no redis-server' })
    return undefined
  }
  const port = await freePort()
  const folder = mkdtempSync(join(tmpdir(), 'corral-redis-'))
  const flags = ['--port', `${port}`, '--bind', '127.0.0.1', '--requirepass', PASSWORD, '--save', '', '--dir', folder]
  const child = spawn(program, flags, { stdio: ['ignore', 'pipe', 'inherit'] })
  let said = ''
  child.stdout.setEncoding('utf8').on('data', text => {
    said += text
  })
  const exited = once(child, 'exit')
  const kill = async () => {
    child.kill('SIGCONT')
    child.kill('SIGKILL')
    await exited
  }
  t.teardown(async () => {
    await kill()
    rmSync(folder, { recursive: true, force: true })
  })
  await until('Redis listens', () => /Ready to accept connections/.test(said))
  return {
    url: `redis://:${PASSWORD}@127.0.0.1:${port}`,
    freeze: () => void child.kill('SIGSTOP'),
    thaw: () => void child.kill('SIGCONT'),
    kill,
    until: (corral: TestCorral, line: RegExp) => until(`${line}`, () => line.test(corral.log()))
  }
}
