import { execFile, spawn } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { freePort, isListening } from '../../../core/system/free-port.ts'
import { PYTHON_SCRIPTS, PYTHON_VARIABLES, pythonIn, realPython } from '../../clients/python-scripts.ts'
import { corral as command } from '../../command-line/command.ts'
import { newKey, startCorral, until } from '../../support/corral.ts'
import { newFolder } from '../../support/folder.ts'
import { conformanceProgram, installPackages } from '../../support/npm-packages.ts'
import { askFiveApis, results, scriptedModel, toolNames } from './support.ts'

// The reference servers of the Model Context Protocol, and servers with its SDK for Python.

t.setTimeout(600_000)

const VERSION = '2026.8.31'
const packages = ['filesystem', 'everything', 'memory'].map(name => `@modelcontextprotocol/server-${name}@${VERSION}`)
const modules = installPackages(`mcp-servers-${VERSION}`, packages)
const program = (name: string) => join(modules, `@modelcontextprotocol/server-${name}/dist/index.js`)
const folder = newFolder(t)
const note = join(folder, 'note.txt')
writeFileSync(note, 'The key is under the mat.')

/** Starts a server over HTTP and returns its address. */
async function listening(program: string, args: (port: number) => string[], env: Record<string, string> = {}) {
  const port = await freePort()
  const child = spawn(program, args(port), { env: { ...process.env, PORT: `${port}`, ...env }, stdio: 'ignore' })
  t.teardown(() => child.kill('SIGKILL'))
  await until(`${args(port)} listens`, () => isListening(port, '127.0.0.1'))
  return `http://127.0.0.1:${port}/mcp`
}

const python = pythonIn('mcp')
const script = join(PYTHON_SCRIPTS, 'mcp_tools.py')
const skipPython = realPython().skip
const local = (command: string, args: string[], environment = {}) => ({ command, arguments: args, environment })
const pythonServers = async () => ({
  python: local(python, [script, 'auto'], PYTHON_VARIABLES),
  'python-old': local(python, [script, 'legacy'], PYTHON_VARIABLES),
  'python-http': { url: await listening(python, port => [script, 'auto', `${port}`], PYTHON_VARIABLES) },
  'python-old-http': { url: await listening(python, port => [script, 'legacy', `${port}`], PYTHON_VARIABLES) }
})
const everything = program('everything')
const servers = {
  files: local('node', [program('filesystem'), folder]),
  everything: local('node', [everything]),
  'everything-http': { url: await listening(process.execPath, () => [everything, 'streamableHttp']) },
  memory: {
    // biome-ignore lint/suspicious/noTemplateCurlyInString: a reference to a variable
    ...local('node', [program('memory')], { MEMORY_FILE_PATH: join(folder, '${CORRAL_KEY}.jsonl') }),
    isolate: 'key'
  },
  ...(skipPython ? {} : await pythonServers())
}

let wanted: object = {}
const { section, asked } = await scriptedModel(t, body => {
  const result = results(body).at(-1)
  return result === undefined
    ? { text: 'Let me see. ', calls: [{ name: toolNames(body)[0]!, arguments: wanted }] }
    : { text: result.split('\n').slice(1).join('\n') }
})
const corral = await startCorral(t, { config: `${section}mcp: { servers: ${JSON.stringify(servers)} }\n` })
const { home } = corral

const sum = { tool: 'add', given: { a: 2, b: 40 }, output: '42', count: 4, skip: skipPython }
const echo = { tool: 'echo', given: { message: 'Hello' }, output: 'Echo: Hello', count: 13 }
const CASES: Record<keyof Awaited<ReturnType<typeof pythonServers>> | keyof typeof servers, any> = {
  files: { tool: 'read_text_file', given: { path: note }, output: 'The key is under the mat.', count: 14 },
  everything: echo,
  'everything-http': echo,
  memory: { tool: 'search_nodes', given: { query: 'nobody' }, output: /"entities": \[\]/, count: 9 },
  python: sum,
  'python-old': sum,
  'python-http': sum,
  'python-old-http': sum
}

for (const [server, { tool, given, output, count, skip = false }] of Object.entries(CASES)) {
  t.test(`${server} is listed, checked and called, with the same answer in all APIs`, { skip }, async t => {
    const checked = await command(['mcp', 'check', server], { home })
    t.match(checked, { code: 0, stdout: new RegExp(`^${server}\\.${tool} `, 'm') }, checked.stderr)
    t.equal(checked.stdout.match(new RegExp(`^${server}\\.`, 'gm'))?.length, count, checked.stdout)
    const transport = 'url' in servers[server as 'everything-http'] ? 'http' : 'stdio'
    t.match((await command(['mcp', 'list'], { home })).stdout, new RegExp(`^${server} +${transport} +running `, 'm'))
    const called = await command(['mcp', 'call', `${server}.${tool}`, JSON.stringify(given)], { home })
    t.match(called, { code: 0, stdout: output })
    wanted = given
    asked.length = 0
    const { answers, used } = await askFiveApis(t, corral, { 'x-corral-tools': `${server}.${tool}` })
    t.match(answers[0], output)
    t.strictSame(answers, new Array(5).fill(answers[0]))
    t.strictSame(used, new Array(5).fill(`${server}.${tool}`))
    t.equal(new Set(asked.map(body => JSON.stringify(body.tools))).size, 1, 'the model sees the same tool')
  })
}

const call = async (server: string, tool: string, given: object = {}, headers: Record<string, string> = {}) =>
  (await corral.json(`/api/mcp/${server}/call`, { tool, arguments: given }, { headers, local: !headers.authorization }))
    .body

t.test('results of all kinds become text', async t => {
  for (const server of ['everything', 'everything-http']) {
    t.match(await call(server, 'get-tiny-image'), {
      failed: false,
      output: /\[image image\/png, \d+ bytes: not shown\]/
    })
    t.match(await call(server, 'get-sum', { a: 'x' }), { failed: true, output: /./ })
  }
})

t.test('prompts are listed and filled', async t => {
  for (const server of ['everything', 'everything-http']) {
    const { prompts } = (await corral.json(`/api/mcp/${server}/prompts`)).body
    const values = [
      { name: 'city', required: true },
      { name: 'state', required: false }
    ]
    t.match(
      prompts.find(({ name }: any) => name === 'args-prompt'),
      { arguments: values }
    )
    const filled = { prompt: 'args-prompt', arguments: { city: 'Paris' } }
    const { messages } = (await corral.json(`/api/mcp/${server}/prompt`, filled)).body
    t.strictSame(messages, [{ role: 'user', text: "What's weather in Paris?" }])
  }
})

t.test('servers in Python speak both versions, and their failures are results', { skip: skipPython }, async t => {
  for (const server of ['python', 'python-http', 'python-old', 'python-old-http']) {
    const version = server.includes('old') ? '2025-11-25' : '2026-07-28'
    t.match(await call(server, 'version'), { failed: false, output: version }, server)
    t.match(await call(server, 'fail'), { failed: true, output: /Error executing tool fail/ }, server)
    t.match(await call(server, 'picture'), { failed: false, output: '[image image/png, 4 bytes: not shown]' }, server)
  }
})

t.test('keys of an isolated server do not see each other’s memory', async t => {
  const keys = [await newKey(corral, 'a', { role: 'operator' }), await newKey(corral, 'b', { role: 'operator' })]
  const [a, b] = keys.map(key => ({ authorization: `Bearer ${key}` }))
  const entities = [{ name: 'Ada', entityType: 'person', observations: ['likes tea'] }]
  t.match(await call('memory', 'create_entities', { entities }, a), { failed: false })
  t.match((await call('memory', 'read_graph', {}, a)).output, /likes tea/)
  t.notMatch((await call('memory', 'read_graph', {}, b)).output, /Ada/)
  t.notMatch((await call('memory', 'read_graph')).output, /Ada/)
})

// Sessions, progress and cancelling are the SDK's. corral neither asks users for a server nor supports OAuth, and the
// scenario "sse-retry" measures times.
const CLIENT_SCENARIOS = {
  initialize: undefined,
  tools_call: { tool: 'add_numbers', given: { a: 2, b: 40 } }
}
t.test('the conformance tests of clients pass', { skip: process.platform !== 'linux' }, async t => {
  const { node, program } = conformanceProgram()
  for (const [scenario, calling] of Object.entries(CLIENT_SCENARIOS)) {
    const place = newFolder(t)
    const [address, done] = [join(place, 'address'), join(place, 'done')]
    const client = join(place, 'client.mjs')
    // The scenario's server is there as long as its client runs.
    writeFileSync(
      client,
      `import { existsSync, writeFileSync } from 'node:fs'
writeFileSync('${address}', process.argv[2])
while (!existsSync('${done}')) await new Promise(next => setTimeout(next, 50))`
    )
    const args = [program, 'client', '--command', `${node} ${client}`, '--scenario', scenario, '--timeout', '120000']
    const judged = promisify(execFile)(node, args, { cwd: place }).catch(
      error => error as { stdout: string; stderr: string }
    )
    const url = await until('the address', () => existsSync(address) && readFileSync(address, 'utf8'))
    const asking = await startCorral(t, { config: `mcp: { servers: { tested: { url: "${url}" } } }\n` })
    t.match(await asking.json('/api/mcp/tested'), { status: 200 }, scenario)
    if (calling) {
      const body = { tool: calling.tool, arguments: calling.given }
      t.match(await asking.json('/api/mcp/tested/call', body), { body: { failed: false, output: /42/ } })
    }
    writeFileSync(done, '')
    const { stdout, stderr } = await judged
    t.match(`${stdout}${stderr}`, /Passed: [1-9]\d*\/[1-9]\d*, 0 failed, 0 warnings/, scenario)
  }
})
