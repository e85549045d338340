import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { until } from '../support/corral.ts'
import { commandEnvironment, corral, MAIN, newHome } from './command.ts'

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
  for (const [what, yaml, { env = {}, files = {}, starts = true } = {}] of [
    ['nothing', ''],
    ['harmless settings', 'log_level: debug\ndefaults: { num_ctx: 512 }\n'],
    ['YAML with a mistake', 'port: [', { starts: false }],
    ['a wrong value', 'log_level: loud', { starts: false }],
    ['an unknown setting', 'prot: 1\nlimits: { conections: 1 }'],
    ['an option that no engine knows', 'defaults: { temprature: 1 }'],
    ['a level of an unknown part', 'log_levels: { nosuch: debug }'],
    ['a missing certificate', 'tls: { certificate: ./a.pem, key: ./a.key }', { starts: false }],
    ['a certificate without its key', 'tls: { certificate: ./a.pem }', { starts: false }],
    [
      'an invalid certificate',
      'tls: { certificate: a.pem, key: a.key }',
      { files: { 'a.pem': 'x', 'a.key': 'x' }, starts: false }
    ],
    ['all interfaces without keys', 'host: 0.0.0.0', { starts: false }],
    ['all interfaces, insecure', 'host: 0.0.0.0\nsecurity: { insecure: true }'],
    ['an address of another machine', 'host: 203.0.113.7\nsecurity: { insecure: true }', { starts: false }],
    [
      'an extra address on another machine',
      'api-ollama: { listen: "203.0.113.7:9" }\nsecurity: { insecure: true }',
      { starts: false }
    ],
    ['an extra address with an invalid port', 'metrics: { listen: "127.0.0.1:99999" }', { starts: false }],
    ['a proxy that is not an address', 'security: { trusted_proxies: ["300.1.1.1"] }', { starts: false }],
    ['a short key in a readable file', 'security: { api_keys: [abc] }'],
    ['a broken key file', '', { files: { 'keys.json': '{' }, starts: false }],
    ['a store that is not an address', 'usage: { redis: "redis://:bad@:x" }', { starts: false }],
    ['a models folder that cannot exist', 'models_directory: ./file/models', { files: { file: '' }, starts: false }],
    ['a missing plugin', 'plugins: [./none.mjs]', { starts: false }],
    [
      'a plugin with an invalid option',
      'plugins: [./shelf.mjs]\nshelf: { size: many }',
      { files: { 'shelf.mjs': SHELF() }, starts: false }
    ],
    [
      'a plugin that fails during setup',
      'plugins: [./shelf.mjs]',
      { files: { 'shelf.mjs': SHELF("throw new Error('no shelf')") }, starts: false }
    ],
    [
      'an optional plugin that fails during setup',
      'plugins: [./shelf.mjs]',
      { files: { 'shelf.mjs': SHELF("throw new Error('no shelf')", true) } }
    ],
    ['an invalid variable', '', { env: { CORRAL_LOG_LEVEL: 'loud' }, starts: false }],
    ['a hub with an invalid address', '', { env: { HF_ENDPOINT: 'not an address' } }]
  ] as [string, string, { env?: Record<string, string>; files?: Record<string, string>; starts?: boolean }?][]) {
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

function SHELF(setup = 'return {}', optional = false) {
  return `export default {
  name: 'shelf', api: 1, optional: ${optional},
  options: { type: 'object', properties: { size: { type: 'integer', default: 1 } } },
  setup() { ${setup} }
}`
}
