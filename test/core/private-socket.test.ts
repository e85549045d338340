import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { request as httpRequest, type IncomingMessage } from 'node:http'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import pino from 'pino'
import t, { type Test } from 'tap'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import { createApplication } from '../../core/http/application.ts'
import { openPrivateSocket } from '../../core/http/private-socket.ts'

const log = pino({ level: 'silent' })
const config = {
  tls: { certificate: '', key: '' },
  body_limit: '1MiB',
  limits: { body_depth: 200 }
} as unknown as CoreConfig

function newFolder(t: Test): string {
  // Short, so that paths of sockets below it fit.
  const folder = mkdtempSync(join(tmpdir(), 'c-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

async function open(t: Test, home: string) {
  const app = await createApplication(config, log)
  app.get('/caller', async ({ caller }) => caller)
  await app.listen({ host: '127.0.0.1', port: 0 })
  const ended = new AbortController()
  const socket = (await openPrivateSocket(app, { home }, { log, ended: ended.signal }))!
  let isOpen = true
  const close = async () => {
    if (!isOpen) return
    isOpen = false
    socket.stopAccepting()
    ended.abort()
    await socket.closed()
    await app.close()
  }
  t.teardown(close)
  return { app, path: socket.path, close }
}

async function callerAt(place: { socketPath: string } | { port: number }): Promise<Record<string, unknown>> {
  const request = httpRequest({ ...place, path: '/caller', agent: false })
  request.end()
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  const [body] = await response.toArray()
  return JSON.parse(String(body))
}

const modeOf = (path: string) => (statSync(path).mode & 0o777).toString(8)

t.test('only this user can open the socket, and is an admin through it', async t => {
  const home = newFolder(t)
  const { app, path, close } = await open(t, home)
  t.equal(path, join(home, 'private', 'corral.sock'))
  t.same([modeOf(dirname(path)), modeOf(path)], ['700', '600'])
  t.match(await callerAt({ socketPath: path }), { role: 'admin', isLocal: true })
  const [{ port }] = app.addresses() as unknown as [{ port: number }]
  const other = await callerAt({ port })
  t.match(other, { role: 'operator', address: '127.0.0.1' })
  t.notOk(other.isLocal)
  await close()
  t.notOk(existsSync(path))
})

t.test(
  'another user is refused',
  { skip: process.getuid?.() !== 0 && 'only root can act as another user' },
  async t => {
    const home = newFolder(t)
    chmodSync(home, 0o755)
    const { path } = await open(t, home)
    const script = `require('net').connect(${JSON.stringify(path)}).on('error', e => console.log(e.code)).on('connect', () => { console.log('in'); process.exit() })`
    const outcome = async () => {
      const stdio = ['ignore', 'pipe', 'inherit'] as const
      const child = spawn(process.execPath, ['-e', script], { uid: 65534, gid: 65534, stdio: [...stdio] })
      return String(await once(child.stdout!, 'data')).trim()
    }
    t.equal(await outcome(), 'EACCES')
    chmodSync(path, 0o666)
    t.equal(await outcome(), 'EACCES', "the folder's permissions alone suffice")
  }
)

t.test('leftovers of a killed server are replaced, and an open folder is closed', async t => {
  const home = newFolder(t)
  mkdirSync(join(home, 'private'), { mode: 0o755 })
  chmodSync(join(home, 'private'), 0o755)
  // A socket without a listener occupies the path of the next one.
  const left = createServer().listen(join(home, 'private', 'left.sock'))
  await once(left, 'listening')
  left.close()
  writeFileSync(join(home, 'private', 'corral.sock'), '')
  const { path } = await open(t, home)
  t.equal(modeOf(dirname(path)), '700')
  t.match(await callerAt({ socketPath: path }), { isLocal: true })
})

t.test('the socket is among temporary files if its path is too long or taken', async t => {
  const runtime = newFolder(t)
  const before = process.env.XDG_RUNTIME_DIR
  process.env.XDG_RUNTIME_DIR = runtime
  t.teardown(() => {
    if (before === undefined) delete process.env.XDG_RUNTIME_DIR
    else process.env.XDG_RUNTIME_DIR = before
  })
  const home = join(newFolder(t), 'long'.repeat(30))
  mkdirSync(home)
  const first = await open(t, home)
  t.equal(dirname(dirname(first.path)), runtime)
  t.same([modeOf(dirname(first.path)), modeOf(first.path)], ['700', '600'])
  t.match(await callerAt({ socketPath: first.path }), { isLocal: true })
  t.notOk(existsSync(join(home, 'private')), 'nothing useless is created')
  await first.close()
  t.notOk(existsSync(dirname(first.path)), 'it is removed with the server')
  const second = await open(t, home)
  t.equal(second.path, first.path, 'the same one at each start')
  await second.close()

  // Another user has pointed the name elsewhere.
  const trap = newFolder(t)
  symlinkSync(trap, dirname(first.path))
  const third = await open(t, home)
  t.not(third.path, first.path)
  t.equal(modeOf(dirname(third.path)), '700')
  t.notOk(existsSync(join(trap, 'corral.sock')))

  const squatted = newFolder(t)
  symlinkSync(trap, join(squatted, 'private'))
  const fourth = await open(t, squatted)
  t.equal(dirname(dirname(fourth.path)), runtime)
  t.match(await callerAt({ socketPath: fourth.path }), { isLocal: true })
})
