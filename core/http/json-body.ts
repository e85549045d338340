import type { FastifyInstance } from 'fastify'
import { CorralError } from '../errors.ts'

/**
 * Parses every body as JSON whatever its content type says, so that `curl -d '{…}'` works. Keys such as `__proto__` are
 * dropped. Access control must not rely on content types: see the security plugin's check of `Origin`.
 */
export function acceptAnyBodyAsJson(app: FastifyInstance): void {
  const parse = app.getDefaultJsonParser('remove', 'remove')
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', { parseAs: 'string' }, (request, body, done) => {
    const text = body as string
    if (text.trim() === '') {
      done(null, undefined)
      return
    }
    if (text.length > MOST_VALUES && hasMoreValues(text, MOST_VALUES)) {
      done(new CorralError('body_too_large', `The request body holds more than ${MOST_VALUES} values.`), undefined)
      return
    }
    void parse(request, text, (error, value) => {
      if (!error) return done(null, value)
      done(new CorralError('invalid_json', `The request body is not valid JSON: ${describe(text)}`), undefined)
    })
  })
}

/** More would hold up all other clients for many seconds, and take gigabytes, while they are read. */
const MOST_VALUES = 2_000_000

const QUOTE = 34
const COMMA = 44
const BACKSLASH = 92

/** Whether a JSON text has more values than this: about one for each comma outside of strings, which are leapt over. */
export function hasMoreValues(text: string, most: number): boolean {
  let values = 0
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at)
    if (code === COMMA && ++values > most) return true
    if (code === QUOTE) at = endOfString(text, at)
  }
  return false
}

/** The index of the quotation mark that ends the string that begins at `start`. */
function endOfString(text: string, start: number): number {
  for (let end = text.indexOf('"', start + 1); end !== -1; end = text.indexOf('"', end + 1)) {
    let before = end - 1
    while (text.charCodeAt(before) === BACKSLASH) before--
    if ((end - before) % 2 === 1) return end
  }
  return text.length
}

/** Where the mistake is, without quoting the body: it may hold a prompt. */
function describe(text: string): string {
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
