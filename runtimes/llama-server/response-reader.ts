/*
 * Reads HTTP/1.1 responses of one engine from the bytes of its connections. llama-server sends each token as an HTTP
 * chunk, and Node's own client delivers each chunk separately. Here, chunks that arrive together stay together.
 */

/** Maximum bytes of the head of a response, and of a line beside its chunks. */
const MAX_HEAD_LENGTH = 64 * 1024

const HEADERS = ['connection', 'transfer-encoding', 'content-length'].map(
  name => new RegExp(`^${name}:[ \\t]*(.*?)[ \\t]*$`, 'im')
)
const END_OF_HEAD = '\r\n\r\n'
const LINE_FEED = 10
const NO_DIGIT = 255
/** The value of each byte as a hexadecimal digit. */
const HEX_DIGITS = Uint8Array.from({ length: 256 }, (_, byte) => {
  const digit = Number.parseInt(String.fromCharCode(byte), 16)
  return Number.isNaN(digit) ? NO_DIGIT : digit
})
/** Maximum hexadecimal digits of a chunk size. */
const MAX_SIZE = 12
const NOTHING = Buffer.alloc(0)

/** The expected next part. `line` is a size of a chunk or the end of one, `trailer` the lines after the last chunk. */
type Expected = 'head' | 'line' | 'chunk' | 'trailer' | 'counted' | 'all' | 'nothing'

/** The bytes are not an HTTP response, or exceed the limits of one. */
export class MalformedResponse extends Error {
  override readonly name = 'MalformedResponse'
  constructor(what: string) {
    super(`its answer is not an HTTP response: ${what}`)
  }
}

export class ResponseReader {
  /** The status code. Undefined until the head has arrived. */
  status: number | undefined
  /** Whether the connection may serve another request once the response is complete. */
  reusable = true
  #expected: Expected = 'head'
  /** An incomplete head, or an incomplete line beside chunks. */
  #part: Buffer = NOTHING
  /** Remaining bytes of the chunk or of the body. */
  #left = 0

  /** Whether the whole response has arrived. Anything after it is ignored. */
  get complete(): boolean {
    return this.#expected === 'nothing'
  }

  /** Takes bytes. Returns their part of the body, copied into one piece. @throws MalformedResponse */
  push(bytes: Buffer): Buffer {
    const pieces: Buffer[] = []
    let at = 0
    while (at < bytes.length && this.#expected !== 'nothing') {
      if (this.#expected === 'head') at = this.#readHead(bytes, at)
      else if (this.#expected === 'line' || this.#expected === 'trailer') at = this.#readLine(bytes, at)
      else {
        const end = this.#expected === 'all' ? bytes.length : Math.min(bytes.length, at + this.#left)
        pieces.push(bytes.subarray(at, end))
        this.#left -= end - at
        at = end
        if (this.#left === 0) this.#expected = this.#expected === 'chunk' ? 'line' : 'nothing'
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
    const end = head.indexOf(END_OF_HEAD)
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

  #takeHead(head: string): void {
    const [, version, status] = /^HTTP\/1\.([01]) (\d{3})\b/.exec(head) ?? []
    if (status === undefined) throw new MalformedResponse('it does not begin as HTTP/1.1 does')
    this.status = Number(status)
    const [connection = 'keep-alive', coding, length] = HEADERS.map(header => header.exec(head)?.[1]?.toLowerCase())
    this.reusable = version === '1' && connection === 'keep-alive'
    if (coding !== undefined) {
      if (coding !== 'chunked') throw new MalformedResponse('its transfer coding is unknown')
      this.#expected = 'line'
    } else if (length !== undefined) {
      if (!/^\d{1,15}$/.test(length)) throw new MalformedResponse('its length is not a number')
      this.#left = Number(length)
      this.#expected = this.#left === 0 ? 'nothing' : 'counted'
    } else {
      this.reusable = false
      this.#left = Number.POSITIVE_INFINITY
      this.#expected = 'all'
    }
  }

  /** Reads a line beside the data of chunks. @returns the offset of the bytes after it */
  #readLine(bytes: Buffer, from: number): number {
    // These lines are a few bytes long, so a loop is cheaper than a native call to indexOf.
    let end = from
    while (end < bytes.length && bytes[end] !== LINE_FEED) end++
    if (end < bytes.length && this.#part.length === 0) {
      this.#takeLine(bytes, from, end)
      return end + 1
    }
    const line = Buffer.concat([this.#part, bytes.subarray(from, end)])
    if (line.length > MAX_HEAD_LENGTH) throw new MalformedResponse('a line beside its chunks is too long')
    this.#part = end < bytes.length ? NOTHING : line
    if (end < bytes.length) this.#takeLine(line, 0, line.length)
    return end + 1
  }

  /** Handles a line that spans these bytes: a carriage return, alone or after a size. @throws MalformedResponse */
  #takeLine(bytes: Buffer, from: number, end: number): void {
    const isEmpty = end - from <= 1
    if (this.#expected === 'trailer') {
      if (isEmpty) this.#expected = 'nothing'
    } else if (!isEmpty) {
      this.#left = chunkSize(bytes, from, end)
      this.#expected = this.#left === 0 ? 'trailer' : 'chunk'
    }
  }
}

/** Parses the size at the beginning of a line into bytes. @throws MalformedResponse */
function chunkSize(bytes: Buffer, from: number, end: number): number {
  let size = 0
  let at = from
  for (; at < end; at++) {
    const digit = HEX_DIGITS[bytes[at]!]!
    if (digit === NO_DIGIT) break
    size = size * 16 + digit
  }
  if (at === from || at - from > MAX_SIZE) throw new MalformedResponse('a chunk has no size')
  return size
}
