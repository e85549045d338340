import { once } from 'node:events'
import { request as httpRequest, type IncomingMessage } from 'node:http'
import { connect, type Socket } from 'node:net'
import { text } from 'node:stream/consumers'
import type { Test } from 'tap'
import type { Corral } from './corral.ts'

/** A connection, and the text that it has received. */
export type RawSocket = Socket & { got: string }

/** Connects to a server and sends bytes. Errors are ignored, because refused connections fail in several ways. */
export function openSocket(
  t: Pick<Test, 'teardown'>,
  url: string,
  bytes: string | Uint8Array = '',
  localAddress?: string
): RawSocket {
  const { hostname: host, port } = new URL(url)
  const socket = Object.assign(connect({ host, port: Number(port), ...(localAddress && { localAddress }) }), {
    got: ''
  })
  socket.on('error', () => {})
  socket.setEncoding('utf8').on('data', text => {
    socket.got += text
  })
  t.teardown(() => socket.destroy())
  if (bytes.length > 0) socket.write(bytes)
  return socket
}

/** Sends a request exactly as written, with paths and headers that fetch does not allow. */
export async function sendExactly(
  { url }: Pick<Corral, 'url'>,
  path: string,
  { body, ...options }: { method?: string; headers?: Record<string, string>; body?: string } = {}
): Promise<{ status: number; body: any }> {
  const { hostname, port } = new URL(url)
  const request = httpRequest({ hostname, port, path, agent: false, ...options }).end(body)
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  const received = await text(response)
  return { status: response.statusCode!, body: received.startsWith('{') ? JSON.parse(received) : received }
}
