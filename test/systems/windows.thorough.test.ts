import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  writeFileSync
} from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { answered } from '../plugins/page/support.ts'
import { testBrowser } from '../support/browser.ts'
import { alive, CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, until } from '../support/corral.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import { onWindows, WINDOWS_PARTS } from '../support/windows/windows-parts.ts'
import { onZ, WINDOWS_NODE, windowsFolder, writeAsNotepad } from '../support/windows/wine.ts'

/* The built product on Windows' own Node.js with a real llama-server.exe, under Wine. docs/systems.md lists what this covers,
   and which faults are Wine's. The tests share one server and run in order. */

t.setTimeout(1_200_000)
const GGUF = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const MESSAGES = [CAPITAL_QUESTION]

t.test('corral on Windows', onWindows(), async t => {
  const hub = await startHubEmulator(t, {
    repositories: { 'test/repo': { files: { 'model-f16.gguf': readFileSync(GGUF) } } }
  })
  // A blank, an apostrophe, and letters beyond the code page.
  const folder = windowsFolder(t, `Zoë's models 模型`)
  const home = join(folder.path, 'home')
  const WINDOWS_HOME = `${folder.windows}\\home`
  // Near the data directory, as usual: llama.cpp reads some paths in the code page.
  cpSync(WINDOWS_PARTS.engine, join(folder.path, 'engine'), { recursive: true })
  const env = { CORRAL_HOME: WINDOWS_HOME, HF_ENDPOINT: hub.url, CORRAL_LLAMA_CPP: `${folder.windows}\\engine` }
  const corral = (...args: string[]) => folder.corral(args, env)
  const engines = () =>
    readdirSync('/proc').filter(pid => {
      try {
        const line = readFileSync(`/proc/${pid}/cmdline`, 'utf8')
        return line.includes('llama-server') && line.includes(folder.windows) && alive(Number(pid))
      } catch {
        return false
      }
    })
  const place = (path: string) => {
    const target = join(folder.path, path)
    mkdirSync(join(target, '..'), { recursive: true })
    copyFileSync(GGUF, target)
    return `${folder.windows}\\${path.replaceAll('/', '\\')}`
  }

  const owner = () => JSON.parse(readFileSync(join(home, 'owner.json'), 'utf8'))
  const killOwner = () => folder.run('taskkill', ['/F', '/PID', String(owner().pid)])

  // The first start creates the data directory.
  const first = await folder.serve(env)
  // Wine shows the rights of others as those of a file's mode.
  t.equal(statSync(home).mode & 0o007, 0, 'other accounts cannot enter the data directory')
  first.process.kill('SIGKILL')
  await first.exited

  const plugin = (name: string) =>
    `export default { name: '${name}', api: 1, setup: context => void context.log.info('${name} is set up') }\n`
  for (const name of ['by-path', 'by-url']) writeFileSync(join(folder.path, `${name}.mjs`), plugin(name))
  const url = encodeURI(`file:///${folder.windows.replaceAll('\\', '/')}/by-url.mjs`)
  const config = `plugins:
  - ${folder.windows}\\by-path.mjs
  - ${url}
web:
  conversations: server
storage:
  import_roots:
    - ${folder.windows}
    - Z:\\
runtimes:
  engine_arguments: [--threads, "1", --threads-batch, "1"]
`
  writeAsNotepad(join(home, 'config.yaml'), config)
  let server = await folder.serve(env)

  await t.test('config check accepts a file with CRLF, a byte order mark and backslashes', async t => {
    t.match(await corral('config', 'check'), { code: 0, stdout: /no errors/, stderr: '' })
    writeAsNotepad(join(folder.path, 'other.yaml'), 'storage:\n  import_roots:\n    - "C:\\models"\n')
    const wrong = await corral('config', 'check', '--config', `${folder.windows}\\other.yaml`)
    t.match(wrong, { code: 2, stderr: /other\.yaml:3:\d+ .*Invalid escape sequence/ })
  })

  await t.test('plugins are loaded by path and by file URL', async t => {
    for (const name of ['by-path', 'by-url']) t.match(server.log(), `${name} is set up`)
  })

  await t.test('a second server is refused in the same data directory', async t => {
    t.match(await corral('serve', '--port', '0'), { code: 1, stderr: /Another corral \(process \d+, http.*uses C:\\/ })
  })

  await t.test('run prints the first answer, and ps, list and doctor show the model', async t => {
    t.match(await corral('run', DEMO, CAPITAL_QUESTION.content), { code: 0, stdout: CAPITAL_ANSWER })
    t.match(await corral('ps'), { code: 0, stdout: new RegExp(DEMO) })
    t.match(await corral('list'), { code: 0, stdout: new RegExp(DEMO) })
    const { stdout } = await corral('doctor', '--json')
    t.match(JSON.parse(stdout), { platform: /^Windows_NT/, hardware: { platform: 'win32' } })
    t.equal(engines().length, 1, 'one engine runs')
    t.match(readFileSync(`/proc/${engines()[0]}/cmdline`, 'utf8'), '--slot-save-path\0..\\home\\cache')
  })

  await t.test('every API streams', async t => {
    const input = { model: DEMO, messages: MESSAGES, stream: true, temperature: 0, max_tokens: 30 }
    const streams: [string, object, RegExp][] = [
      ['/api/chat', { model: DEMO, messages: MESSAGES, options: { temperature: 0 } }, /"done":true/],
      ['/ollama/api/chat', { model: DEMO, messages: MESSAGES, options: { temperature: 0 } }, /"done":true/],
      ['/v1/chat/completions', input, /data: \[DONE\]/],
      ['/v1/completions', { ...input, messages: undefined, prompt: 'The capital' }, /data: \[DONE\]/],
      ['/v1/responses', { model: DEMO, input: CAPITAL_QUESTION.content, stream: true }, /response\.completed/],
      ['/v1/messages', input, /message_stop/]
    ]
    for (const [path, body, end] of streams) {
      const reply = await server.send(path, body)
      const text = await reply.text()
      t.equal(reply.status, 200, `${path}: ${text}`)
      t.match(text, end, path)
      t.ok(text.split('\n').filter(line => line.startsWith('data: ') || line.startsWith('{')).length > 3, text)
    }
  })

  const browser = testBrowser(t)
  await t.test('the page chats', { skip: browser.skip }, async t => {
    const { page, complaints } = await browser.open(t, server.url)
    t.match(await (await answered(page, CAPITAL_QUESTION.content)).textContent(), /\w/)
    t.same(complaints, [])
  })

  await t.test('a model is pulled from a hub', async t => {
    const pulled = await corral('pull', 'hf:test/repo')
    t.match(pulled, { code: 0, stderr: /pulled test\/repo/ })
    const answer = await server.json('/api/chat', { model: 'test/repo', messages: MESSAGES, stream: false })
    t.match(answer, { status: 200, body: { message: { content: /\w/ } } })
  })

  await t.test('models are imported from every kind of path', async t => {
    const own = place('models/tiny.gguf')
    const extended = (path: string) => `\\\\?\\${path}`
    const paths: Record<string, string> = {
      'another drive': onZ(GGUF),
      'the same drive': own,
      'forward slashes': own.replaceAll('\\', '/'),
      'an extended path': extended(own),
      'a folder': `${folder.windows}\\models`,
      'another case': own.replace('tiny.gguf', 'TINY.gguf')
    }
    for (const [at, [what, path]] of Object.entries(paths).entries()) {
      const imported = await server.json('/api/import', { path, model: `x/n${at}` })
      t.equal(imported.status, 200, `${what}, ${path}: ${JSON.stringify(imported.body)}`)
    }
    const answer = await server.json('/api/chat', { model: 'x/n0', messages: MESSAGES, stream: false })
    t.equal(answer.status, 200, JSON.stringify(answer.body))
    // The private socket is an admin's, so this path need not be below a root.
    t.match(await corral('import', onZ(GGUF), 'x/command'), { code: 0, stderr: /imported x\/command/ })

    const share = '\\\\localhost\\share\\tiny.gguf'
    t.match(await server.json('/api/import', { path: share, model: 'x/share' }), { body: { code: 'path_not_allowed' } })
    t.match(await corral('import', share, 'x/share'), { code: 2, stderr: /There is no \\\\localhost/ })
  })

  await t.test('names that Windows treats specially are refused', async t => {
    const path = onZ(GGUF)
    for (const name of ['con/model', 'me/NUL', 'me/aux.gguf', 'me/model.', 'com1/model', 'me/model:prn']) {
      t.match(
        await server.json('/api/import', { path, model: name }),
        { status: 400, body: { code: 'invalid_model_name' } },
        name
      )
    }
    t.match(await server.json('/api/import', { path, model: 'X/N0' }), {
      status: 200,
      body: { model: { name: 'x/n0' } }
    })
    const { body } = await server.json('/api/tags')
    t.equal(body.models.filter(({ name }: { name: string }) => /^x\/n0$/i.test(name)).length, 1)
  })

  await t.test('conversations are stored and found again', async t => {
    const document = { messages: [{ role: 'user', content: 'Grüße' }] }
    const path = '/api/conversations/one'
    t.match(await server.json(path, { title: 'First', document }, 'PUT'), { status: 200 })
    t.match(await server.json(path), { status: 200, body: { title: 'First', document } })
  })

  await t.test('unload, and rm of a loaded model, end the engine', async t => {
    t.match(await corral('stop', DEMO), { code: 0 })
    t.match(await server.json('/api/chat', { model: 'x/n1', messages: MESSAGES, stream: false }), { status: 200 })
    t.match(await corral('rm', 'x/n1'), { code: 0 })
    t.notOk(existsSync(join(home, 'models', 'x', 'n1')), 'its files are gone')
    t.match(await server.json('/api/show', { model: 'x/n1' }), { status: 404 })
  })

  await t.test('after the first key, only the named pipe works without one', async t => {
    t.match(await corral('key', 'create', 'alice'), { code: 0, stdout: /^corral_/ })
    t.equal((await server.json('/api/tags')).status, 401)
    t.match(JSON.parse(readFileSync(join(home, 'owner.json'), 'utf8')), {
      socket: /^\\\\\.\\pipe\\corral-[0-9a-f]{32}$/
    })
    t.match(await corral('list'), { code: 0, stdout: new RegExp(DEMO) })
    t.match(await corral('key', 'list'), { code: 0, stdout: /alice/ })
  })

  await t.test('no engine survives when Node.js is killed, and the next server starts', async t => {
    t.match(await corral('run', DEMO, CAPITAL_QUESTION.content), { code: 0 })
    t.ok(engines().length > 0, 'an engine runs')
    server.process.kill('SIGKILL')
    await server.exited
    await until('the engines end', () => engines().length === 0, 20_000)

    server = await folder.serve(env)
    t.match(await corral('run', DEMO, CAPITAL_QUESTION.content), { code: 0, stdout: CAPITAL_ANSWER })
    t.match(await killOwner(), { code: 0 })
    await server.exited
    await until('the engines end', () => engines().length === 0, 20_000)
  })

  await t.test('Ctrl-C stops the server and its engine', async t => {
    const onTerminal = await folder.serveOnTerminal(env)
    t.match(await corral('run', DEMO, CAPITAL_QUESTION.content), { code: 0 })
    onTerminal.type('\x03')
    t.equal(await onTerminal.exited, 0)
    t.match(onTerminal.log(), /SIGINT: shutting down/)
    t.equal(engines().length, 0)
    t.notOk(existsSync(join(home, 'owner.json')))
  })

  await t.test('service creates a task, whose command starts the server', async t => {
    const installed = await corral('service', 'install', '--port', '0')
    t.match(installed, { code: 0, stderr: /runs schtasks\.exe \/Create/ })
    const [, file] = /^service +(.*)$/m.exec(installed.stdout)!
    t.match(await folder.run('schtasks', ['/query', '/tn', 'corral']), { code: 0 })
    t.match(await corral('service', 'status'), { code: 3, stdout: /^state +ready$/m, stderr: '' })

    const onC = join(WINDOWS_PARTS.prefix, 'drive_c', ...file!.split('\\').slice(1))
    const [, text] = /<Arguments>--headless cmd\.exe (.*)<\/Arguments>/.exec(readFileSync(onC, 'utf8'))!
    const words = text!.replace(/&#(\d+);/g, (_, code) => String.fromCodePoint(Number(code)))
    const start = `require('child_process').spawn('cmd.exe', [process.argv[1]], { windowsVerbatimArguments: true, stdio: 'ignore' })`
    const ended = folder.run(WINDOWS_NODE, ['-e', start, words])
    const log = join(home, 'logs', 'service.log')
    await until('its log says that it listens', () => existsSync(log) && /listens on/.test(readFileSync(log, 'utf8')))
    t.match(await corral('list'), { code: 0, stdout: new RegExp(DEMO) })
    t.match(await killOwner(), { code: 0 })
    await ended
    t.match(await corral('service', 'uninstall'), { code: 0, stderr: /data is kept in C:\\.*home/ })
    t.notOk(existsSync(onC))
  })

  await t.test('a data directory may have a path of more than 260 characters', async t => {
    const deep = Array.from({ length: 5 }, (_, at) => `${at}`.repeat(60)).join('\\')
    const long = { ...env, CORRAL_HOME: `${folder.windows}\\${deep}` }
    // From another drive llama-server cannot read that path, and the prompt cache is left out.
    const elsewhere = { ...long, CORRAL_LLAMA_CPP: onZ(WINDOWS_PARTS.engine) }
    t.match(await folder.corral(['run', DEMO, CAPITAL_QUESTION.content], elsewhere), {
      code: 0,
      stdout: CAPITAL_ANSWER
    })
  })
})
