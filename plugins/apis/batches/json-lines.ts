import { createReadStream } from 'node:fs'
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

interface Line {
  number: number
  /** Undefined if the line is too long. */
  text: string | undefined
  /** Bytes up to the end of the line, or undefined for a last line without a line break. */
  end?: number
}

/** Yields the lines that are not blank. @param most maximum bytes of a line */
export async function* readLines(path: string, most = Number.POSITIVE_INFINITY): AsyncGenerator<Line> {
  let number = 0
  let parts: Buffer[] = []
  let length = 0
  let before = 0
  function* take(line: Pick<Line, 'end'>): Generator<Line> {
    const text =
      length > most
        ? undefined
        : Buffer.concat(parts)
            .toString()
            .replace(/^\uFEFF/, '')
    number++
    parts = []
    length = 0
    if (text === undefined || /\S/.test(text)) yield { number, text, ...line }
  }
  for await (const piece of createReadStream(path, { highWaterMark: READ_SIZE_BYTES }) as AsyncIterable<Buffer>) {
    let from = 0
    while (from < piece.length) {
      const at = piece.indexOf(NEWLINE, from)
      const part = piece.subarray(from, at === -1 ? undefined : at)
      length += part.length
      if (length <= most) parts.push(part)
      else parts = []
      if (at === -1) break
      from = at + 1
      yield* take({ end: before + from })
    }
    before += piece.length
  }
  yield* take({})
}

/** Parses a request. @param depth maximum nesting depth (`limits.body_depth`) */
export function parseLine(
  { number, text }: Line,
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
  /** The write that takes the waiting lines, and the last write that was planned. */
  #next: Promise<void> | undefined
  #last = Promise.resolve()
  count: number

  private constructor(handle: FileHandle, size: number, count: number) {
    this.#handle = handle
    this.#size = size
    this.count = count
  }

  /** Opens the file and drops an incomplete last line. @param found called with the `custom_id` of each line */
  static async open(path: string, found: (customId: string) => void): Promise<ResultFile> {
    const handle = await open(path, 'a+', 0o600)
    try {
      let size = 0
      let count = 0
      for await (const { text, end } of readLines(path)) {
        if (end === undefined) break
        const value: unknown = JSON.parse(text!)
        if (isObject(value) && typeof value.custom_id === 'string') found(value.custom_id)
        count++
        size = end
      }
      await handle.truncate(size)
      return new ResultFile(handle, size, count)
    } catch (error) {
      await handle.close()
      throw error
    }
  }

  /** Resolves when the lines are on disk. @throws the disk's error, in which case nothing of them is stored */
  add(...values: readonly object[]): Promise<void> {
    for (const value of values) this.#waiting.push(`${JSON.stringify(value)}\n`)
    // A single write takes all lines that were added during the previous one.
    this.#next ??= this.#last.then(() => this.#write())
    this.#last = this.#next.catch(() => {})
    return this.#next
  }

  async #write(): Promise<void> {
    const lines = this.#waiting.splice(0)
    const bytes = Buffer.from(lines.join(''))
    this.#next = undefined
    try {
      await this.#handle.appendFile(bytes)
      await this.#handle.datasync()
    } catch (error) {
      await this.#handle.truncate(this.#size).catch(() => {})
      throw error
    }
    this.#size += bytes.length
    this.count += lines.length
  }

  async close(): Promise<void> {
    await this.#last
    await this.#handle.close()
  }
}
