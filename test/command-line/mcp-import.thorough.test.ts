import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { usualFiles } from '../../command-line/commands/mcp-import.ts'
import { convertServers, parseServers } from '../../command-line/tool-import.ts'
import { ADDER, toolProgram } from '../plugins/tools/support.ts'
import { startCorral } from '../support/corral.ts'
import { readCases } from '../support/fixture.ts'
import { corral, newHome } from './command.ts'

t.test('settings of other programs become settings, variables and notes', async t => {
  type Case = { title: string; file: string; servers?: object; variables?: object; notes?: string[]; error?: string }
  for (const { title, file, servers, variables = {}, notes = [], error } of readCases<Case[]>(
    'mcp-import-cases.yaml',
    'files'
  )) {
    if (error !== undefined) {
      t.throws(() => parseServers(file), { message: error }, title)
      continue
    }
    const converted = convertServers(parseServers(file), ['present'])
    t.strictSame(converted.servers, servers ?? {}, title)
    t.strictSame(Object.fromEntries(converted.variables), variables, `${title}: variables`)
    t.strictSame(converted.notes, notes, `${title}: notes`)
  }
  t.equal(Object.keys(convertServers(parseServers('\ufeff{"mcpServers":{"a":{"command":"x"}}}'), []).servers).length, 1)
})

t.test('the files of the three programs are found on each system', async t => {
  t.strictSame(usualFiles('darwin', {}, '/Users/me'), [
    '/Users/me/.lmstudio/mcp.json',
    '/Users/me/Library/Application Support/Claude/claude_desktop_config.json',
    '/Users/me/.cursor/mcp.json'
  ])
  t.match(usualFiles('linux', { XDG_CONFIG_HOME: '/x' }, '/home/me')[1], '/x/Claude/claude_desktop_config.json')
  t.match(usualFiles('win32', { APPDATA: 'C:\\Roaming' }, '/home/me')[1], /^C:\\Roaming.Claude/)
})

t.test('corral mcp import adds servers, whose tools then run, and keeps the rest of the file', async t => {
  const home = newHome(t)
  const target = join(home, 'config.yaml')
  const before = '# mine\nmcp:\n  max_calls: 3 # few\n  servers:\n    # the old one\n    present:\n      command: old\n'
  writeFileSync(target, before)
  const program = toolProgram(t, ADDER)
  const file = join(home, 'mcp.json')
  const secret = 'sk-aaaabbbbccccdddd'
  writeFileSync(
    file,
    `{ // of LM Studio
  "mcpServers": {
    "Math": { "command": "node", "args": [${JSON.stringify(program)}], "env": { "API_KEY": "${secret}", "LEVEL": "info" } },
    "present": { "command": "new" },
  }
}`
  )
  const run = (...more: string[]) => corral(['mcp', 'import', file, ...more], { home })
  const shown = await run('--print')
  t.equal(shown.code, 0, shown.stderr)
  const reference = `\${API_KEY}`
  const added = { command: 'node', arguments: [program], environment: { API_KEY: reference, LEVEL: 'info' } }
  t.strictSame(parse(shown.stdout), { mcp: { servers: { math: added } } })
  t.match(shown.stderr, /Math is named math\.\n- present exists already and stays as it is\./)
  t.match(shown.stderr, /Set them for corral:\n- API_KEY, with the value of math\.env\.API_KEY/)
  t.match(await run(), { code: 2, stderr: /Nothing was changed\. Add --yes/ })
  t.equal(readFileSync(target, 'utf8'), before)

  const done = await run('--yes')
  t.match(done, { code: 0, stderr: /Saved to .*config\.yaml\.bak\. Restart corral to apply it\./ })
  const written = readFileSync(target, 'utf8')
  t.ok(written.startsWith(before), written)
  t.strictSame(parse(written).mcp.servers.math, added)
  t.notMatch([shown, done, written], secret)
  t.equal(readFileSync(`${target}.bak`, 'utf8'), before)
  t.match(await run('--yes'), { code: 0, stderr: /There is nothing to import\./ })
  t.equal(readFileSync(target, 'utf8'), written)

  const running = await startCorral(t, { home, config: written, env: { API_KEY: secret } })
  const called = await running.json('/api/mcp/math/call', { tool: 'add', arguments: { a: 1, b: 2 } }, { local: true })
  t.match(called.body, { output: '3', failed: false })

  writeFileSync(file, '{\n  "mcpServers": { "a": { "command": "x" }\n')
  t.match(await run('--yes'), { code: 2, stderr: /mcp\.json cannot be imported: line 3, column 1 is not valid JSON/ })
  const other = await corral(['mcp', 'import'], { home, env: { HOME: home, XDG_CONFIG_HOME: home } })
  t.match(other, { code: 2, stderr: /There is no file to import\. Name one, or use one of these: .*\.lmstudio/ })
})
