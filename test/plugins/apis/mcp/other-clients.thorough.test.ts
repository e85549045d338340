import { execFile, execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { PYTHON_SCRIPTS, PYTHON_VARIABLES, pythonIn, realPython } from '../../../clients/python-scripts.ts'
import { commandEnvironment, MAIN } from '../../../command-line/command.ts'
import { CAPITAL_ANSWER, DEMO, startCorral } from '../../../support/corral.ts'

t.setTimeout(600_000)

const run = promisify(execFile)
const corral = await startCorral(t)

/** Scenarios that need no tools of a test server. */
const SCENARIOS = [
  'server-initialize',
  'ping',
  'tools-list',
  'resources-list',
  'server-sse-multiple-streams',
  'dns-rebinding-protection'
]

/** Installs a package beside the project's own, and returns the path of one of its files. */
function installed(folder: string, packages: string[], file: string): string {
  const place = join(packageRoot, '.cache', folder)
  const path = join(place, 'node_modules', file)
  if (!existsSync(path)) {
    mkdirSync(place, { recursive: true })
    writeFileSync(join(place, 'package.json'), '{ "private": true }\n')
    const quiet = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']
    execFileSync('npm', ['install', ...quiet, ...packages], { cwd: place, stdio: 'pipe' })
  }
  return path
}

for (const [mode, how] of [
  ['auto', 'HTTP'],
  ['legacy', 'HTTP'],
  ['auto', 'stdio'],
  ['legacy', 'stdio']
] as const) {
  t.test(`the official client in Python works over ${how}, with the protocol "${mode}"`, realPython(), async t => {
    const target = how === 'HTTP' ? [`${corral.url}/mcp`] : [process.execPath, MAIN, 'mcp', 'serve']
    const script = join(PYTHON_SCRIPTS, 'mcp_server_check.py')
    const env = { ...commandEnvironment({ home: corral.home }), ...PYTHON_VARIABLES }
    const { stdout } = await run(pythonIn('mcp'), [script, mode, ...target], { env, cwd: corral.home })
    const { tools, steps, ...got } = JSON.parse(stdout)
    t.equal(tools.length, 11)
    t.match(got, {
      text: CAPITAL_ANSWER,
      data: { model: DEMO, content: CAPITAL_ANSWER },
      loaded: { status: 'ready' },
      refused: [true, { code: 'model_not_found' }],
      card: /^# corral\/tiny-chat\n/,
      missing: -32602
    })
    t.ok(steps.length > 0, 'there was progress')
  })
}

// The program needs Node.js 22, so the test installs one for it.
t.test('the conformance tests that apply to any server pass', { skip: process.platform !== 'linux' }, async t => {
  const packages = ['@modelcontextprotocol/conformance@0.1.16', `node-linux-${process.arch}@22.23.3`]
  const program = installed('mcp-conformance', packages, '@modelcontextprotocol/conformance/dist/index.js')
  const node = join(program, `../../../../node-linux-${process.arch}/bin/node`)
  const cwd = t.testdir()
  for (const scenario of SCENARIOS) {
    const args = [program, 'server', '--url', `${corral.url}/mcp`, '--scenario', scenario]
    const { stdout } = await run(node, args, { cwd }).catch(error => error as { stdout: string })
    t.match(stdout, /Passed: [1-9]\d*\/[1-9]\d*, 0 failed, 0 warnings/, scenario)
  }
})
