import { createCipheriv, createHash } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { createServer as createSecureServer } from 'node:https'
import type { AddressInfo, Socket } from 'node:net'
import { localhostCertificate } from './localhost-certificate.ts'

/** Ways in which one answer fails. The fields are independent. */
export interface ByteFault {
  /** Sent instead of bytes. */
  status?: number
  headers?: Record<string, string>
  body?: string
  /** Bytes of the body after which the connection is closed or stalls. */
  cutAfter?: number
  stallAfter?: number
  /** Position in the file of one wrong byte. */
  flip?: number
  /** Answer with the whole file. `rangeAs200` is right except for its status, and `chunked` gives no length. */
  ignoreRange?: boolean
  rangeAs200?: boolean
  chunked?: boolean
  /** The body ends with the connection, and no length is sent. */
  untilClose?: boolean
  /** Milliseconds before the headers. */
  delay?: number
  /** Bytes per second of this connection. */
  rate?: number
  /** Bytes of other content. */
  content?: Buffer
}

export interface ByteRequest {
  /** Number of the request among all requests to the server, starting at 0. */
  number: number
  path: string
  query: URLSearchParams
  headers: IncomingMessage['headers']
  start: number
  end: number
}

/** Bytes that look random and are the same for the same seed. */
export function sampleBytes(size: number, seed = 0): Buffer {
  const key = createHash('sha256').update(String(seed)).digest()
  return createCipheriv('aes-256-ctr', key, Buffer.alloc(16)).update(Buffer.alloc(size))
}

export function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex')
}

export function gitSha1(bytes: Buffer): string {
  return createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex')
}

/** Serves files with range support and the given faults. */
export async function startByteServer(
  files: Record<string, Buffer>,
  fault: (request: ByteRequest) => ByteFault = () => ({}),
  secure = false
) {
  const requests: ByteRequest[] = []
  const sockets = new Set<Socket>()
  const state = { sent: 0, open: 0, mostOpen: 0, fault }
  const onRequest = (request: IncomingMessage, response: ServerResponse) => {
    state.open += 1
    state.mostOpen = Math.max(state.mostOpen, state.open)
    response.on('close', () => {
      state.open -= 1
    })
    const url = new URL(request.url!, 'http://localhost')
    const number = requests.length
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '')
    const own = files[url.pathname]
    const size = own?.length ?? 0
    const start = range ? Number(range[1]) : 0
    const end = range?.[2] ? Math.min(size, Number(range[2]) + 1) : size
    const asked: ByteRequest = {
      number,
      path: url.pathname,
      query: url.searchParams,
      headers: request.headers,
      start,
      end
    }
    requests.push(asked)
    const now = state.fault(asked)
    setTimeout(() => void answer(response, own, asked, now, range !== null), now.delay ?? 0)
  }
  const server = secure ? createSecureServer(localhostCertificate, onRequest) : createServer(onRequest)
  server.on('connection', socket => {
    sockets.add(socket)
    socket.on('close', () => sockets.delete(socket))
  })

  async function answer(
    response: ServerResponse,
    own: Buffer | undefined,
    asked: ByteRequest,
    now: ByteFault,
    ranged: boolean
  ) {
    const content = now.content ?? own
    if (now.status !== undefined || content === undefined) {
      response.writeHead(now.status ?? 404, now.headers).end(now.body ?? 'no such file')
      return
    }
    const partial = ranged && !now.ignoreRange
    const [start, end] = partial
      ? [asked.start, now.content ? Math.min(asked.end, content.length) : asked.end]
      : [0, content.length]
    if (partial && start >= content.length) {
      response.writeHead(416, { 'content-range': `bytes */${content.length}` }).end()
      return
    }
    if (now.untilClose) {
      response.shouldKeepAlive = false
      response.useChunkedEncodingByDefault = false
    }
    response.writeHead(partial && !now.rangeAs200 ? 206 : 200, {
      ...(now.chunked || now.untilClose ? {} : { 'content-length': end - start }),
      ...(partial ? { 'content-range': `bytes ${start}-${end - 1}/${content.length}` } : {}),
      ...now.headers
    })
    const stop = Math.min(end, start + (now.cutAfter ?? now.stallAfter ?? Number.POSITIVE_INFINITY))
    const piece = now.rate === undefined ? 65536 : Math.max(1024, Math.min(65536, Math.floor(now.rate / 40)))
    const began = performance.now()
    for (let at = start; at < stop; at += piece) {
      let bytes = content.subarray(at, Math.min(stop, at + piece))
      if (now.flip !== undefined && now.flip >= at && now.flip < at + bytes.length) {
        bytes = Buffer.from(bytes)
        bytes[now.flip - at]! ^= 1
      }
      if (response.destroyed) return
      const flushed = response.write(bytes)
      state.sent += bytes.length
      if (!flushed) await drained(response)
      if (now.rate !== undefined) {
        const due = began + ((at + bytes.length - start) * 1000) / now.rate
        await new Promise(resolve => setTimeout(resolve, Math.max(0, due - performance.now())))
      }
    }
    if (stop < end && now.cutAfter !== undefined) response.destroy()
    else if (stop === end) response.end()
  }

  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const url = `${secure ? 'https' : 'http'}://127.0.0.1:${(server.address() as AddressInfo).port}`
  return {
    url,
    requests,
    state,
    async close() {
      for (const socket of sockets) socket.destroy()
      await new Promise(resolve => server.close(resolve))
    }
  }
}

function drained(response: ServerResponse): Promise<void> {
  return new Promise(resolve => {
    const end = () => {
      response.off('drain', end).off('close', end)
      resolve()
    }
    response.on('drain', end).on('close', end)
  })
}

export type ByteServer = Awaited<ReturnType<typeof startByteServer>>
