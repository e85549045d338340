import { once } from 'node:events'
import { createServer } from 'node:http'
import { type AddressInfo, connect, createServer as createPlainServer } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import type { ResponseHead } from '../../../../../core/system/http-response.ts'
import { ConnectionPool } from '../../../../../plugins/models/download/transfer/http-connection.ts'
import { ConnectionFailure } from '../../../../../plugins/models/download/transfer/http-socket.ts'
import { TransferEngine } from '../../../../../plugins/models/download/transfer/transfer-engine.ts'
import { sampleBytes, sha256, startByteServer } from '../../../../support/byte-server.ts'
import { failing } from '../../../../support/failure.ts'

const content = sampleBytes(9_000_001)

function makeEngine(t: Test): TransferEngine {
  const engine = new TransferEngine({
    connections: 8,
    connectionsPerFile: 4,
    bandwidthLimit: 0,
    stallTimeout: 3000,
    firstDelay: 20,
    log: message => t.comment(message)
  })
  t.teardown(() => engine.close())
  return engine
}

function fetchFile(t: Test, url: string, proxy?: string): Promise<{ size: number; sha256: string }[]> {
  return makeEngine(t).run({
    identity: 'test@1',
    files: [{ path: 'file', target: join(t.testdir(), 'file'), size: content.length, sha256: sha256(content) }],
    locate: async () => ({ url: `${url}/file`, headers: {}, ...(proxy === undefined ? {} : { proxy }) }),
    signal: new AbortController().signal,
    onProgress: () => {}
  })
}

/** Starts a proxy that records its requests. */
async function startProxy(t: Test, secret?: string) {
  const requested: string[] = []
  const allowed = (credentials: string | undefined) =>
    secret === undefined || credentials === `Basic ${Buffer.from(secret).toString('base64')}`
  const proxy = createServer((request, response) => {
    requested.push(request.url!)
    if (!allowed(request.headers['proxy-authorization'])) {
      response.writeHead(407).end('authenticate first')
      return
    }
    const url = new URL(request.url!)
    const onward = connect(Number(url.port), url.hostname)
    onward.on('error', () => response.destroy())
    const { 'proxy-authorization': _, ...headers } = request.headers
    const lines = Object.entries({ ...headers, connection: 'close' }).map(([name, value]) => `${name}: ${value}\r\n`)
    onward.write(`GET ${url.pathname} HTTP/1.1\r\n${lines.join('')}\r\n`)
    onward.pipe(response.socket!)
  })
  proxy.on('connect', (request, socket, head) => {
    requested.push(`CONNECT ${request.url}`)
    if (!allowed(request.headers['proxy-authorization'])) {
      socket.end('HTTP/1.1 407 Proxy Authentication Required\r\n\r\n')
      return
    }
    const [host, port] = request.url!.split(':')
    const onward = connect(Number(port), host!, () => {
      socket.write('HTTP/1.1 200 Connection Established\r\n\r\n')
      onward.write(head)
      onward.pipe(socket)
      socket.pipe(onward)
    })
    onward.on('error', () => socket.destroy())
    socket.on('error', () => onward.destroy())
  })
  proxy.listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  t.teardown(() => {
    proxy.closeAllConnections()
    proxy.close()
  })
  return { requested, port: (proxy.address() as AddressInfo).port }
}

t.test('the transfer engine transfers over TLS', async t => {
  const server = await startByteServer({ '/file': content }, () => ({}), true)
  t.teardown(() => server.close())

  await t.test('an untrusted certificate is refused', async t => {
    await t.rejects(fetchFile(t, server.url), { code: 'hub_unreachable', message: /self-signed certificate/ })
    t.equal(server.requests.length, 0)
  })

  process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0'
  t.teardown(() => {
    delete process.env.NODE_TLS_REJECT_UNAUTHORIZED
  })

  await t.test('the transfer engine transfers without a proxy', async t => {
    t.strictSame(await fetchFile(t, server.url), [{ size: content.length, sha256: sha256(content) }])
  })

  await t.test('the transfer engine transfers despite broken connections', async t => {
    server.state.fault = ({ number }) => (number % 2 === 0 ? { cutAfter: 1_000_000 } : {})
    t.strictSame(await fetchFile(t, server.url), [{ size: content.length, sha256: sha256(content) }])
    server.state.fault = () => ({})
  })

  await t.test('the transfer engine transfers over TLS through a proxy', async t => {
    const { requested, port } = await startProxy(t, 'user:p@ss')
    const proxy = `http://user:p%40ss@127.0.0.1:${port}`
    t.strictSame(await fetchFile(t, server.url, proxy), [{ size: content.length, sha256: sha256(content) }])
    t.ok(requested.length > 0 && requested.every(line => line === `CONNECT ${new URL(server.url).host}`))
  })

  await t.test('the transfer engine fails if the proxy refuses the credentials', async t => {
    const { port } = await startProxy(t, 'user:other')
    const failed = fetchFile(t, server.url, `http://user:secret@127.0.0.1:${port}`)
    await t.rejects(failed, failing('hub_unreachable', /the proxy does not accept the user name and password \(407\)/))
    await t.rejects(failed, { message: /^(?!.*secret)/ })
  })
})

t.test('the transfer engine transfers without TLS through a proxy', async t => {
  const server = await startByteServer({ '/file': content })
  t.teardown(() => server.close())
  const { requested, port } = await startProxy(t, 'user:pass')
  const proxy = `http://user:pass@127.0.0.1:${port}`
  t.strictSame(await fetchFile(t, server.url, proxy), [{ size: content.length, sha256: sha256(content) }])
  t.ok(requested.length > 0 && requested.every(line => line === `${server.url}/file`))
})

/** Requests from a server that answers with exactly these bytes, in pieces of this size. */
async function fetchFrom(answer: string, piece: number, end: boolean) {
  const server = createPlainServer(socket => {
    socket.setNoDelay(true)
    socket.once('data', async () => {
      for (let at = 0; at < answer.length; at += piece) {
        socket.write(answer.slice(at, at + piece), 'latin1')
        await new Promise(resolve => setImmediate(resolve))
      }
      if (end) socket.end()
    })
    socket.on('error', () => {})
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const connections = new ConnectionPool()
  let head: ResponseHead | undefined
  let got = ''
  const room = Buffer.alloc(7)
  try {
    const settled = await connections.get(
      { url: new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`), headers: {}, proxy: undefined },
      {
        signal: AbortSignal.timeout(10_000),
        stallTimeout: 1000,
        receiver: {
          onHead(answered) {
            head = answered
            return true
          },
          room: () => room,
          onBytes(length) {
            got += room.toString('latin1', 0, length)
            return true
          }
        }
      }
    )
    return { settled, status: head!.status, got }
  } finally {
    connections.close()
    server.close()
  }
}

async function failure(promise: Promise<unknown>): Promise<string> {
  try {
    await promise
  } catch (error) {
    if (error instanceof ConnectionFailure) return error.kind
    throw error
  }
  return 'none'
}

t.test('HTTP responses are read however they are split', async t => {
  const early = 'HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n'
  const long = 'HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n012345678901234567890123456789'
  const chunked =
    'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;name=value\r\n01234\r\n14\r\n56789012345678901234\r\n' +
    '5\r\n56789\r\n0\r\nTrailer: x\r\n\r\n'
  const close = 'HTTP/1.0 200 OK\r\n\r\n012345678901234567890123456789'
  for (const [answer, end] of [
    [long, false],
    [early + long, false],
    [chunked, false],
    [close, true]
  ] as const) {
    for (const piece of [1, 2, 3, 16, 57, 1000]) {
      const { settled, status, got } = await fetchFrom(answer, piece, end)
      t.strictSame([settled, status, got], ['complete', 200, '012345678901234567890123456789'], `pieces of ${piece}`)
    }
  }
  const wrong: [answer: string, kind: string][] = [
    ['HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n0123', 'cut'],
    ['HTTP/1.1 200 OK\r\nContent-Le', 'cut'],
    ['HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n', 'cut'],
    ...['5\r\n012345\r\n', 'x\r\n', '\r\n', '1'.repeat(20_000)].map((body): [string, string] => [
      `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${body}`,
      'protocol'
    ]),
    ['SSH-2.0-OpenSSH_9\r\n\r\n', 'protocol'],
    ['HTTP/1.1 101 Switching Protocols\r\n\r\n', 'protocol']
  ]
  for (const [answer, kind] of wrong) t.equal(await failure(fetchFrom(answer, 1000, true)), kind, answer)
  t.equal(await failure(fetchFrom('HTTP/1.1 200 OK\r\n', 1000, false)), 'stall')
  const { got } = await fetchFrom('HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n0123 and more', 1000, false)
  t.equal(got, '0123', 'no more than the declared length')
})
