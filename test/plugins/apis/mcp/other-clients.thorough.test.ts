import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { PYTHON_SCRIPTS, PYTHON_VARIABLES, pythonIn, realPython } from '../../../clients/python-scripts.ts'
import { commandEnvironment, MAIN } from '../../../command-line/command.ts'
import { CAPITAL_ANSWER, DEMO, startCorral } from '../../../support/corral.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { conformanceProgram } from '../../../support/npm-packages.ts'
import { speechTools } from '../../../support/speech/speech-tools.ts'
import { CLIENTS, call, connectMcp } from './mcp-clients.ts'

t.setTimeout(600_000)

const run = promisify(execFile)
const corral = await startCorral(t)

/** Scenarios that need no tools, resources or prompts of a test server. corral has no logging, completions and prompts. */
const SCENARIOS = [
  'server-initialize',
  'ping',
  'tools-list',
  'resources-list',
  'server-sse-multiple-streams',
  'dns-rebinding-protection'
]

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

t.test('the conformance tests that apply to any server pass', { skip: process.platform !== 'linux' }, async t => {
  const { program, node } = conformanceProgram()
  const cwd = t.testdir()
  for (const scenario of SCENARIOS) {
    const args = [program, 'server', '--url', `${corral.url}/mcp`, '--scenario', scenario]
    const { stdout } = await run(node, args, { cwd }).catch(error => error as { stdout: string })
    t.match(stdout, /Passed: [1-9]\d*\/[1-9]\d*, 0 failed, 0 warnings/, scenario)
  }
})

const speech = await speechTools()
t.test('transcribe writes down what is said', { skip: typeof speech === 'string' && speech }, async t => {
  if (typeof speech === 'string') return
  const { voice, recognizer, whisper, python } = speech
  const [speaker, model] = ['rhasspy/piper-voices', 'ggerganov/whisper.cpp']
  const folder = 'en/en_US/joe/medium/en_US-joe-medium.onnx'
  const hub = await startHubEmulator(t, {
    repositories: {
      [model]: { files: { 'ggml-base.bin': { from: recognizer } } },
      [speaker]: { files: { [folder]: { from: voice }, [`${folder}.json`]: { from: `${voice}.json` } } }
    }
  })
  const config = `speech: ${JSON.stringify({ whisper_server: whisper, python })}`
  const corral = await startCorral(t, { env: { HF_ENDPOINT: hub.url }, config })
  for (const name of [`${model}:base`, `${speaker}:en_US-joe-medium`]) {
    t.match((await corral.events('/api/pull', { model: name })).at(-1), { status: 'success' }, name)
  }
  const input = 'The doctor asked him to rest for two weeks.'
  const spoken = await corral.send('/v1/audio/speech', { model: speaker, response_format: 'wav', input })
  const audio = Buffer.from(await spoken.arrayBuffer()).toString('base64')
  for (const kind of CLIENTS) {
    const client = await connectMcp(t, corral, kind)
    const heard = await call(client, 'transcribe', { model, audio, language: 'en' }, { timeout: 600_000 })
    t.match(heard, { failed: false, text: /doctor asked him to rest/i, data: { text: /doctor/i } })
  }
})
