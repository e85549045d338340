import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import t, { type Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { corral as command } from '../command-line/command.ts'
import { COMMAND, DEMO, startCorral, until } from '../support/corral.ts'
import { newFolder } from '../support/folder.ts'

/** A folder with a plugin "bad" made of this code. */
function pluginFolder(t: Test, { top = '', setup = '', optional = true }): string {
  const folder = newFolder(t)
  const text = `import { readFile } from 'node:fs/promises'
    ${top}
    export default { name: 'bad', api: 1, optional: ${optional}, setup(context) { ${setup} } }`
  writeFileSync(join(folder, 'bad.mjs'), text)
  writeFileSync(join(folder, 'config.yaml'), 'plugins: [./bad.mjs]\n')
  return folder
}

function collectOutput(child: ChildProcess): () => string {
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream!.setEncoding('utf8').on('data', text => (output += text))
  return () => output
}

t.test('a plugin that blocks the process is named, and SIGTERM ends the server', async t => {
  for (const [setup, name] of [
    [{ top: 'for (;;);' }, /The module \S+bad\.mjs:2 blocks the server/],
    [{ setup: 'for (;;);' }, /Plugin \\"bad\\" \(\S+bad\.mjs:3\) blocks the server/],
    [{ setup: 'Promise.resolve().then(() => { for (;;); }); return {}' }, /Plugin \\"bad\\" \(\S+bad\.mjs:3\) blocks/]
  ] as const) {
    const folder = pluginFolder(t, setup)
    const env = { ...process.env, CORRAL_HOME: folder, CORRAL_PORT: '0', CORRAL_CONFIG: join(folder, 'config.yaml') }
    const child = spawn(process.execPath, [COMMAND, 'serve'], { env, stdio: ['ignore', 'pipe', 'pipe'] })
    t.teardown(() => child.kill('SIGKILL'))
    const output = collectOutput(child)
    await until('the plugin is named', () => name.test(output()))
    child.kill('SIGTERM')
    const [, signal] = await once(child, 'exit')
    t.equal(signal, 'SIGTERM')
  }
})

t.test('a plugin that blocks the process for too long is named, and the process exits', async t => {
  const script = `
    import { runAs } from ${JSON.stringify(pathToFileURL(join(packageRoot, 'dist/core/plugins/running-plugin.js')))}
    import { watchPlugins } from ${JSON.stringify(pathToFileURL(join(packageRoot, 'dist/command-line/plugin-watch.js')))}
    process.on('SIGTERM', () => console.log('handled'))
    watchPlugins({ signals: 2, report: 4, end: 12 }, 50)
    // A block of corral's own is left alone, and so are the handlers.
    const free = Date.now() + 1000
    while (Date.now() < free);
    process.kill(process.pid, 'SIGTERM')
    setTimeout(() => runAs({ name: 'bad', path: '/bad.mjs' }, () => { for (;;); }), 300)`
  const args = ['--input-type=module', '-e', script]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'], env: { PATH: process.env.PATH } })
  const output = collectOutput(child)
  const [, signal] = await once(child, 'close')
  t.equal(signal, 'SIGKILL')
  const messages = output().trim().split('\n')
  t.match(messages, [
    'handled',
    /^Plugin "bad" blocks the server/,
    /^Plugin "bad" still blocks the server, so the server is stopped/
  ])
  t.equal(messages.length, 3)
})

const FAULTS = {
  rejection: `Promise.reject('plain text')`,
  'failed read': `readFile('/absent/file')`,
  timer: `setTimeout(() => { throw new Error('in a timer') }, 10)`,
  microtask: `queueMicrotask(() => { throw new Error('in a microtask') })`
}

t.test('a server survives an uncaught error of an optional plugin and names it', async t => {
  const faults = Object.entries(FAULTS).map(([name, code]) => `if (text.includes('${name}')) ${code}`)
  const setup = `return { on: { request({ body }) {
    const text = JSON.stringify(body)
    ${faults.join('\n')}
    if (text.includes('exit')) process.exit(0)
  } } }`
  const folder = pluginFolder(t, { setup })
  const corral = await startCorral(t, { config: `plugins: [${join(folder, 'bad.mjs')}]` })
  const ask = (content: string) => ({ model: DEMO, messages: [{ role: 'user', content }], stream: false })
  for (const name of Object.keys(FAULTS)) await corral.json('/api/chat', ask(`a ${name}`))
  const reports = () => corral.log().match(/Plugin \\"bad\\" threw an uncaught error\. The server continues/g) ?? []
  await until('all are reported', () => reports().length === Object.keys(FAULTS).length)
  t.match(await corral.json('/api/chat', ask('Hello')), { status: 200 })
  await t.rejects(corral.json('/api/chat', ask('exit')))
  t.equal(await corral.end(), 1)
  t.match(corral.log(), /Plugin \\"bad\\" ended the server with process\.exit\(0\)/)
})

t.test('a server exits with code 1 after an uncaught error of a required plugin', async t => {
  const setup = `return { on: { request() { ${FAULTS.timer} } } }`
  const folder = pluginFolder(t, { setup, optional: false })
  const corral = await startCorral(t, { config: `plugins: [${join(folder, 'bad.mjs')}]` })
  await corral.json('/v1/completions', { model: DEMO, prompt: 'Hello' }).catch(() => undefined)
  await until('it has stopped', () => /"msg":"stopped"/.test(corral.log()))
  t.equal(await corral.end(), 1)
  t.match(corral.log(), /Plugin \\"bad\\" threw an uncaught error\. The server stops\. Error: in a timer/)
})

t.test('corral plugin check finds a plugin that changes shared globals', async t => {
  for (const [setup, names] of [
    [{ setup: 'const { parse } = JSON; JSON.parse = text => parse(text); return {}' }, /it changes JSON\.parse,/],
    [
      { top: 'Array.prototype.last = function () { return this.at(-1) }', setup: 'return {}' },
      /Array\.prototype\.last/
    ],
    [
      {
        top: `import http from 'node:http'`,
        setup: `return { on: { request() { http.ServerResponse.prototype.writeHead = () => {} } } }`
      },
      /http\.ServerResponse\.prototype\.writeHead/
    ]
  ] as const) {
    const folder = pluginFolder(t, setup)
    const { code, stderr } = await command(['plugin', 'check', join(folder, 'bad.mjs')], { home: folder })
    t.equal(code, 1)
    t.match(stderr, names)
  }
  const folder = pluginFolder(t, { setup: 'return {}' })
  t.match(await command(['plugin', 'check', join(folder, 'bad.mjs')], { home: folder }), { code: 0, stderr: '' })
})
