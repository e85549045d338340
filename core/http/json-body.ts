import { setImmediate as nextTurn } from 'node:timers/promises'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { ContentTypeParserDoneFunction } from 'fastify/types/content-type-parser.js'
import { CorralError } from '../errors.ts'
import { type JsonExcess, JsonScan, MAX_JSON_MEMBERS, MAX_JSON_VALUES } from '../system/json-scan.ts'
import { freeBody, readWholeBody } from './whole-body.ts'

/**
 * Parses every body as JSON whatever its content type says, so that `curl -d '{…}'` works. Keys such as `__proto__` are
 * dropped. What would hold up the thread for long is refused before it is parsed. Access control must not rely on
 * content types: see the security plugin's check of `Origin`.
 * @param mostLevels gives how many levels of lists and objects there may be (`limits.body_depth`)
 */
export function acceptAnyBodyAsJson(app: FastifyInstance, mostLevels: () => number): void {
  const parse = app.getDefaultJsonParser('remove', 'remove')
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (request, payload, done) => {
    readWholeBody(payload, request.routeOptions.bodyLimit!, (error, bytes) => {
      if (!bytes) return done(error)
      const text = bytes.toString()
      freeBody(bytes)
      parseText(request, text, done)
    })
  })
  function parseText(request: FastifyRequest, text: string, done: ContentTypeParserDoneFunction): void {
    request.record.received = performance.now()
    const depth = mostLevels()
    const scan = new JsonScan(text, depth)
    const take = (excess: JsonExcess | undefined) => {
      if (excess) return done(refusal(excess, depth), undefined)
      if (!/\S/.test(text)) return done(null, undefined)
      try {
        app.bodyMemory.takeInAll(request, parsedBytes(text, request.record.body?.bytes ?? 0, scan))
      } catch (error) {
        return done(error as CorralError, undefined)
      }
      void parse(request, text, (error, value) => {
        if (!error) return done(null, value)
        done(new CorralError('invalid_json', `The request body is not valid JSON: ${describe(text)}`), undefined)
      })
    }
    if (text.length <= SLICE) take(scan.next(text.length))
    else void inSlices(scan, text.length).then(take, done)
  }
}

/** Bytes that V8 takes for an object, a list or a key, and for another value of a list. */
const MEMBER_BYTES = 64
const VALUE_BYTES = 8

/** Memory of a JSON text once it is parsed, in bytes: about that of its characters, and of what they are parts of. */
function parsedBytes(text: string, bytes: number, { members, values }: JsonScan): number {
  // A character beyond ASCII has more than one byte, and may make V8 take two for every character.
  const ofCharacters = text.length < bytes ? 2 * text.length : text.length
  return ofCharacters + members * MEMBER_BYTES + values * VALUE_BYTES
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

function refusal(excess: JsonExcess, depth: number): CorralError {
  if (excess === 'depth') {
    return new CorralError(
      'over_limit',
      `The request body has lists and objects more than ${depth} levels deep, which "limits.body_depth" does not allow. Send one that is nested less deeply, or have the admin raise the limit.`,
      { details: { limit: 'limits.body_depth', value: depth } }
    )
  }
  const what = excess === 'values' ? `${MAX_JSON_VALUES} values` : `${MAX_JSON_MEMBERS} lists, objects and keys`
  return new CorralError('body_too_large', `The request body holds more than ${what}.`)
}

/** In longer bodies the place of a mistake is not looked for: they would be parsed and cut to pieces once more. */
const MAX_DESCRIBED = 2 ** 20

/** Where the mistake is, without quoting the body: it may hold a prompt. */
function describe(text: string): string {
  if (text.length > MAX_DESCRIBED) return 'it has a mistake, or ends too early.'
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
const MAX_FIELDS = 1000

/** The body as an object. @throws CorralError `missing_body` or `invalid_request` */
export function bodyObject(body: unknown): Record<string, unknown> {
  if (body === undefined || body === null) {
    throw new CorralError('missing_body', 'The request has no body. Send a JSON object.')
  }
  if (typeof body !== 'object' || Array.isArray(body)) {
    throw new CorralError('invalid_request', 'The request body must be a JSON object.')
  }
  if (Object.keys(body).length > MAX_FIELDS) {
    throw new CorralError('invalid_request', `The request body has more than ${MAX_FIELDS} fields.`)
  }
  return body as Record<string, unknown>
}
