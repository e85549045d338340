import type { FastifySchema } from 'fastify'
import type { TSchema } from 'typebox'
import type { Role } from '../../../core/http/roles.ts'
import { version } from '../../../core/system/package-info.ts'
import document from './document.json' with { type: 'json' }
import { exampleBody, exampleParameter, ofOperation } from './examples.ts'
import texts from './texts.json' with { type: 'json' }

/** Constant parts of the document. Groups that are not listed follow in the order of their routes. */
const { info, groups, securitySchemes } = document

export interface DescribedRoute {
  method: string
  /** With Fastify's parameters, such as `/api/pulls/:id` or `/api/logs/*`. */
  url: string
  schema: FastifySchema
  role: Role | 'anyone'
}

type Mapping = Record<string, unknown>

/** The order of a path's operations. */
const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE']

/** Builds an OpenAPI 3.1 document from the routes' schemas. Paths are in alphabetical order. */
export function openApiDocument(routes: readonly DescribedRoute[]): Mapping {
  const components = new Components()
  const rank = ({ method }: DescribedRoute) => METHODS.indexOf(method)
  const sorted = [...routes].sort((a, b) => (a.url === b.url ? rank(a) - rank(b) : a.url < b.url ? -1 : 1))
  const paths: Record<string, Mapping> = {}
  for (const route of sorted) {
    const path = readablePath(route)
    const { operationId } = route.schema
    const described = operation(route, components)
    if (operationId) addTexts(described, ofOperation(operationId, TEXTS))
    paths[path] = { ...paths[path], [route.method.toLowerCase()]: described }
  }
  const used = new Set(routes.flatMap(({ schema }) => schema.tags ?? []))
  const tags = [...groups.filter(group => used.has(group)), ...[...used].filter(tag => !groups.includes(tag))]
  return {
    openapi: '3.1.0',
    info: { title: 'corral', version, ...info },
    servers: [{ url: '/' }],
    // No key, or one of the two ways to send it.
    security: [{}, { bearer: [] }, { key: [] }],
    tags: tags.map(name => ({ name })),
    paths,
    components: { schemas: components.schemas(), responses: components.responses(), securitySchemes }
  }
}

/**
 * Descriptions that are not in the schemas themselves, by operation id or name of a schema. In the paths of inner texts,
 * such as `choices.items.index`, the names of properties follow each other without `properties`.
 */
const TEXTS: Record<string, string | Record<string, string>> = texts

function addTexts(schema: Mapping, added: string | Record<string, string> = {}): void {
  for (const [path, text] of Object.entries(typeof added === 'string' ? { '': added } : added)) {
    let node: Mapping | undefined = schema
    for (const step of path.split('.').filter(Boolean)) {
      node = ((node?.properties as Mapping | undefined)?.[step] ?? node?.[step]) as Mapping | undefined
    }
    if (node) node.description ??= text
  }
}

function getProperties(schema: unknown): Record<string, TSchema & Mapping> {
  return (schema as { properties?: Record<string, TSchema & Mapping> } | undefined)?.properties ?? {}
}

/** Returns the name of the wildcard parameter `*`, which is in its `title`. */
function restName({ schema }: DescribedRoute): string {
  return String(getProperties(schema.params)['*']?.title ?? 'path')
}

/** Turns `/api/logs/*` into `/api/logs/{model}`. */
function readablePath(route: DescribedRoute): string {
  return route.url.replace(/:(\w+)/g, '{$1}').replace('*', `{${restName(route)}}`)
}

function operation(route: DescribedRoute, components: Components): Mapping {
  const { tags, summary, description, operationId, security, response } = route.schema
  const parameters = toParameters(route, components)
  return {
    ...(tags && { tags }),
    ...(summary && { summary }),
    ...(description && { description }),
    ...(operationId && { operationId }),
    ...(security && { security }),
    'x-corral-role': route.role,
    ...(parameters.length > 0 && { parameters }),
    ...requestBody(route, components),
    responses: responses(response, components)
  }
}

function toParameters(route: DescribedRoute, components: Components): Mapping[] {
  const parameter = (place: string, name: string, schema: unknown, required: boolean) => {
    const { description, ...rest } = components.plain(schema) as Mapping
    const example = exampleParameter(name, place)
    return {
      name,
      in: place,
      ...(description ? { description } : {}),
      ...(required && { required }),
      schema: rest,
      ...(example !== undefined && { example })
    }
  }
  const named = (place: string, schema: unknown) => {
    const required = (schema as { required?: string[] } | undefined)?.required ?? []
    return Object.entries(getProperties(schema)).map(([name, inner]) =>
      parameter(place, name, inner, required.includes(name))
    )
  }
  const inPath = getProperties(route.schema.params)
  const path = [...route.url.matchAll(/:(\w+)|\*/g)].map(([text, name]) => {
    const { title, ...schema } = inPath[name ?? '*'] ?? { type: 'string' }
    return parameter('path', text === '*' ? restName(route) : name!, schema, true)
  })
  return [...path, ...named('query', route.schema.querystring), ...named('header', route.schema.headers)]
}

function requestBody({ schema }: DescribedRoute, components: Components): Mapping {
  const body = schema.body as Mapping | undefined
  if (!body && !schema.consumes) return {}
  const types = schema.consumes ?? ['application/json']
  const plain = body?.content ?? Object.fromEntries(types.map(type => [type, body ? { schema: body } : {}]))
  const content = { ...(plain as Record<string, Mapping>) }
  const example = schema.operationId === undefined ? undefined : exampleBody(schema.operationId)
  const json = content['application/json']
  if (json && example) content['application/json'] = { ...json, example }
  return { requestBody: { ...(!schema.bodyOptional && { required: true }), content: components.plain(content) } }
}

function responses(declared: unknown, components: Components): Mapping {
  const entries = Object.entries((declared ?? {}) as Record<string, Mapping>)
  if (entries.length === 0) return { default: { description: 'Not described' } }
  return Object.fromEntries(entries.map(([status, reply]) => [status, response(status, reply, components)]))
}

/** Converts a declared reply, which is either an OpenAPI response or just a JSON schema. */
function response(status: string, reply: Mapping, components: Components): unknown {
  const { description = '', headers, content } = reply
  const whole = content ?? headers ?? (Object.keys(reply).every(key => key === 'description') || reply.type === 'null')
  if (!whole) return { description, content: { 'application/json': { schema: components.plain(reply) } } }
  const plain = { description: String(description), ...(components.plain({ headers, content }) as Mapping) }
  return Number(status) < 400 ? plain : components.error(status, plain as JsonObject)
}

type Json = null | boolean | number | string | Json[] | JsonObject
type JsonObject = { [key: string]: Json }

const NAME = /^[A-Z][A-Za-z0-9]*$/
/** Keywords whose values are data, not schemas. */
const DATA = new Set(['const', 'enum', 'default', 'examples', 'example'])

/** Collects named schemas and errors, which the document contains once and refers to elsewhere. */
class Components {
  readonly #schemas = new Map<string, { text: string; schema: Json }>()
  readonly #errors = new Map<string, Json>()

  /**
   * Converts a schema to plain JSON. An inner schema whose `title` is a name (`LocalModel`) becomes a reference. The
   * keyword `documented` replaces the schema.
   */
  plain(value: unknown): Json {
    if (Array.isArray(value)) return value.map(item => this.plain(item))
    if (typeof value !== 'object' || value === null) return value as Json
    const { title, documented, ...rest } = value as Record<string, unknown>
    if (documented !== undefined) return this.plain(documented)
    const isNamed = typeof title === 'string' && NAME.test(title)
    const converted: JsonObject = {}
    for (const [key, inner] of Object.entries(isNamed ? rest : (value as object))) {
      if (inner === undefined || key === 'needsTrust') continue
      converted[key] = DATA.has(key) ? (inner as Json) : this.plain(inner)
    }
    const plain = nullable(converted)
    if (isNamed) addTexts(plain, TEXTS[title])
    return isNamed ? this.#reference(title, plain) : plain
  }

  /** Different schemas with the same title get a number. */
  #reference(title: string, schema: Json): Json {
    const text = JSON.stringify(schema)
    for (let number = 1; ; number++) {
      const name = number === 1 ? title : `${title}${number}`
      const known = this.#schemas.get(name)
      if (!known) this.#schemas.set(name, { text, schema })
      if (!known || known.text === text) return { $ref: `#/components/schemas/${name}` }
    }
  }

  /** Turns a converted error reply into a reference whose name consists of API, status and codes. */
  error(status: string, reply: JsonObject): Json {
    const api = /"#\/components\/schemas\/(\w+)"/.exec(JSON.stringify(reply))?.[1]
    const codes = [...String(reply.description).matchAll(/`(\w+)`/g)].map(([, code]) => code!)
    if (!api || codes.length === 0) return reply
    const name = [api, status, ...codes].join('.')
    const known = this.#errors.get(name)
    if (known && JSON.stringify(known) !== JSON.stringify(reply)) return reply
    this.#errors.set(name, reply)
    return { $ref: `#/components/responses/${name}` }
  }

  schemas(): Record<string, Json> {
    return byName([...this.#schemas].map(([name, { schema }]) => [name, schema]))
  }

  responses(): Record<string, Json> {
    return byName([...this.#errors])
  }
}

function byName(entries: [string, Json][]): Record<string, Json> {
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)))
}

/** Shortens `anyOf: [schema, null]` if possible. */
function nullable(schema: JsonObject): JsonObject {
  const { anyOf, ...rest } = schema
  if (!Array.isArray(anyOf) || anyOf.length !== 2 || JSON.stringify(anyOf[1]) !== '{"type":"null"}') return schema
  const inner = anyOf[0] as JsonObject
  if (Array.isArray(inner.anyOf)) return { ...inner, ...rest, anyOf: [...inner.anyOf, anyOf[1]!] }
  if (Array.isArray(inner.enum)) return { ...inner, ...rest, enum: [...inner.enum, null] }
  if (typeof inner.type === 'string' && !('const' in inner)) return { ...inner, ...rest, type: [inner.type, 'null'] }
  return schema
}
