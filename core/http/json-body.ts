import { setImmediate as nextTurn } from 'node:timers/promises'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { ContentTypeParserDoneFunction } from 'fastify/types/content-type-parser.js'
import { CorralError } from '../errors.ts'
import { type JsonExcess, JsonScan, MAX_JSON_MEMBERS, MAX_JSON_VALUES } from '../system/json-scan.ts'
import { freeBody, readWholeBody } from './whole-body.ts'

/**
 * Parses every body as JSON whatever its content type, so that `curl -d '{…}'` works. Keys such as `__proto__` are
 * dropped. Bodies that would block the thread for long are refused before they are parsed. Access control must not rely
 * on content types: see the security plugin's check of `Origin`.
 * @param mostLevels returns the maximum nesting of lists and objects (`limits.body_depth`)
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

/** Bytes that V8 uses for an object, a list or a key, and for any other list item. */
const MEMBER_BYTES = 64
const VALUE_BYTES = 8

/** Estimates the memory of a JSON text once it is parsed, in bytes, from its characters and its structure. */
function parsedBytes(text: string, bytes: number, { members, values }: JsonScan): number {
  // A character beyond ASCII has several bytes, and may make V8 use two bytes for every character.
  const ofCharacters = text.length < bytes ? 2 * text.length : text.length
  return ofCharacters + members * MEMBER_BYTES + values * VALUE_BYTES
}

/** Characters scanned before other clients get their turn: some milliseconds. */
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
    const message = `The request body has lists and objects more than ${depth} levels deep. That is more than "limits.body_depth" allows. Nest them less deeply, or have the admin raise the limit.`
    return new CorralError('over_limit', message, { details: { limit: 'limits.body_depth', value: depth } })
  }
  const what = excess === 'values' ? `${MAX_JSON_VALUES} values` : `${MAX_JSON_MEMBERS} lists, objects and keys`
  return new CorralError('body_too_large', `The request body has more than ${what}.`)
}

/** Errors in longer bodies are not located, because that means parsing and splitting the body again. */
const MAX_DESCRIBED = 2 ** 20

/** Locates the mistake without quoting the body, which may contain a prompt. */
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

/** No request has this many fields. Engines may take minutes for a hundred thousand. */
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
