/*
 * Reads HTTP/1.1 responses of one engine from the bytes of its connections. llama-server sends each token as an HTTP
 * chunk, and Node's own client delivers each chunk separately. Here, chunks that arrive together stay together.
 */

/** Maximum bytes of the head of a response, and of the lines around its chunks. */
const MAX_HEAD_LENGTH = 64 * 1024
const MAX_LINE_LENGTH = 4 * 1024

const END_OF_HEAD = Buffer.from('\r\n\r\n')
const LINE_FEED = 10
const CARRIAGE_RETURN = 13
const SPACE = 32
const TAB = 9
const SEMICOLON = 59
const NO_DIGIT = 255
/** The value of each byte as a hexadecimal digit. */
const HEX_DIGITS = Uint8Array.from({ length: 256 }, (_, byte) => {
  const digit = Number.parseInt(String.fromCharCode(byte), 16)
  return Number.isNaN(digit) ? NO_DIGIT : digit
})
/** Maximum hexadecimal digits of a chunk size. */
const MAX_SIZE = 12
const NOTHING = Buffer.alloc(0)

/** The expected next part. `size`, `data`, `end-of-data` and `trailer` are the parts of a chunked body. */
type Expected = 'head' | 'size' | 'data' | 'end-of-data' | 'trailer' | 'counted' | 'all' | 'nothing'

/** The bytes are not an HTTP response, or exceed the limits of one. */
export class MalformedResponse extends Error {
  override readonly name = 'MalformedResponse'
  constructor(what: string) {
    super(`its answer is not an HTTP response: ${what}`)
  }
}

export class ResponseReader {
  /** The status code. Undefined until the head has arrived. Provisional answers (1xx) are skipped. */
  status: number | undefined
  /** Whether the connection may serve another request once the response is complete. */
  reusable = true
  #expected: Expected = 'head'
  /** An incomplete head, or an incomplete line around chunks. */
  #part: Buffer = NOTHING
  /** Remaining bytes of the chunk or of the body. */
  #left = 0
  #trailer = 0

  /** Whether the whole response has arrived. Anything after it is ignored. */
  get complete(): boolean {
    return this.#expected === 'nothing'
  }

  /** Takes bytes. Returns their part of the body, copied into one piece. @throws MalformedResponse */
  push(bytes: Buffer): Buffer {
    const pieces: Buffer[] = []
    let at = 0
    while (at < bytes.length && this.#expected !== 'nothing') {
      switch (this.#expected) {
        case 'head':
          at = this.#readHead(bytes, at)
          break
        case 'data':
        case 'counted': {
          const end = Math.min(bytes.length, at + this.#left)
          pieces.push(bytes.subarray(at, end))
          this.#left -= end - at
          at = end
          if (this.#left === 0) this.#expected = this.#expected === 'data' ? 'end-of-data' : 'nothing'
          break
        }
        case 'all':
          pieces.push(bytes.subarray(at))
          at = bytes.length
          break
        default:
          at = this.#readLine(bytes, at)
      }
    }
    if (at < bytes.length) this.reusable = false
    return pieces.length === 0 ? NOTHING : Buffer.concat(pieces)
  }

  /** Ends the response with its connection. @returns whether the response is complete */
  end(): boolean {
    if (this.#expected === 'all') this.#expected = 'nothing'
    return this.complete
  }

  /** @returns the offset of the bytes after the head */
  #readHead(bytes: Buffer, from: number): number {
    const before = this.#part.length
    const head = before === 0 ? bytes.subarray(from) : Buffer.concat([this.#part, bytes.subarray(from)])
    const end = head.indexOf(END_OF_HEAD, Math.max(0, before - END_OF_HEAD.length))
    if ((end === -1 ? head.length : end) > MAX_HEAD_LENGTH) throw new MalformedResponse('its head is too long')
    if (end === -1) {
      // Copied, because the next bytes of the connection are read into the same memory.
      this.#part = Buffer.from(head)
      return bytes.length
    }
    this.#part = NOTHING
    this.#takeHead(head.toString('latin1', 0, end))
    return from + end + END_OF_HEAD.length - before
  }

  #takeHead(text: string): void {
    const [first = '', ...lines] = text.split('\r\n')
    const code = /^HTTP\/1\.[01] (\d{3})(?: |$)/.exec(first)?.[1]
    if (code === undefined) throw new MalformedResponse('it does not begin as HTTP/1.1 does')
    const status = Number(code)
    if (status < 200) {
      if (status === 101) throw new MalformedResponse('it changes the protocol')
      return
    }
    let coding: string | undefined
    let length: string | undefined
    for (const line of lines) {
      const [, name, value = ''] = /^([^\s:]+):[ \t]*(.*?)[ \t]*$/.exec(line) ?? []
      if (name === undefined) throw new MalformedResponse('a header is malformed')
      const key = name.toLowerCase()
      if (key === 'transfer-encoding') coding = coding === undefined ? value.toLowerCase() : `${coding}, ${value}`
      else if (key === 'content-length') {
        if (length !== undefined && length !== value) throw new MalformedResponse('it has two lengths')
        length = value
      } else if (key === 'connection' && value.toLowerCase() !== 'keep-alive') this.reusable = false
    }
    if (first.startsWith('HTTP/1.0')) this.reusable = false
    this.status = status
    this.#expected = this.#bodyAfter(status, coding, length)
  }

  #bodyAfter(status: number, coding: string | undefined, length: string | undefined): Expected {
    if (status === 204 || status === 304) return 'nothing'
    if (coding !== undefined) {
      if (coding !== 'chunked') throw new MalformedResponse('its transfer coding is unknown')
      return 'size'
    }
    if (length === undefined) {
      this.reusable = false
      return 'all'
    }
    if (!/^\d{1,15}$/.test(length)) throw new MalformedResponse('its length is not a number')
    this.#left = Number(length)
    return this.#left === 0 ? 'nothing' : 'counted'
  }

  /** Reads a line around the data of chunks. @returns the offset of the bytes after it */
  #readLine(bytes: Buffer, from: number): number {
    // These lines are a few bytes long, so a loop is cheaper than a native call to indexOf.
    let end = from
    while (end < bytes.length && bytes[end] !== LINE_FEED) end++
    const isWhole = end < bytes.length
    if (isWhole) end++
    if (this.#part.length + end - from > MAX_LINE_LENGTH)
      throw new MalformedResponse('a line between chunks is too long')
    if (isWhole && this.#part.length === 0) this.#takeLine(bytes, from, end)
    else {
      this.#part = Buffer.concat([this.#part, bytes.subarray(from, end)])
      if (!isWhole) return end
      const line = this.#part
      this.#part = NOTHING
      this.#takeLine(line, 0, line.length)
    }
    return end
  }

  /** Handles a line that spans these bytes, CRLF included. */
  #takeLine(bytes: Buffer, from: number, end: number): void {
    const length = end - from - 2
    if (length < 0 || bytes[end - 2] !== CARRIAGE_RETURN) {
      throw new MalformedResponse('a line between chunks does not end with CRLF')
    }
    if (this.#expected === 'end-of-data') {
      if (length > 0) throw new MalformedResponse('a chunk is longer than it says')
      this.#expected = 'size'
    } else if (this.#expected === 'size') {
      this.#left = chunkSize(bytes, from, end - 2)
      this.#expected = this.#left === 0 ? 'trailer' : 'data'
    } else if (length === 0) this.#expected = 'nothing'
    else {
      this.#trailer += length
      if (this.#trailer > MAX_HEAD_LENGTH) throw new MalformedResponse('its trailer is too long')
    }
  }
}

/** Parses a chunk-size line into bytes. Ignores chunk extensions. @throws MalformedResponse */
function chunkSize(bytes: Buffer, from: number, end: number): number {
  let size = 0
  let at = from
  for (; at < end; at++) {
    const digit = HEX_DIGITS[bytes[at]!]!
    if (digit === NO_DIGIT) break
    size = size * 16 + digit
  }
  let behind = at
  while (bytes[behind] === SPACE || bytes[behind] === TAB) behind++
  const isSize = at > from && at - from <= MAX_SIZE && (behind === end || bytes[behind] === SEMICOLON)
  if (!isSize) throw new MalformedResponse('a chunk has no size')
  return size
}
