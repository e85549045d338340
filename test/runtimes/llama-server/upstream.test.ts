import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, connect as dial, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { readJson, readText } from '../../../core/system/response-body.ts'
import { httpThreads } from '../../../runtimes/llama-server/arguments.ts'
import { createLlamaServerEngine } from '../../../runtimes/llama-server/engine.ts'
import { createUpstream, type EngineRequest } from '../../../runtimes/llama-server/upstream.ts'
import { failure } from '../../support/failure.ts'
import { engineDeps, engineSpec, realBuild } from './support.ts'

const NEVER = new AbortController().signal
const answer = (text: string, more = '') => `HTTP/1.1 200 OK\r\nContent-Length: ${text.length}\r\n${more}\r\n${text}`

/** Answers one request with head and body in `text`. */
type Answer = (socket: Socket, text: string, connection: number, request: number) => void
const echo: Answer = (socket, text, connection, request) => {
  const reply = answer(`${connection}.${request} ${text.split('\r\n\r\n')[1]}`)
  if (/^connection: close/m.test(text)) socket.end(reply)
  else socket.write(reply)
}

/**
 * Serves with a fixed number of threads, each bound to a connection until it ends. Idle connections are never closed,
 * and connections without a thread wait forever.
 */
async function serve(t: Test, threads: number, handle: Answer = echo) {
  const folder = mkdtempSync(join(tmpdir(), 'corral-upstream-'))
  const socketPath = join(folder, 'engine.sock')
  const sockets = new Set<Socket>()
  const waiting: Socket[] = []
  let busy = 0
  let connections = 0
  const begin = (socket: Socket) => {
    busy++
    const connection = ++connections
    let requests = 0
    socket.on('data', bytes => handle(socket, bytes.toString(), connection, ++requests))
    socket.once('close', () => {
      busy--
      const next = waiting.shift()
      if (next) begin(next)
    })
  }
  const server = createServer(socket => {
    sockets.add(socket)
    socket.on('error', () => {})
    socket.once('close', () => sockets.delete(socket))
    if (busy < threads) begin(socket)
    else waiting.push(socket)
  }).listen(socketPath)
  await once(server, 'listening')
  const upstream = createUpstream(
    { listen: { socketPath }, key: 'k', folder },
    { alive: () => true, explain: async error => error },
    threads
  )
  t.teardown(() => {
    upstream.cut(new Error('over'))
    for (const socket of sockets) socket.destroy()
    server.close()
    rmSync(folder, { recursive: true })
  })
  const ask = async (body: string, more: Partial<EngineRequest> = {}) =>
    await readText((await upstream.request({ method: 'POST', path: '/', body, keep: true, ...more })).body)
  return { upstream, ask, socketPath, sockets, connections: () => connections }
}

/** Sends a request without corral, as other clients do. */
async function askDirectly(socketPath: string): Promise<string> {
  const socket = dial(socketPath)
  socket.write('GET /health HTTP/1.1\r\nconnection: close\r\n\r\n')
  const chunks: Buffer[] = []
  for await (const chunk of socket) chunks.push(chunk)
  return Buffer.concat(chunks).toString()
}

t.test('consecutive requests share a connection, but not with streams', async t => {
  const { ask, connections } = await serve(t, 12)
  t.equal(await ask('a'), '1.1 a')
  t.equal(await ask('b'), '1.2 b')
  t.equal(await ask('c', { keep: false }), '1.3 c', 'a stream may be the last on a connection')
  t.equal(await ask('d'), '2.1 d')
  t.equal(connections(), 2)
})

t.test('pieces of an answer that arrive together stay together', async t => {
  const { upstream } = await serve(t, 12, socket => {
    const head = 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n'
    socket.write(`${head}9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n`)
  })
  const { body } = await upstream.request({ method: 'POST', path: '/', body: 'a' })
  const taken: string[] = []
  await body.consume(chunk => void taken.push(chunk.toString()))
  t.same(taken, ['data: 1\n\ndata: 2\n\n'])
})

t.test('idle connections never take the thread of a request', async t => {
  const { ask, socketPath, sockets } = await serve(t, 12)
  for (let round = 0; round < 20; round++) {
    const asked = Array.from({ length: 40 }, (_, at) => ask(`${at}`, { keep: at % 3 !== 0 }))
    for (const [at, reply] of (await Promise.all(asked)).entries()) t.match(reply, new RegExp(` ${at}$`))
    t.ok(sockets.size <= 12, `${sockets.size} connections are left`)
    const others = await Promise.all(Array.from({ length: 4 }, () => askDirectly(socketPath)))
    t.equal(
      others.filter(reply => reply.includes(' 200 ')).length,
      4,
      'other clients find threads beside idle connections'
    )
  }
})

t.test('no connection stays open if the number of threads is unknown', async t => {
  const { upstream, connections } = await serve(t, 4)
  for (let at = 1; at <= 3; at++) {
    const { body } = await upstream.request({ method: 'POST', path: '/', body: 'a', keep: true })
    t.equal(await readText(body), `${at}.1 a`)
  }
  t.equal(connections(), 3)
})

t.test('a request on a dead idle connection is repeated on a new one', async t => {
  const { ask, connections } = await serve(t, 12, (socket, text, connection, request) => {
    if (request > 1) socket.destroy()
    else echo(socket, text, connection, request)
  })
  await Promise.all([ask('a'), ask('b'), ask('c')])
  t.equal(await ask('d'), '4.1 d')
  t.equal(connections(), 4, 'no other idle connection is tried')
})

t.test('a connection that the engine will close is not reused', async t => {
  const endings: [what: string, reply: string][] = [
    ['it is to be closed', answer('ok', 'Connection: close\r\n')],
    ['HTTP/1.0', answer('ok').replace('1.1', '1.0')],
    ['more bytes arrive than requested', `${answer('ok')}HTTP/1.1 408`]
  ]
  for (const [what, reply] of endings) {
    const { ask, connections } = await serve(t, 12, socket => void socket.write(reply))
    t.equal(await ask('a'), 'ok', what)
    t.equal(await ask('b'), 'ok')
    t.equal(connections(), 2)
  }
})

t.test('an aborted request closes its connection, but a completed one does not', async t => {
  const { upstream, ask, connections } = await serve(t, 12, (socket, text, connection, request) => {
    if (!text.endsWith('silent')) echo(socket, text, connection, request)
  })
  const { body } = await upstream.request({ method: 'POST', path: '/', body: 'a', keep: true })
  await readText(body)
  const next = ask('b')
  body.cancel()
  t.equal(await next, '1.2 b', 'a reader that has finished does not affect the next answer')
  const controller = new AbortController()
  const silent = failure(ask('silent', { signal: controller.signal }))
  await sleep(20)
  controller.abort(new Error('left'))
  t.equal((await silent).message, 'left')
  t.equal(await ask('c'), '2.1 c')
  t.equal(connections(), 2)
  t.match(upstream.activity(), { open: 0 })
})

t.test('an unused connection is closed', async t => {
  const { ask, sockets } = await serve(t, 12)
  await Promise.all([ask('a'), ask('b')])
  t.equal(sockets.size, 2)
  await Promise.all([...sockets].map(socket => once(socket, 'close')))
  t.equal(sockets.size, 0)
  t.equal(await ask('c'), '3.1 c')
})

t.test('the upstream computes the number of llama-server threads', async t => {
  t.equal(httpThreads(['--parallel', '4', '--threads-http', '16']), 16)
  t.equal(httpThreads(['--threads-http', '16', '--threads-http', '3']), 3, 'the last one wins')
  t.equal(httpThreads(['--threads-http', '-1']), 0)
  t.equal(httpThreads(['--parallel', '4']), 0)
})

t.test('the upstream works when all threads of a real llama-server are taken', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'corral-test-'))
  // Fewer than arrive together. A request waiting for an idle connection would take five seconds.
  const deps = engineDeps(join(folder, 'run'), { extraArguments: ['--threads', '1', '--threads-http', '6'] })
  const engine = await createLlamaServerEngine(realBuild(), engineSpec(), deps, {})
  t.teardown(async () => {
    await engine.stop()
    rmSync(folder, { recursive: true })
  })
  const body = JSON.stringify({ messages: [{ role: 'user', content: 'Hi' }], max_tokens: 4 })
  const look = async (path: string) =>
    readJson((await engine.request({ method: 'GET', path, signal: NEVER, keep: true })).body)
  for (let round = 0; round < 10; round++) {
    const chats = Array.from({ length: 12 }, async () => {
      const { body: reply } = await engine.request({
        method: 'POST',
        path: '/v1/chat/completions',
        body,
        signal: NEVER,
        keep: true
      })
      return (await readJson(reply)) as { usage: { completion_tokens: number } }
    })
    const [health, slots, ...answers] = await Promise.all([look('/health'), look('/slots'), ...chats])
    t.match(health, { status: 'ok' })
    t.equal((slots as unknown[]).length, 2)
    for (const { usage } of answers as { usage: { completion_tokens: number } }[]) t.ok(usage.completion_tokens > 0)
  }
})
