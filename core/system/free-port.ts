import { once } from 'node:events'
import { createServer } from 'node:net'

/** Returns an unused loopback port, for programs that cannot choose one and report it. Another program may take it first. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  server.close()
  await once(server, 'close')
  return port
}
