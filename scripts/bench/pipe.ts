/**
 * The bare pipe: the minimum work of a proxy in Node.js. It uses Node's `http` on both sides, adds the engine's key,
 * and pipes bodies without looking at them. Any further cost of corral is corral's own work.
 *
 *     ENGINE_KEY=… pipe.js /path/to/engine.sock prints its URL
 */
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'

const socketPath = process.argv[2]
const authorization = `Bearer ${process.env.ENGINE_KEY}`

const server = createServer((incoming, outgoing) => {
  const { method, url, headers } = incoming
  // A new connection for each request, because the engine closes the connection after a stream despite keep-alive.
  const forwarded = request({ socketPath, method, path: url, headers: { ...headers, authorization }, agent: false })
  forwarded.on('response', response => {
    const { connection, 'keep-alive': _, 'transfer-encoding': __, ...own } = response.headers
    outgoing.writeHead(response.statusCode!, own)
    response.pipe(outgoing)
  })
  forwarded.on('error', error => {
    if (outgoing.headersSent) outgoing.destroy()
    else outgoing.writeHead(502).end(error.message)
  })
  outgoing.on('close', () => forwarded.destroy())
  incoming.pipe(forwarded)
}).listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${(server.address() as AddressInfo).port}`))
// The parent process has gone.
process.stdin.resume().on('end', () => process.exit(0))
