import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import type { Test } from 'tap'
import type { Headers } from 'undici'
import type { Corral } from '../support/corral.ts'

/** An operation of an OpenAPI document. */
export interface Operation {
  method: string
  path: string
  operationId: string
  tags: string[]
  summary: string
  parameters?: { name: string; in: string; required?: boolean; schema: any }[]
  requestBody?: { required?: boolean; content: Record<string, { schema: any }> }
  responses: Record<string, any>
  'x-corral-role': string
}

const METHODS = ['get', 'head', 'post', 'put', 'patch', 'delete', 'options', 'trace']

export function listOperations(document: any): Operation[] {
  return Object.entries<any>(document.paths).flatMap(([path, item]) =>
    Object.entries<any>(item)
      .filter(([method]) => METHODS.includes(method))
      .map(([method, operation]) => ({ method: method.toUpperCase(), path, ...operation }))
  )
}

export function ajvFor(): Ajv2020 {
  const ajv = new Ajv2020({ strict: false, allErrors: false })
  ajv.addFormat('date-time', /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)$/)
  for (const format of ['uri', 'uri-reference', 'regex', 'email', 'media-range', 'corral-duration'])
    ajv.addFormat(format, true)
  return ajv
}

function pointer(...parts: string[]): string {
  return parts.map(part => `/${encodeURIComponent(part.replaceAll('~', '~0').replaceAll('/', '~1'))}`).join('')
}

/** Checks replies against a document. */
export class ReplyChecker {
  readonly operations: Operation[]
  readonly #ajv = ajvFor()
  readonly #document: any
  readonly #compiled = new Map<string, ValidateFunction>()

  constructor(document: any) {
    this.#document = document
    this.operations = listOperations(document)
    this.#ajv.addSchema(document, 'openapi')
  }

  operation(id: string): Operation {
    const found = this.operations.find(({ operationId }) => operationId === id)
    if (!found) throw new Error(`The document has no operation ${id}`)
    return found
  }

  /** Returns what is wrong with a value according to the schema at a path of the document. */
  #mistakes(at: string, value: unknown): string[] {
    let check = this.#compiled.get(at)
    if (!check) {
      check = this.#ajv.compile({ $ref: `openapi#${at}` })
      this.#compiled.set(at, check)
    }
    return check(value) ? [] : [`${this.#ajv.errorsText(check.errors)} in ${JSON.stringify(value).slice(0, 2000)}`]
  }

  /** Returns what is wrong with a reply according to the document. The list is empty if the reply is valid. */
  check(id: string, reply: { status: number; type: string; text: string }): string[] {
    const { path, method, responses } = this.operation(id)
    let at = pointer('paths', path, method.toLowerCase(), 'responses', String(reply.status))
    let declared = responses[reply.status]
    if (!declared) return [`the status ${reply.status} is not declared: ${reply.text.slice(0, 500)}`]
    if (declared.$ref) {
      const name = declared.$ref.split('/').at(-1)
      at = pointer('components', 'responses', name)
      declared = this.#document.components.responses[name]
    }
    if (method === 'HEAD') return reply.text === '' ? [] : ['a reply to HEAD has a body']
    const type = reply.type.split(';')[0]!.trim()
    if (Object.keys(declared.content ?? {}).length === 0) {
      return reply.text === '' ? [] : [`no content is declared, and there is ${type}`]
    }
    if (!declared.content[type]) return [`${reply.status} is ${type}, which is not declared`]
    at += pointer('content', type, 'schema')
    if (type === 'application/json') return this.#mistakes(at, JSON.parse(reply.text))
    const { properties, contentSchema } = declared.content[type].schema
    // Data that is not JSON comes first.
    const ends = properties?.data.anyOf !== undefined
    const data = ends ? properties.data.anyOf[1] : properties?.data
    if (!(contentSchema ?? data?.contentSchema)) return []
    at += contentSchema ? '/contentSchema' : `/properties/data${ends ? '/anyOf/1' : ''}/contentSchema`
    return parseEvents(type, reply.text).flatMap(event => this.#mistakes(at, event))
  }
}

/** Returns the data of a stream's events. */
export function parseEvents(type: string, text: string): unknown[] {
  if (type === 'application/x-ndjson')
    return text
      .trim()
      .split('\n')
      .map(line => JSON.parse(line))
  return text
    .split('\n\n')
    .flatMap(event => event.split('\n').filter(line => line.startsWith('data: ')))
    .map(line => line.slice('data: '.length))
    .filter(data => data !== '[DONE]')
    .map(data => JSON.parse(data))
}

/** Calls operations of a live server by their ids, and records which of them have answered. */
export class Caller {
  readonly checker: ReplyChecker
  /** Statuses that each operation has answered, by operation id. */
  readonly seen = new Map<string, Set<number>>()
  readonly #corral: Corral

  constructor(corral: Corral, document: unknown) {
    this.#corral = corral
    this.checker = new ReplyChecker(document)
  }

  /** Calls an operation, and checks its status and reply. */
  async call(t: Test, id: string, status: number, call: Call = {}): Promise<any> {
    const reply = await this.ask(id, call)
    const shown = `${id} ${JSON.stringify(call).slice(0, 150)}`
    t.equal(reply.status, status, `${shown}: ${reply.text.slice(0, 500)}`)
    t.same(this.checker.check(id, reply), [], shown)
    return reply.type.startsWith('application/json') && reply.text ? JSON.parse(reply.text) : reply
  }

  /** Calls an operation. */
  async ask(id: string, call: Call): Promise<Reply> {
    const { params = {}, query = '', body, headers = {} } = call
    const { method, path, 'x-corral-role': role } = this.checker.operation(id)
    const local = call.local ?? role === 'admin'
    const address = path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(params[name] ?? 'none'))
    const response = await this.#corral.send(address + query, body, { method, headers, local })
    const reply = {
      status: response.status,
      type: response.headers.get('content-type') ?? '',
      text: await response.text(),
      headers: response.headers
    }
    this.seen.set(id, (this.seen.get(id) ?? new Set()).add(reply.status))
    return reply
  }
}

export interface Call {
  params?: Record<string, string>
  /** With its question mark. */
  query?: string
  /** Text is sent as it is. */
  body?: unknown
  headers?: Record<string, string>
  /** Whether to use the private socket. By default, operations for admins use it. */
  local?: boolean
}

export interface Reply {
  status: number
  type: string
  text: string
  headers: Headers
}
