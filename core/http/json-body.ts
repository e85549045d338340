import { setImmediate as nextTurn } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import { CorralError } from '../errors.ts'

/**
 * Parses every body as JSON whatever its content type says, so that `curl -d '{…}'` works. Keys such as `__proto__` are
 * dropped. What would hold up the thread for long is refused before it is parsed. Access control must not rely on
 * content types: see the security plugin's check of `Origin`.
 * @param mostLevels gives how many levels of lists and objects there may be (`limits.body_depth`)
 */
export function acceptAnyBodyAsJson(app: FastifyInstance, mostLevels: () => number): void {
  const parse = app.getDefaultJsonParser('remove', 'remove')
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', { parseAs: 'string' }, (request, body, done) => {
    request.record.received = performance.now()
    const text = body as string
    const depth = mostLevels()
    const take = (excess: JsonExcess | undefined) => {
      if (excess) return done(refusal(excess, depth), undefined)
      if (!/\S/.test(text)) return done(null, undefined)
      void parse(request, text, (error, value) => {
        if (!error) return done(null, value)
        done(new CorralError('invalid_json', `The request body is not valid JSON: ${describe(text)}`), undefined)
      })
    }
    const scan = new JsonScan(text, depth)
    if (text.length <= SLICE) take(scan.next(text.length))
    else void inSlices(scan, text.length).then(take, done)
  })
}

/** Characters that are looked at before other clients have their turn: some milliseconds. */
const SLICE = 4 * 2 ** 20

async function inSlices(scan: JsonScan, length: number): Promise<JsonExcess | undefined> {
  for (let end = SLICE; ; end += SLICE) {
    const excess = scan.next(Math.min(end, length))
    if (excess || end >= length) return excess
    await nextTurn()
  }
}

/** More would hold up all other clients for many seconds, and take gigabytes, while they are read. */
const MOST_VALUES = 2_000_000
/** Lists, objects and their keys cost ten times what other values do. */
const MOST_MEMBERS = 150_000

/** What a JSON text has too much of. */
export type JsonExcess = 'depth' | 'values' | 'members'

function refusal(excess: JsonExcess, depth: number): CorralError {
  if (excess === 'depth') {
    return new CorralError(
      'over_limit',
      `The request body has lists and objects more than ${depth} levels deep, which "limits.body_depth" does not allow. Send one that is nested less deeply, or have the admin raise the limit.`,
      { details: { limit: 'limits.body_depth', value: depth } }
    )
  }
  const what = excess === 'values' ? `${MOST_VALUES} values` : `${MOST_MEMBERS} lists, objects and keys`
  return new CorralError('body_too_large', `The request body holds more than ${what}.`)
}

const QUOTE = 34
const COMMA = 44
const COLON = 58
const BACKSLASH = 92
const OPENS = [91, 123] as const
const CLOSES = [93, 125] as const

/**
 * Counts what a JSON text would make work, without parsing it: values by their commas, keys by their colons, lists and
 * objects by their brackets. Strings are leapt over. What is no JSON may be counted anyhow; parsing refuses it.
 */
export class JsonScan {
  readonly #text: string
  readonly #most: { depth: number; values: number; members: number }
  #at = 0
  #depth = 0
  #values = 0
  #members = 0
  #inString = false

  constructor(text: string, depth: number, values = MOST_VALUES, members = MOST_MEMBERS) {
    this.#text = text
    this.#most = { depth, values, members }
  }

  /** Goes on to this index or, within a string, to the quotation mark behind it. @returns what there is too much of */
  next(end: number): JsonExcess | undefined {
    const text = this.#text
    const most = this.#most
    let at = this.#at
    let depth = this.#depth
    let values = this.#values
    let members = this.#members
    for (; at < end; at++) {
      const code = text.charCodeAt(at)
      if (this.#inString || code === QUOTE) at = this.#leap(this.#inString ? at : at + 1, end)
      else if (code === COMMA) {
        if (++values > most.values) return 'values'
      } else if (code === COLON) {
        if (++members > most.members) return 'members'
      } else if (code === OPENS[0] || code === OPENS[1]) {
        if (++depth > most.depth) return 'depth'
        if (++members > most.members) return 'members'
      } else if (code === CLOSES[0] || code === CLOSES[1]) depth--
    }
    this.#at = at
    this.#depth = depth
    this.#values = values
    this.#members = members
    return undefined
  }

  /** The index of the quotation mark that ends a string, or that of one within it that is beyond `end`. */
  #leap(from: number, end: number): number {
    const text = this.#text
    for (let at = text.indexOf('"', from); at !== -1; at = text.indexOf('"', at + 1)) {
      let before = at - 1
      while (text.charCodeAt(before) === BACKSLASH) before--
      this.#inString = (at - before) % 2 === 0
      if (!this.#inString || at >= end) return at
    }
    this.#inString = false
    return text.length
  }
}

/** In longer bodies the place of a mistake is not looked for: they would be parsed and cut to pieces once more. */
const LONGEST_DESCRIBED = 2 ** 20

/** Where the mistake is, without quoting the body: it may hold a prompt. */
function describe(text: string): string {
  if (text.length > LONGEST_DESCRIBED) return 'it has a mistake, or ends too early.'
  try {
    JSON.parse(text)
  } catch (error) {
    const position = /position (\d+)/.exec(String(error))?.[1]
    if (position !== undefined) {
      const before = text.slice(0, Number(position)).split('\n')
      return `mistake at line ${before.length}, column ${before.at(-1)!.length + 1}.`
    }
    return 'it ends too early.'
  }
  return 'it has keys that are not allowed.'
}

/** No request has so many fields; engines may take minutes over a hundred thousand. */
const MOST_FIELDS = 1000

/** The body as an object. @throws CorralError `missing_body` or `invalid_request` */
export function bodyObject(body: unknown): Record<string, unknown> {
  if (body === undefined || body === null) {
    throw new CorralError('missing_body', 'The request has no body. Send a JSON object.')
  }
  if (typeof body !== 'object' || Array.isArray(body)) {
    throw new CorralError('invalid_request', 'The request body must be a JSON object.')
  }
  if (Object.keys(body).length > MOST_FIELDS) {
    throw new CorralError('invalid_request', `The request body has more than ${MOST_FIELDS} fields.`)
  }
  return body as Record<string, unknown>
}
