import { EventEmitter, once } from 'node:events'
import { request as httpRequest, type IncomingMessage } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import Fastify, { type FastifyReply } from 'fastify'
import t, { type Test } from 'tap'
import { openReplyStream, type ReplyStream } from '../../core/http/reply-stream.ts'

const CHANNEL = {
  contentType: 'text/event-stream',
  heartbeatInterval: 60_000,
  heartbeat: (status: string) => `: ${status}\n\n`
}

/** A server whose `/stream` replies with the output of `use`. */
async function serve(t: Test, use: (stream: ReplyStream, reply: FastifyReply) => unknown) {
  const app = Fastify()
  app.get('/stream', async (_, reply) => void (await use(openReplyStream(reply, CHANNEL), reply)))
  app.get('/whole', async () => 'whole')
  await app.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(() => app.close())
  return { app, port: (app.server.address() as AddressInfo).port }
}

/** Sends this text, and returns the whole reply until the server ends the connection. */
async function replyTo(port: number, text: string): Promise<string> {
  const socket = connect({ host: '127.0.0.1', port }).setEncoding('utf8')
  socket.write(text)
  return (await socket.toArray()).join('')
}

const get = (path: string, more = '', version = '1.1') =>
  `GET ${path} HTTP/${version}\r\nHost: localhost\r\n${more}\r\n`
const LAST = 'Connection: close\r\n'

t.test('a reply is sent in chunks, and its connection serves the next request', async t => {
  const { port } = await serve(t, async stream => {
    await stream.write('é\n')
    await stream.write('')
    await stream.write(Buffer.from('bytes\n'))
    stream.end('last\n')
    // Late output belongs to no reply.
    await stream.write('too late')
    stream.end('too late')
  })
  const [head, body, ...others] = (await replyTo(port, get('/stream') + get('/whole', LAST))).split('\r\n\r\n')
  t.match(head, /^HTTP\/1\.1 200 OK\r\n/)
  t.match(head, /\r\ntransfer-encoding: chunked/i)
  t.equal(body, '3\r\né\n\r\n6\r\nbytes\n\r\n5\r\nlast\n\r\n0')
  t.match(others[0], /^HTTP\/1\.1 200 OK\r\n/)
  t.equal(others[1], 'whole')
  t.equal(others.length, 2)
})

t.test('a stream that ends without a piece has its headers and an end', async t => {
  const { port } = await serve(t, stream => stream.end())
  const parts = (await replyTo(port, get('/stream', LAST))).split('\r\n\r\n')
  t.match(parts[0], /^HTTP\/1\.1 200 OK\r\n/)
  t.same(parts.slice(1), ['0', ''])
})

t.test('trailers follow the last piece', async t => {
  const { port } = await serve(t, async (stream, { raw }) => {
    await stream.write('piece')
    raw.addTrailers({ 'x-failure': 'it broke' })
    stream.end('last')
  })
  const [, ...parts] = (await replyTo(port, get('/stream', LAST))).split('\r\n\r\n')
  t.same(parts, ['5\r\npiece\r\n4\r\nlast\r\n0\r\nx-failure: it broke', ''])
})

t.test('a client of HTTP/1.0 gets no chunks', async t => {
  const { port } = await serve(t, async stream => {
    await stream.write('one ')
    await stream.write(Buffer.from('two '))
    stream.end('three')
  })
  const [head, body] = (await replyTo(port, get('/stream', '', '1.0'))).split('\r\n\r\n')
  t.notMatch(head, /transfer-encoding/i)
  t.equal(body, 'one two three')
})

t.test('replies to pipelined requests come one after the other', async t => {
  let count = 0
  const waiting: (() => void)[] = []
  const { port } = await serve(t, async stream => {
    const number = ++count
    // The second reply is complete before the first one has a piece.
    if (number === 1) await new Promise<void>(resolve => waiting.push(resolve))
    await stream.write(`${number}a`)
    await stream.write(Buffer.from(`${number}b`))
    stream.end(`${number}c`)
    waiting.shift()?.()
  })
  const text = await replyTo(port, get('/stream') + get('/stream', LAST))
  const bodies = text.split('\r\n\r\n').filter(part => !part.startsWith('HTTP/1.1 200'))
  t.same(bodies, ['2\r\n1a\r\n2\r\n1b\r\n2\r\n1c\r\n0', '2\r\n2a\r\n2\r\n2b\r\n2\r\n2c\r\n0', ''])
})

t.test('an injected request gets only the pieces', async t => {
  const { app } = await serve(t, async stream => {
    await stream.write('one ')
    stream.end('two')
  })
  t.equal((await app.inject('/stream')).payload, 'one two')
})

t.test('write waits for a slow reader, but not for one that has disconnected', async t => {
  const piece = 'x'.repeat(1 << 20)
  let sent = 0
  const events = new EventEmitter()
  const [outcome, isWaiting] = [once(events, 'ended'), once(events, 'waits')]
  const { port } = await serve(t, async (stream, { raw }) => {
    for (let count = 0; count < 200 && !raw.destroyed; count++) {
      const wait = stream.write(piece)
      sent++
      if (wait) setTimeout(() => events.emit('waits'), 100)
      await wait
    }
    events.emit('ended', raw.destroyed ? 'gone' : 'written')
    stream.end()
  })
  const request = httpRequest({ host: '127.0.0.1', port, path: '/stream', agent: false }).end()
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  await isWaiting
  t.ok(sent < 100, 'most is not written while nobody reads')
  const before = sent
  for await (const chunk of response.iterator({ destroyOnReturn: false })) {
    t.match(String(chunk), /^x+$/)
    if (sent > before + 10) break
  }
  t.ok(sent > before + 10, 'it continues with the reader')
  response.destroy()
  t.same(await outcome, ['gone'])
})
