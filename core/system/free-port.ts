import { once } from 'node:events'
import { connect, createServer } from 'node:net'

/** Returns an unused loopback port, for programs that cannot choose one and report it. Another program may take it first. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  server.close()
  await once(server, 'close')
  return port
}

/** Whether a program listens on a port. @throws the signal's reason */
export async function isListening(port: number, host: string, signal?: AbortSignal): Promise<boolean> {
  const socket = connect(port, host)
  try {
    await once(socket, 'connect', signal && { signal })
    return true
  } catch {
    signal?.throwIfAborted()
    return false
  } finally {
    socket.destroy()
  }
}
