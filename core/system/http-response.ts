/* Reads HTTP/1.1 responses from the bytes of a connection, for clients that need the bytes as they arrive. */

export interface ResponseHead {
  status: number
  /** By name in lower case. Repeated headers are joined by commas. */
  headers: Record<string, string | undefined>
  keepAlive: boolean
  body: { kind: 'length'; length: number } | { kind: 'chunked' } | { kind: 'until-close' }
}

/** The bytes are not an HTTP response, or exceed the limits of one. */
export class InvalidResponse extends Error {
  override readonly name = 'InvalidResponse'
}

const MAX_HEAD_LENGTH = 64 * 1024
const BEGIN_OF_HEAD = 'HTTP/1.'
const END_OF_HEAD = '\r\n\r\n'
const NO_BODY: ResponseHead['body'] = { kind: 'length', length: 0 }
const HEADER_NAME = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/
/** A line break of which only a half is there. */
const HALF_BREAK = /\r(?!\n)|(?<!\r)\n/
/** Header names that have been seen, in lower case. Responses of a server all have the same. */
const names = new Map<string, string>()
const MAX_NAMES = 1000

/** Parses the head of a response. @throws InvalidResponse if it is not HTTP/1.x, or has contradictory lengths */
export function parseHead(text: string): ResponseHead {
  const first = /^HTTP\/1\.([01]) (\d{3})(?: |\r|$)/.exec(text)
  if (!first) throw new InvalidResponse('the response is not HTTP/1.1')
  const status = Number(first[2])
  const from = text.indexOf('\r\n')
  const headers = from === -1 ? {} : parseHeaders(text, from + 2)
  const connection = (headers.connection ?? '').toLowerCase()
  const canStay = first[1] === '1' ? !/\bclose\b/.test(connection) : /\bkeep-alive\b/.test(connection)
  const body = bodyFraming(status, headers)
  return { status, headers, keepAlive: canStay && body.kind !== 'until-close', body }
}

/** Parses the header lines from an offset. @throws InvalidResponse */
function parseHeaders(text: string, from: number): Record<string, string> {
  const headers: Record<string, string> = { __proto__: null } as never
  if (HALF_BREAK.test(text)) throw new InvalidResponse('the response has an invalid header line')
  for (let at = from; at <= text.length; ) {
    const end = text.indexOf('\r\n', at)
    const to = end === -1 ? text.length : end
    const colon = text.indexOf(':', at)
    const name = headerName(text.slice(at, colon === -1 ? at : Math.min(colon, to)))
    const value = text.slice(colon + 1, to).trim()
    headers[name] = headers[name] === undefined ? value : `${headers[name]}, ${value}`
    at = to + 2
  }
  return headers
}

/** Returns the name in lower case. @throws InvalidResponse */
function headerName(text: string): string {
  const known = names.get(text)
  if (known !== undefined) return known
  if (!HEADER_NAME.test(text)) throw new InvalidResponse('the response has an invalid header line')
  if (names.size >= MAX_NAMES) names.clear()
  const name = text.toLowerCase()
  names.set(text, name)
  return name
}

function bodyFraming(status: number, headers: ResponseHead['headers']): ResponseHead['body'] {
  if (status < 200 || status === 204 || status === 304) return { kind: 'length', length: 0 }
  const encoding = headers['transfer-encoding']
  const length = headers['content-length']
  if (encoding !== undefined) {
    if (length !== undefined) throw new InvalidResponse('the response declares its length twice')
    if (encoding.toLowerCase() === 'chunked') return { kind: 'chunked' }
    throw new InvalidResponse(`the response uses the transfer encoding "${encoding}"`)
  }
  if (length === undefined) return { kind: 'until-close' }
  const [only, ...others] = new Set(length.split(/\s*,\s*/))
  if (others.length > 0 || !/^\d{1,15}$/.test(only!)) throw new InvalidResponse('the response has an invalid length')
  return { kind: 'length', length: Number(only) }
}

const LINE_FEED = 10
/** Maximum bytes of a line beside the data of chunks, and of all lines after the last chunk. */
const MAX_LINE_BYTES = 16 * 1024
const NO_DIGIT = 255
/** The value of each byte as a hexadecimal digit. */
const HEX_DIGITS = Uint8Array.from({ length: 256 }, (_, byte) => {
  const digit = Number.parseInt(String.fromCharCode(byte), 16)
  return Number.isNaN(digit) ? NO_DIGIT : digit
})
const MAX_SIZE_DIGITS = 12
const NOTHING = Buffer.alloc(0)

/** The expected next part: the head, a body without chunks, or a part of one with chunks. */
type Expected = 'head' | 'body' | 'size' | 'data' | 'data-end' | 'trailer' | 'nothing'

/** Reads one response. Informational responses before it are skipped. */
export class ResponseReader {
  /** Undefined until it has arrived. */
  head: ResponseHead | undefined
  /** Whether more of the body is wanted. */
  isWanted = true
  /** Remaining bytes of the body or of its current chunk. Infinite if the connection ends the body. */
  left = 0
  /** By name in lower case. Complete when the response is. */
  readonly trailers: Record<string, string> = {}
  readonly #onHead: (head: ResponseHead) => boolean
  readonly #isBodiless: boolean
  #expected: Expected = 'head'
  #headText = ''
  /** An incomplete line beside the data of chunks. */
  #line: Buffer = NOTHING
  #trailerBytes = 0

  /** @param onHead returns false if the body is not wanted @param isBodiless whether it answers a HEAD request */
  constructor(onHead: (head: ResponseHead) => boolean = () => true, isBodiless = false) {
    this.#onHead = onHead
    this.#isBodiless = isBodiless
  }

  /** Whether the whole response has arrived. */
  get complete(): boolean {
    return this.#expected === 'nothing'
  }

  /** Whether all of the next `left` bytes belong to the body, so that they may be read without `push`: see `skip`. */
  get isPlain(): boolean {
    return this.#expected === 'body'
  }

  /**
   * Takes bytes and passes their parts of the body to `take`, until it returns false.
   * @returns how many bytes were used. Bytes after the response are not
   * @throws InvalidResponse
   */
  push(bytes: Buffer, take: (data: Buffer) => boolean): number {
    let at = 0
    if (this.#expected === 'head') {
      at = this.#readHead(bytes)
      if (this.head) this.isWanted = this.#onHead(this.head)
    }
    while (at < bytes.length && this.#expected !== 'nothing' && this.isWanted) {
      if (this.#expected !== 'data' && this.#expected !== 'body') at = this.#readLine(bytes, at)
      else {
        const data = bytes.subarray(at, at + this.left)
        at += data.length
        this.skip(data.length)
        this.isWanted = take(data)
      }
    }
    return at
  }

  /** Counts bytes of the body that were read without `push`. */
  skip(length: number): void {
    this.left -= length
    if (this.left === 0) this.#expected = this.#expected === 'data' ? 'data-end' : 'nothing'
  }

  /** Ends the response with its connection. @returns whether it is complete */
  end(): boolean {
    if (this.#expected === 'body' && this.left === Number.POSITIVE_INFINITY) this.#expected = 'nothing'
    return this.complete
  }

  /** @returns the offset of the bytes after the head */
  #readHead(bytes: Buffer): number {
    for (let from = 0; ; ) {
      const before = this.#headText.length
      this.#headText += bytes.toString('latin1', from)
      const end = this.#headText.indexOf(END_OF_HEAD, Math.max(0, before - END_OF_HEAD.length + 1))
      if ((end === -1 ? this.#headText.length : end) > MAX_HEAD_LENGTH) {
        throw new InvalidResponse('the response headers do not end')
      }
      if (end === -1) {
        // What speaks another protocol may send a greeting and wait.
        if (!BEGIN_OF_HEAD.startsWith(this.#headText.slice(0, BEGIN_OF_HEAD.length))) parseHead(this.#headText)
        return bytes.length
      }
      const head = parseHead(this.#headText.slice(0, end))
      from += end + END_OF_HEAD.length - before
      this.#headText = ''
      if (head.status === 101) throw new InvalidResponse('the server switches to another protocol')
      if (head.status < 200) continue
      this.head = head
      const body = this.#isBodiless ? NO_BODY : head.body
      this.left = body.kind === 'length' ? body.length : body.kind === 'chunked' ? 0 : Number.POSITIVE_INFINITY
      this.#expected = body.kind === 'chunked' ? 'size' : this.left === 0 ? 'nothing' : 'body'
      return from
    }
  }

  /** Reads a line beside the data of chunks. @returns the offset of the bytes after it */
  #readLine(bytes: Buffer, from: number): number {
    // These lines are a few bytes long, so a loop is cheaper than a native call to indexOf.
    let end = from
    while (end < bytes.length && bytes[end] !== LINE_FEED) end++
    const isWhole = end < bytes.length
    if (isWhole && this.#line.length === 0) this.#takeLine(bytes, from, end)
    else {
      // Copied, because the next bytes of the connection may be read into the same memory.
      const line = Buffer.concat([this.#line, bytes.subarray(from, end)])
      if (line.length > MAX_LINE_BYTES) throw new InvalidResponse('a chunk line of the response does not end')
      this.#line = isWhole ? NOTHING : line
      if (isWhole) this.#takeLine(line, 0, line.length)
    }
    return Math.min(end + 1, bytes.length)
  }

  /** Handles the line in these bytes, without its line feed. @throws InvalidResponse */
  #takeLine(bytes: Buffer, from: number, to: number): void {
    const end = bytes[to - 1] === 13 && to > from ? to - 1 : to
    if (this.#expected === 'size') {
      this.left = chunkSize(bytes, from, end)
      this.#expected = this.left === 0 ? 'trailer' : 'data'
    } else if (this.#expected === 'data-end') {
      if (end > from) throw new InvalidResponse('a chunk of the response is longer than its size')
      this.#expected = 'size'
    } else if (end === from) this.#expected = 'nothing'
    else {
      this.#trailerBytes += end - from
      if (this.#trailerBytes > MAX_LINE_BYTES) {
        throw new InvalidResponse('the trailing headers of the response do not end')
      }
      Object.assign(this.trailers, parseHeaders(bytes.toString('latin1', from, end), 0))
    }
  }
}

/** Parses the size of a chunk, which may be followed by an extension. @throws InvalidResponse */
function chunkSize(bytes: Buffer, from: number, end: number): number {
  let size = 0
  let at = from
  for (; at < end && HEX_DIGITS[bytes[at]!] !== NO_DIGIT; at++) size = size * 16 + HEX_DIGITS[bytes[at]!]!
  const digits = at - from
  while (at < end && (bytes[at] === 32 || bytes[at] === 9)) at++
  const isEnded = at === end || bytes[at] === 59
  if (digits === 0 || digits > MAX_SIZE_DIGITS || !isEnded) {
    throw new InvalidResponse('a chunk of the response has no size')
  }
  return size
}
