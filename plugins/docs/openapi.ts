import type { TSchema } from 'typebox'
import { type Components, createComponents, type JsonObject } from './components.ts'
import type { DescribedRoute } from './described-routes.ts'

export interface DocumentInfo {
  title: string
  version: string
  summary: string
  description: string
  license: { name: string; identifier: string }
}

type Mapping = Record<string, unknown>

/** The order of a path's operations. */
const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE']

const SECURITY_SCHEMES = {
  bearer: { type: 'http', scheme: 'bearer', description: 'One of security.api_keys, where there are any' },
  key: { type: 'apiKey', in: 'header', name: 'x-api-key', description: 'The same key, as other clients send it' }
}

/**
 * An OpenAPI 3.1 document of routes, made of their schemas (which are JSON Schema 2020-12, as OpenAPI's are). Paths are
 * in alphabetical order, tags in that of their first route.
 */
export function openApiDocument(routes: readonly DescribedRoute[], info: DocumentInfo): Mapping {
  const components = createComponents()
  const rank = ({ method }: DescribedRoute) => METHODS.indexOf(method)
  const sorted = [...routes].sort((a, b) => (a.url === b.url ? rank(a) - rank(b) : a.url < b.url ? -1 : 1))
  const paths: Record<string, Mapping> = {}
  for (const route of sorted) {
    const path = readablePath(route)
    paths[path] = { ...paths[path], [route.method.toLowerCase()]: operation(route, components) }
  }
  const tags = [...new Set(routes.flatMap(({ schema }) => schema.tags ?? []))]
  return {
    openapi: '3.1.0',
    info,
    servers: [{ url: '/' }],
    // Without a key, unless the server has some.
    security: [{}, { bearer: [] }, { key: [] }],
    tags: tags.map(name => ({ name })),
    paths,
    components: {
      schemas: components.schemas(),
      responses: components.responses(),
      securitySchemes: SECURITY_SCHEMES
    }
  }
}

function propertiesOf(schema: unknown): Record<string, TSchema & Mapping> {
  return (schema as { properties?: Record<string, TSchema & Mapping> } | undefined)?.properties ?? {}
}

/** What the rest of a path is called, which Fastify knows as `*`: the `title` of that parameter. */
function restName({ schema }: DescribedRoute): string {
  return String(propertiesOf(schema.params)['*']?.title ?? 'path')
}

/** `/api/logs/*` as `/api/logs/{model}`. */
function readablePath(route: DescribedRoute): string {
  return route.url.replace(/:(\w+)/g, '{$1}').replace('*', `{${restName(route)}}`)
}

function operation(route: DescribedRoute, components: Components): Mapping {
  const { tags, summary, description, operationId, security, response } = route.schema
  const parameters = parametersOf(route, components)
  return {
    ...(tags && { tags }),
    ...(summary && { summary }),
    ...(description && { description }),
    ...(operationId && { operationId }),
    ...(security && { security }),
    ...(parameters.length > 0 && { parameters }),
    ...requestBody(route, components),
    responses: responses(response, components)
  }
}

function parametersOf(route: DescribedRoute, components: Components): Mapping[] {
  const parameter = (place: string, name: string, schema: unknown, required: boolean) => {
    const { description, ...rest } = components.plain(schema) as Mapping
    return { name, in: place, ...(description ? { description } : {}), ...(required && { required }), schema: rest }
  }
  const named = (place: string, schema: unknown) => {
    const required = (schema as { required?: string[] } | undefined)?.required ?? []
    return Object.entries(propertiesOf(schema)).map(([name, inner]) =>
      parameter(place, name, inner, required.includes(name))
    )
  }
  const inPath = propertiesOf(route.schema.params)
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
  const content = body?.content ?? Object.fromEntries(types.map(type => [type, body ? { schema: body } : {}]))
  return { requestBody: { ...(!schema.bodyOptional && { required: true }), content: components.plain(content) } }
}

function responses(declared: unknown, components: Components): Mapping {
  const entries = Object.entries((declared ?? {}) as Record<string, Mapping>)
  if (entries.length === 0) return { default: { description: 'Not described' } }
  return Object.fromEntries(entries.map(([status, reply]) => [status, response(status, reply, components)]))
}

/** A reply as routes describe it, which may be that of the document already, or a schema of JSON alone. */
function response(status: string, reply: Mapping, components: Components): unknown {
  const { description = '', headers, content } = reply
  const whole = content ?? headers ?? (Object.keys(reply).every(key => key === 'description') || reply.type === 'null')
  if (!whole) return { description, content: { 'application/json': { schema: components.plain(reply) } } }
  const plain = { description: String(description), ...(components.plain({ headers, content }) as Mapping) }
  return Number(status) < 400 ? plain : components.error(status, plain as JsonObject)
}
