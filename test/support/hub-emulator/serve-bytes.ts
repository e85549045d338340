import type { IncomingMessage, ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FaultKind } from './faults.ts'
import type { Entry } from './repositories.ts'
import type { LoggedRequest, Traffic } from './traffic.ts'

/** The single range of a header: first byte and the byte after the last. Returns 'whole' if no range applies. */
export function parseRange(header: string | undefined, size: number): [number, number] | 'whole' | 'unsatisfiable' {
  const match = /^bytes=(\d*)-(\d*)$/.exec(header ?? '')
  if (!match || (match[1] === '' && match[2] === '')) return 'whole'
  if (match[1] === '') {
    const length = Math.min(Number(match[2]), size)
    return length === 0 ? 'unsatisfiable' : [size - length, size]
  }
  const start = Number(match[1])
  if (start >= size) return 'unsatisfiable'
  const end = match[2] === '' ? size : Math.min(Number(match[2]) + 1, size)
  return end <= start ? 'whole' : [start, end]
}

export interface ByteAnswer {
  entry: Entry
  log: LoggedRequest
  traffic: Traffic
  faults: FaultKind[]
  headers: Record<string, string>
  /** Compared with `If-Range`. */
  etag?: string
  /** Ranges are answered with 200, as ModelScope does. */
  rangeWith200?: boolean
  /** Counts bytes served through one signed address. Returns false when its limit is reached. */
  spend?: (bytes: number) => boolean
}

const find = <K extends FaultKind['kind']>(faults: FaultKind[], kind: K) =>
  faults.find((fault): fault is Extract<FaultKind, { kind: K }> => fault.kind === kind)

/** Answers with a file's bytes or the requested range. */
export async function serveBytes(request: IncomingMessage, response: ServerResponse, answer: ByteAnswer) {
  const { entry, faults } = answer
  const { size } = entry
  const ifRange = request.headers['if-range']
  const ignored = find(faults, 'range-ignored') || (ifRange !== undefined && ifRange !== answer.etag)
  const range = ignored ? 'whole' : parseRange(request.headers.range, size)
  const headers: Record<string, string | number> = { 'accept-ranges': 'bytes', ...answer.headers }
  if (range === 'unsatisfiable' || find(faults, 'range-unsatisfiable')) {
    response.writeHead(416, { ...headers, 'content-range': `bytes */${size}`, 'content-length': 0 }).end()
    return
  }
  let [start, end] = range === 'whole' ? [0, size] : range
  const less = find(faults, 'less-than-asked')
  if (less) end = Math.max(start, end - less.missing)
  const shift = find(faults, 'wrong-range')?.shift ?? 0
  start = Math.max(0, start + shift)
  end = Math.min(size, Math.max(start, end + shift))
  if (range !== 'whole') headers['content-range'] = `bytes ${start}-${end - 1}/${size}`
  const chunked = find(faults, 'short-chunked')
  if (!chunked) headers['content-length'] = end - start
  const with200 = answer.rangeWith200 || find(faults, 'range-with-200')
  response.writeHead(range === 'whole' || with200 ? 200 : 206, headers)
  if (request.method === 'HEAD') {
    response.end()
    return
  }
  response.flushHeaders()
  await sendBytes(request, response, answer, start, end)
}

async function sendBytes(
  request: IncomingMessage,
  response: ServerResponse,
  { entry, log, traffic, faults, spend }: ByteAnswer,
  start: number,
  end: number
) {
  const cut = find(faults, 'cut')?.after ?? Infinity
  const stall = find(faults, 'stall')?.after ?? Infinity
  const early = find(faults, 'short')?.missing ?? find(faults, 'short-chunked')?.missing ?? 0
  const wrong = find(faults, 'wrong-byte')?.at ?? -1
  const trickle = find(faults, 'trickle')?.bytesPerSecond
  const last = Math.max(start, end - early)
  let gone = response.destroyed
  let wake = () => {}
  response.once('close', () => {
    gone = true
    wake()
  })
  response.on('drain', () => wake())
  for (let at = start; at < last && !gone; ) {
    const sent = at - start
    if (sent >= stall) return
    if (sent >= cut) {
      request.socket.resetAndDestroy()
      return
    }
    const step = trickle ? Math.max(1, Math.floor(trickle / 20)) : traffic.chunkSize
    const stop = Math.min(at + step, last, start + Math.min(stall, cut))
    let bytes = entry.content.read(at, stop)
    if (wrong >= at && wrong < stop) {
      bytes = Buffer.from(bytes)
      bytes[wrong - at]! ^= 0x01
    }
    const wait = trickle ? (bytes.length / trickle) * 1000 : traffic.wait(bytes.length)
    if (wait > 0) await sleep(wait)
    if (gone) return
    if (spend && !spend(bytes.length)) {
      request.socket.resetAndDestroy()
      return
    }
    log.bytes += bytes.length
    const room = response.write(bytes)
    at = stop
    if (!room && !gone) {
      await new Promise<void>(resolve => {
        wake = resolve
      })
    } else {
      // Lets aborts and other requests through between two chunks.
      await new Promise(setImmediate)
    }
  }
  if (gone) return
  if (last - start >= stall) return
  if (last - start >= cut) request.socket.resetAndDestroy()
  // Content-Length promised more, so only the end of the connection can end this answer.
  else if (last < end && find(faults, 'short')) response.write('', () => request.socket.destroySoon())
  else response.end()
}
