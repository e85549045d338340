import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { type CommandOptions, corral, newHome } from '../command-line/command.ts'
import { onTerminal } from '../command-line/terminal.ts'
import { DEMO } from '../support/corral.ts'
import { sample } from '../support/thorough.ts'

/** A stranger's folder, in which every file that is run or imported leaves a mark. */
function trap(t: Test) {
  const folder = newHome(t)
  const mark = join(folder, 'mark')
  const module = `import { writeFileSync } from 'node:fs'
writeFileSync(${JSON.stringify(mark)}, '')
export default { name: 'trap', api: 1, setup: () => ({}) }`
  const packageFolder = join(folder, 'node_modules', 'corral-plugin-trap')
  mkdirSync(packageFolder, { recursive: true })
  writeFileSync(join(packageFolder, 'package.json'), '{"main": "index.mjs"}')
  for (const file of [join(packageFolder, 'index.mjs'), join(folder, 'trap.mjs')]) writeFileSync(file, module)
  writeFileSync(join(folder, 'llama-server'), `#!/bin/sh\ntouch '${mark}'\n`, { mode: 0o755 })
  writeFileSync(
    join(folder, 'config.yaml'),
    `plugins: [./trap.mjs, corral-plugin-trap]
port: 1
runtimes: { llama_cpp: . }
models: { '${DEMO}': { environment: { LD_PRELOAD: ./trap.so } } }
security: { insecure: true, api_keys: [known] }
conversion: { python: ./python }
`
  )
  return { folder, mark }
}

t.test('a config.yaml in the working directory runs nothing', async t => {
  const { folder, mark } = trap(t)
  const options: CommandOptions = { home: folder, env: { CORRAL_HOME: newHome(t), CORRAL_LLAMA_CPP: '' } }
  const engine: CommandOptions = { home: folder, env: { CORRAL_HOME: options.env!.CORRAL_HOME! } }
  const commands: [command: string, code: number, given: CommandOptions][] = [
    ['serve', 2, options],
    ['show corral/tiny-chat', 0, options],
    ['list', 0, options],
    ['plugin list', 0, options],
    ['run corral/tiny-chat Hi --max-tokens 1', 0, engine],
    ['key list', 0, options],
    ['ps', 3, options],
    ['completion bash', 0, options],
    ['config check', 2, options],
    ['config show', 2, options],
    ['doctor --no-build', 2, options],
    ['config trust', 2, options]
  ]
  for (const [command, code, given] of sample(commands, 4)) {
    const ended = await corral(command.split(' '), given)
    t.equal(ended.code, code, `corral ${command}: ${ended.stderr}`)
    t.notOk(existsSync(mark), `corral ${command} runs nothing in the folder`)
    t.notMatch(ended.stdout, 'trap', 'it has no plugin from the folder')
    if (command !== 'serve') continue
    t.match(ended.stderr, /^error: config\.yaml is in the working directory, and you have not trusted it/)
    t.match(ended.stderr, `${join(folder, 'config.yaml')}. If you trust it, run "corral config trust" in ${folder}`)
  }
  const trusted = await corral(['config', 'trust', '--yes'], options)
  t.match(trusted.stderr, 'is trusted until it changes', 'a user may trust it')
  t.ok(existsSync(mark), 'then it applies')
  t.match((await corral(['config', 'trust', '--list'], options)).stdout, join(folder, 'config.yaml'))
  t.match((await corral(['config', 'trust', '--remove'], options)).stderr, 'is not trusted')
  t.equal((await corral(['config', 'check'], options)).code, 2)
})

t.test('serve asks once at a terminal whether to trust the file', async t => {
  const { folder, mark } = trap(t)
  writeFileSync(join(folder, 'config.yaml'), 'plugins: [./trap.mjs]\nport: 0\n')
  const options = { columns: 100, env: { CORRAL_HOME: newHome(t), NO_COLOR: '1' } }
  const refusing = onTerminal(t, ['serve'], folder, options)
  await refusing.sees('do you trust it? [y/N]')
  await refusing.press('\r')
  t.equal(await refusing.ended(), 2)
  t.notOk(existsSync(mark), 'a plugin is not imported before that')
  const trusting = onTerminal(t, ['serve'], folder, options)
  await trusting.sees('do you trust it? [y/N]')
  await trusting.press('y\r')
  await trusting.sees('Ctrl-C stops the server')
  t.ok(existsSync(mark))
  await trusting.press('\x03')
  await trusting.ended()
  const again = onTerminal(t, ['serve'], folder, options)
  await again.sees('Ctrl-C stops the server')
  t.notMatch(again.screen(), 'do you trust it', 'it does not ask again')
  await again.press('\x03')
  await again.ended()
})
