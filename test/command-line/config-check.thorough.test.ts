import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { until } from '../support/corral.ts'
import { commandEnvironment, corral, MAIN, newHome } from './command.ts'
import { fixture } from './tables.ts'

interface Case {
  what: string
  yaml?: string
  env?: Record<string, string>
  files?: Record<string, string>
  /** Whether a server starts with it (default: true). */
  starts?: boolean
}

const cases: Case[] = parse(fixture('configurations.yaml'))

interface Verdict {
  starts: boolean
  /** The error text. */
  mistake: string
  warnings: string[]
}

/** Log and output of `corral serve` until it listens or ends. */
async function verdictOfServe(home: string, env: Record<string, string>): Promise<Verdict> {
  const child = spawn(process.execPath, [MAIN, 'serve', '--port', '0'], {
    cwd: home,
    env: commandEnvironment({ home, env })
  })
  let [stdout, stderr] = ['', '']
  child.stdout.setEncoding('utf8').on('data', text => {
    stdout += text
  })
  child.stderr.setEncoding('utf8').on('data', text => {
    stderr += text
  })
  const ended = once(child, 'close')
  await until('the server listens or ends', () => stdout.includes('listens on') || child.exitCode !== null)
  const starts = stdout.includes('listens on')
  child.kill('SIGTERM')
  await ended
  const lines = stdout.split('\n').slice(0, stdout.slice(0, stdout.indexOf('listens on')).split('\n').length)
  const records = lines.flatMap(line => (line.startsWith('{') ? [JSON.parse(line)] : []))
  return {
    starts,
    mistake: stderr.trim(),
    warnings: records.filter(({ level }) => level >= 40).map(({ msg }) => msg.replace(/:0\b/g, ''))
  }
}

async function verdictOfCheck(home: string, env: Record<string, string>): Promise<Verdict> {
  const { code, stderr } = await corral(['config', 'check', '--port', '0'], { home, env })
  const [warnings = '', mistake = ''] = stderr.trim().split(/^(?=error: )/m)
  return {
    starts: code === 0,
    mistake: stderr.startsWith('error: ') ? stderr.trim() : mistake,
    warnings: warnings
      .split('\n')
      .flatMap(line => (line.startsWith('warning: ') ? [line.slice(9).replace(/:0\b/g, '')] : []))
  }
}

t.test('config check gives the same verdict as serve', async t => {
  for (const { what, yaml = '', env = {}, files = {}, starts = true } of cases) {
    const home = newHome(t)
    writeFileSync(join(home, 'config.yaml'), yaml)
    for (const [name, text] of Object.entries(files)) writeFileSync(join(home, name), text)
    const checked = await verdictOfCheck(home, env)
    t.notOk(existsSync(join(home, 'models')), `${what}: check writes nothing`)
    const served = await verdictOfServe(home, env)
    t.equal(served.starts, starts, `${what}: serve ${served.mistake}`)
    t.same(checked, served, what)
  }
})

t.test('config check --strict fails for warnings', async t => {
  const home = newHome(t)
  for (const [yaml, code] of [
    ['port: 1', 0],
    ['prot: 1', 2]
  ] as const) {
    writeFileSync(join(home, 'config.yaml'), yaml)
    t.equal((await corral(['config', 'check', '--strict'], { home })).code, code, yaml)
  }
})
