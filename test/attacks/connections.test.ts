import { once } from 'node:events'
import { createServer } from 'node:http'
import { networkInterfaces } from 'node:os'
import { PassThrough } from 'node:stream'
import t, { type Test } from 'tap'
import { ConnectionGuard } from '../../core/http/connection-guard.ts'
import { type Corral, DEMO, endlessHosted, startCorral, until } from '../support/corral.ts'
import { openSocket, type RawSocket } from '../support/raw-requests.ts'
import { thorough } from '../support/thorough.ts'

/** An open connection that has sent `text`, and what it has received. */
async function open(t: Pick<Test, 'teardown'>, url: string, text = ''): Promise<RawSocket> {
  const socket = openSocket(t, url)
  await once(socket, 'connect')
  if (text !== '') socket.write(text)
  return socket
}

/** Tests with keys share this server. */
const shared = startCorral(t, {
  config:
    'limits: { connections: 20 }\ndefaults: { num_parallel: 2 }\nsecurity: { api_keys: [key-of-the-attacker, key-of-an-honest-one] }'
})

const health = async (corral: Corral) => (await corral.json('/api/health')).status

/** A request for an answer that does not end. */
function endlessChat(key: string): string {
  const body = JSON.stringify(endlessHosted(DEMO))
  return `POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${key}\r\ncontent-length: ${body.length}\r\n\r\n${body}`
}

t.test('idle connections make room for connections with requests', async t => {
  const corral = await startCorral(t, { config: 'limits: { connections: 20 }' })
  const slow = 'POST /api/chat HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10000\r\n\r\n{"model":'
  const half = 'POST /api/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nx-slow: '
  for (const text of ['', half, slow, 'GET /api/health HTTP/1.1\r\nhost: localhost\r\n\r\n']) {
    const sockets = await Promise.all(Array.from({ length: 100 }, () => open(t, corral.url, text)))
    t.equal(await health(corral), 200, `an honest client is answered beside ${JSON.stringify(text.slice(-20))}`)
    for (const socket of sockets) socket.destroy()
  }
  // Many requests on one connection, without waiting for the answers.
  const one = 'GET /api/version HTTP/1.1\r\nhost: localhost\r\n\r\n'
  const socket = await open(t, corral.url, one.repeat(500))
  t.equal(await health(corral), 200)
  await until('all are answered', () => socket.got.split('HTTP/1.1 200').length === 501)
})

t.test('connections with requests above the limit are refused, except on the private socket', async t => {
  const corral = await shared
  const busy: RawSocket[] = []
  for (let count = 0; count < 20; count++) {
    busy.push(await open(t, corral.url, endlessChat(count % 2 === 0 ? 'key-of-the-attacker' : 'key-of-an-honest-one')))
  }
  const local = (path: string) => corral.json(path, undefined, { local: true })
  await until('all of them reach the engine', async () => {
    const { running = 0, queued = 0 } = (await local('/api/ps')).body.models[0] ?? {}
    return running + queued === 20
  })
  const refused = await open(t, corral.url, 'GET /api/health HTTP/1.1\r\nhost: localhost\r\n\r\n')
  await once(refused, 'close')
  t.match(refused.got, /^HTTP\/1\.1 503 .*retry-after: 1.*"code":"queue_full"/s)
  t.match(corral.log(), /Connections are refused: 20 are open \(limits\.connections\)/)

  t.equal((await local('/api/health')).status, 200, 'the private socket answers')
  for (const socket of busy) socket.destroy()
  await until('there is room again', async () => (await health(corral).catch(() => 0)) === 200)
})

t.test('one client gets at most half of the connections, and others are answered', async t => {
  const corral = await shared
  const sockets = await Promise.all(
    Array.from({ length: 60 }, () => open(t, corral.url, endlessChat('key-of-the-attacker')))
  )
  const refused = () => sockets.filter(({ got }) => got.startsWith('HTTP/1.1 503'))
  await until('no more than half are taken', () => refused().length > 0 || sockets.every(({ destroyed }) => destroyed))
  t.match(refused()[0]?.got, /one client may have 10: half of all connections/)
  const honest = { headers: { authorization: 'Bearer key-of-an-honest-one' } }
  for (let count = 0; count < 5; count++) t.equal((await corral.json('/api/version', undefined, honest)).status, 200)

  for (const socket of sockets) socket.destroy()
  const attacker = { headers: { authorization: 'Bearer key-of-the-attacker' } }
  await until('it is answered again', async () => (await corral.json('/api/ps', undefined, attacker)).status === 200)
})

t.test('one address gets only a share of the connections', thorough, async t => {
  const own = Object.values(networkInterfaces())
    .flat()
    .find(found => found?.family === 'IPv4' && !found.internal)?.address
  if (own === undefined) return t.comment('this machine has no other address')
  const corral = await startCorral(t, {
    flags: ['--host', '0.0.0.0'],
    config: 'limits: { connections: 100, connections_per_address: 5 }\nsecurity: { insecure: true }'
  })
  const { port } = new URL(corral.url)
  const sockets: RawSocket[] = []
  for (let count = 0; count < 8; count++) sockets.push(await open(t, `http://${own}:${port}`))
  await until('three of eight are refused', () => sockets.filter(({ got }) => got.includes('503')).length === 3)
  for (let count = 0; count < 8; count++) sockets.push(await open(t, `http://127.0.0.1:${port}`))
  const loopback = await fetch(`http://127.0.0.1:${port}/api/health`)
  t.equal(loopback.status, 200, 'connections of this machine are not limited per address')
  t.equal(sockets.filter(({ got }) => got.includes('503')).length, 3)
})

t.test('the addresses of one IPv6 network share one allowance', async t => {
  const log = { warn() {}, info() {} } as never
  const guard = new ConnectionGuard({ connections: 100, connections_per_address: 2, reader_stall: 0 }, log)
  const server = createServer()
  server.removeAllListeners('connection')
  guard.attach(server, true)
  const isRefused = (remoteAddress: string) => {
    const socket = Object.assign(new PassThrough(), { remoteAddress })
    server.emit('connection', socket)
    return socket.writableEnded
  }
  const network = ['2001:db8:0:1::1', '2001:db8:0:1:ffff::2', '2001:db8:0:1:a:b:c:d', '2001:db8:0:1::1']
  t.same(network.map(isRefused), [false, false, true, true])
  const actual = ['2001:db8:0:2::1', '192.0.2.1', '::ffff:192.0.2.1'].map(isRefused)
  t.same(actual, [false, false, false], 'other networks have their own share')
  t.ok(isRefused('192.0.2.1'), 'an IPv4 address counts in both spellings')
})

t.test('fewer connections are accepted if the process may open few files', async t => {
  const warnings: string[] = []
  const log = { warn: (text: string) => void warnings.push(text), info() {} } as never
  const limits = { connections: 1024, connections_per_address: 256, reader_stall: 0 }
  new ConnectionGuard(limits, log, undefined, 256)
  t.match(warnings, [/may open 256 files, so it accepts only 64 connections instead of 1024/])
  new ConnectionGuard(limits, log, undefined, 1_048_576)
  new ConnectionGuard(limits, log, undefined, Number.POSITIVE_INFINITY)
  t.equal(warnings.length, 1)
})
