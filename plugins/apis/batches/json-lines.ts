import { constants, createReadStream } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { type Static, Type } from 'typebox'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import { JsonScan } from '../../../core/system/json-scan.ts'

/* Reads the input file of a batch. Each line is one request: `{"custom_id", "method", "url", "body"}`. */

export const ENDPOINTS = ['/v1/chat/completions', '/v1/completions', '/v1/embeddings', '/v1/responses'] as const

export const LineErrorSchema = Type.Object({
  code: Type.String(),
  line: Type.Union([Type.Integer(), Type.Null()]),
  message: Type.String(),
  param: Type.Union([Type.String(), Type.Null()])
})
type LineError = Static<typeof LineErrorSchema>

export interface RequestLine {
  customId: string
  body: Record<string, unknown>
}

const MAX_ID_CHARACTERS = 256
const NEWLINE = 10
const READ_SIZE_BYTES = 256 * 1024

export async function* readLines(
  path: string,
  most = Number.POSITIVE_INFINITY
): AsyncGenerator<{ number: number; text: string | undefined }> {
  let number = 1
  let parts: Buffer[] = []
  let length = 0
  const take = () => {
    const text =
      length > most
        ? undefined
        : Buffer.concat(parts)
            .toString()
            .replace(/^\uFEFF/, '')
    const line = { number, text }
    number++
    parts = []
    length = 0
    return line
  }
  for await (const piece of createReadStream(path, { highWaterMark: READ_SIZE_BYTES }) as AsyncIterable<Buffer>) {
    let from = 0
    while (from < piece.length) {
      const end = piece.indexOf(NEWLINE, from)
      const part = piece.subarray(from, end === -1 ? undefined : end)
      length += part.length
      if (length <= most) parts.push(part)
      else parts = []
      if (end === -1) break
      from = end + 1
      const line = take()
      if (line.text === undefined || /\S/.test(line.text)) yield line
    }
  }
  const last = take()
  if (last.text === undefined || /\S/.test(last.text)) yield last
}

/** Parses a request. @param depth maximum nesting depth (`limits.body_depth`) */
export function parseLine(
  { number, text }: { number: number; text: string | undefined },
  { endpoint, most, depth }: { endpoint: string; most: number; depth: number }
): RequestLine | LineError {
  const fault = (code: string, message: string, param: string | null = null) => ({ code, line: number, message, param })
  if (text === undefined)
    return fault('line_too_long', `This line is longer than ${most} bytes (api-batches.line_size).`)
  const given = new JsonScan(text, depth).next(text.length) ? undefined : parseAnyJson(text)
  if (!isObject(given)) return fault('invalid_json_line', 'This line is not a valid JSON object.')
  const { custom_id: customId, method, url, body } = given
  if (customId === undefined) {
    return fault('missing_required_parameter', 'This line has no "custom_id".', 'custom_id')
  }
  if (typeof customId !== 'string' || customId === '' || customId.length > MAX_ID_CHARACTERS) {
    return fault('invalid_custom_id', `"custom_id" must be text of 1 to ${MAX_ID_CHARACTERS} characters.`, 'custom_id')
  }
  if (method !== 'POST') return fault('invalid_method', '"method" must be "POST".', 'method')
  if (url !== endpoint) {
    return fault('invalid_url', `"url" must be the endpoint of the batch, "${endpoint}".`, 'url')
  }
  if (!isObject(body)) return fault('invalid_body', '"body" must be an object: the body of the request.', 'body')
  if (body.stream === true) return fault('invalid_body', 'Requests of a batch cannot be streamed.', 'body.stream')
  return { customId, body }
}

export function isLineError(line: RequestLine | LineError): line is LineError {
  return 'code' in line
}

const MAX_ERRORS = 100

export interface LineLimits {
  lineSize: number
  lines: number
  depth: number
}

export async function checkLines(
  path: string,
  endpoint: string,
  { lineSize, lines, depth }: LineLimits,
  signal: AbortSignal
): Promise<{ total: number; faults: LineError[] }> {
  const ids = new Set<string>()
  const faults: LineError[] = []
  let total = 0
  for await (const line of readLines(path, lineSize)) {
    signal.throwIfAborted()
    total++
    if (total > lines) {
      const message = `The file has more than ${lines} requests (api-batches.lines). Split it into several batches.`
      faults.push({ code: 'too_many_requests', line: line.number, message, param: null })
      break
    }
    const request = parseLine(line, { endpoint, most: lineSize, depth })
    if (isLineError(request)) faults.push(request)
    else if (ids.has(request.customId)) {
      const message = 'An earlier line has the same "custom_id". It must be unique in the file.'
      faults.push({ code: 'duplicate_custom_id', line: line.number, message, param: 'custom_id' })
    } else ids.add(request.customId)
    if (faults.length >= MAX_ERRORS) break
  }
  if (total === 0) faults.push({ code: 'empty_file', line: null, message: 'The file has no requests.', param: null })
  return { total, faults }
}

/** An append-only file of results, one JSON value per line. A line survives a kill once `add` has resolved. */
export class ResultFile {
  readonly #handle: FileHandle
  #size: number
  #waiting: string[] = []
  #writing: Promise<void> | undefined
  count: number

  private constructor(handle: FileHandle, size: number, count: number) {
    this.#handle = handle
    this.#size = size
    this.count = count
  }

  /** Opens the file and drops an incomplete last line. @param found called with the `custom_id` of each line */
  static async open(path: string, found: (customId: string) => void): Promise<ResultFile> {
    const handle = await open(path, constants.O_RDWR | constants.O_CREAT, 0o600)
    try {
      const size = await wholeLines(handle)
      await handle.truncate(size)
      let count = 0
      if (size > 0) {
        for await (const { text } of readLines(path)) {
          const value: unknown = JSON.parse(text!)
          if (isObject(value) && typeof value.custom_id === 'string') found(value.custom_id)
          count++
        }
      }
      return new ResultFile(handle, size, count)
    } catch (error) {
      await handle.close()
      throw error
    }
  }

  /** Resolves when the line is on disk. @throws the disk's error, in which case nothing of the line is stored */
  add(value: object): Promise<void> {
    this.#waiting.push(`${JSON.stringify(value)}\n`)
    // A single write takes all lines that were added during the previous one.
    this.#writing ??= this.#writeAll()
    return this.#writing
  }

  async #writeAll(): Promise<void> {
    try {
      // Lines that are added in the same tick are written together.
      await Promise.resolve()
      await this.#write()
    } finally {
      // Synchronous, so a line that is added from now on starts a new write.
      this.#writing = undefined
    }
  }

  async #write(): Promise<void> {
    while (this.#waiting.length > 0) {
      const lines = this.#waiting
      this.#waiting = []
      const bytes = Buffer.from(lines.join(''))
      try {
        for (let at = 0; at < bytes.length; ) {
          at += (await this.#handle.write(bytes, at, bytes.length - at, this.#size + at)).bytesWritten
        }
        await this.#handle.datasync()
      } catch (error) {
        this.#waiting = []
        await this.#handle.truncate(this.#size).catch(() => {})
        throw error
      }
      this.#size += bytes.length
      this.count += lines.length
    }
  }

  async close(): Promise<void> {
    await this.#writing?.catch(() => {})
    await this.#handle.close()
  }
}

async function wholeLines(handle: FileHandle): Promise<number> {
  const piece = Buffer.alloc(64 * 1024)
  let { size } = await handle.stat()
  while (size > 0) {
    const from = Math.max(0, size - piece.length)
    const { bytesRead } = await handle.read(piece, 0, size - from, from)
    const at = piece.subarray(0, bytesRead).lastIndexOf(NEWLINE)
    if (at !== -1) return from + at + 1
    size = from
  }
  return 0
}
