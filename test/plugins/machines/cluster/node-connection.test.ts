import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { text } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { readText } from '../../../../core/system/response-body.ts'
import { connectionFault, NodeConnection } from '../../../../plugins/machines/cluster/nodes/node-connection.ts'
import { failure } from '../../../support/failure.ts'

const { signal: NEVER } = new AbortController()

/** A node that does with each request what `handle` says. */
async function serve(
  t: Test,
  handle: (socket: Socket, request: string, connection: number, at: number) => void,
  { scheme = 'http', connectTimeout = 5000 } = {}
) {
  const sockets = new Set<Socket>()
  const requests: string[] = []
  const server = createServer(socket => {
    sockets.add(socket)
    const connection = sockets.size
    let at = 0
    socket.on('error', () => {})
    socket.on('data', bytes => {
      requests.push(`${bytes}`)
      handle(socket, `${bytes}`, connection, ++at)
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const url = `${scheme}://127.0.0.1:${port}`
  const connection = new NodeConnection({ name: 'node', url, key: 'secret' }, { connectTimeout, ca: '' })
  t.teardown(() => {
    connection.close()
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const ask = async (body: object = {}) => await readText((await connection.ask('/ask', { body }, [NEVER])).body)
  return { connection, ask, sockets, requests, port }
}

const answer = (text: string) => `HTTP/1.1 200 OK\r\nContent-Length: ${text.length}\r\n\r\n${text}`

t.test('a connection to a node is reused, and a request that it was closed before is repeated once', async t => {
  const { ask, sockets, requests, port } = await serve(t, (socket, request, connection, at) => {
    if (at > 1 || request.includes('always')) socket.destroy()
    else socket.write(answer(`${connection}.${at}`))
  })
  t.equal(await ask(), '1.1')
  t.equal(await ask({ what: 'again' }), '2.1', 'the idle connection was closed just then')
  t.match(requests[2], new RegExp(`^POST /ask HTTP/1.1\r\nhost: 127.0.0.1:${port}\r\nauthorization: Bearer secret\r\n`))
  for (const connections of [3, 4]) {
    const { message } = await failure(ask({ what: 'always' }))
    t.equal(message, 'the connection was closed')
    t.equal(sockets.size, connections, 'a request that a new connection was closed for is not repeated')
  }
})

t.test('trailers of an answer are read, and HEAD has no body', async t => {
  const { connection } = await serve(t, (socket, request) => {
    if (request.startsWith('HEAD')) socket.write('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n')
    else {
      socket.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-One: a\r\nx-one: b \r\n\r\n2\r\nHi\r\n0\r\n')
      socket.write('X-Corral-Failure: %7B%7D\r\n\r\n')
    }
  })
  const head = await connection.send('HEAD', '/', { signal: NEVER })
  t.equal(await text(head.body), '')
  const { body, headers, trailers } = await connection.send('GET', '/', { signal: NEVER })
  t.equal(headers['x-one'], 'a, b')
  t.equal(await text(body), 'Hi')
  t.same(trailers, { 'x-corral-failure': '%7B%7D' })
})

t.test('each signal ends a request, before and during its answer', async t => {
  const { connection, sockets } = await serve(t, (socket, request) => {
    if (request.includes('begin')) socket.write('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nHi')
  })
  for (const body of [{ what: 'wait' }, { what: 'begin' }]) {
    for (const which of [0, 1]) {
      const controllers = [new AbortController(), new AbortController()]
      const asked = connection.ask(
        '/',
        { body },
        controllers.map(({ signal }) => signal)
      )
      const read = asked.then(({ body }) => readText(body))
      if (body.what === 'begin') await asked
      setImmediate(() => controllers[which]!.abort(new Error(`signal ${which}`)))
      t.equal((await failure(read)).message, `signal ${which}`)
    }
  }
  t.equal(sockets.size, 4, 'no connection of an interrupted request is reused')
  await Promise.all([...sockets].map(socket => socket.closed || once(socket, 'close')))
})

t.test('a header cannot begin another one', async t => {
  const { connection, requests } = await serve(t, socket => void socket.write(answer('ok')))
  const headers = { accept: 'text/plain\r\nauthorization: Bearer other' }
  await t.rejects(connection.ask('/', { headers }, [NEVER]), { message: /the header "accept" contains invalid/ })
  t.same(requests, [])
})

t.test('faults of a connection are explained', async t => {
  const silent = await serve(t, () => {}, { scheme: 'https', connectTimeout: 50 })
  t.equal(connectionFault(await failure(silent.ask())), 'its address does not answer')
  const plain = await serve(t, socket => void socket.end(answer('ok')), { scheme: 'https' })
  t.match(connectionFault(await failure(plain.ask())), /^it does not speak TLS/)
  const other = await serve(t, socket => void socket.end('SSH-2.0-OpenSSH_9\r\n\r\n'))
  t.equal(connectionFault(await failure(other.ask())), 'what listens at its address does not speak HTTP')
  const closed = await serve(t, socket => void socket.destroy())
  t.equal(connectionFault(await failure(closed.ask())), 'it closed the connection')
  const nobody = new NodeConnection({ name: 'node', url: 'http://127.0.0.1:1' }, { connectTimeout: 5000, ca: '' })
  t.equal(connectionFault(await failure(nobody.ask('/', {}, [NEVER]))), 'nothing listens at its address')
})
