import type { FastifyContextConfig, FastifySchema } from 'fastify'
import { type TSchema, Type } from 'typebox'
import { ERROR_STATUS, type ErrorCode } from '../errors.ts'
import type { Role } from './roles.ts'

/** How a surface words its errors, for the API document. */
export type ErrorShape = (codes: readonly ErrorCode[]) => TSchema

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The replies of the route, errors among them, as `schema.response` has them: only the API document needs them. */
    replies?: () => Record<string, ResponseSchema | TSchema>
  }
}

/** A reply as Fastify's `schema.response` and the API document take it. */
export interface ResponseSchema {
  description: string
  content: Record<string, { schema: TSchema }>
}

/** What every route may answer, whoever calls it. */
const ALWAYS: ErrorCode[] = [
  'unauthorized',
  'forbidden_role',
  'rate_limited',
  'origin_not_allowed',
  'host_not_allowed',
  'internal',
  'shutting_down'
]
/** What only routes that look at keys answer. */
const OF_KEYS: ErrorCode[] = ['unauthorized', 'forbidden_role', 'rate_limited']
/** What every route that takes a body may answer. */
export const WITH_BODY: ErrorCode[] = [
  'invalid_json',
  'missing_body',
  'invalid_request',
  'body_too_large',
  'too_busy',
  'unsupported_encoding'
]
/** What finding a model that must have files may end with. */
export const FILE_ERRORS: ErrorCode[] = ['invalid_model_name', 'model_not_found', 'unsupported_capability']
/** What a write may end with. */
export const DISK_ERRORS: ErrorCode[] = ['insufficient_storage', 'storage_not_writable']
/** What downloading may end with. */
export const DOWNLOAD_ERRORS: ErrorCode[] = ['hub_unreachable', 'checksum_mismatch', 'hub_rate_limited', ...DISK_ERRORS]
/** What finding and loading a model may end with. */
export const MODEL_ERRORS: ErrorCode[] = [
  'invalid_model_name',
  'model_not_found',
  'load_failed',
  'engine_crashed',
  'conversion_failed',
  'conversion_not_installed',
  'queue_full',
  'runtime_missing',
  'insufficient_memory',
  'model_stopped',
  'model_deleted',
  'load_timeout',
  ...DISK_ERRORS
]
/** What asking a model may end with. */
export const ANSWER_ERRORS: ErrorCode[] = [
  ...MODEL_ERRORS,
  'invalid_option',
  'context_exceeded',
  'unsupported_capability',
  'not_implemented',
  'over_limit',
  'input_blocked',
  'forbidden_model',
  'draining'
]

const NativeErrorSchema = Type.Object(
  {
    error: Type.String({ description: 'What happened, to what, and what to do next' }),
    errorCode: Type.Integer({ description: 'The status' }),
    code: Type.String({ description: 'Stable, for programs' }),
    requestId: Type.String({ description: 'As in the header x-request-id and in the log' })
  },
  { title: 'NativeError', additionalProperties: true }
)

/** The last event of work that failed after its stream had begun, see `workFailureEvent`. */
export const WorkFailureSchema = Type.Object(
  {
    status: Type.String({ pattern: '^error: ' }),
    error: Type.String({ description: 'What happened, to what, and what to do next' }),
    errorCode: Type.Integer({ description: 'The status that it would have had' }),
    code: Type.String({ description: 'Stable, for programs' })
  },
  { title: 'WorkFailure', additionalProperties: true }
)

/** The native API's errors. */
export const nativeErrors: ErrorShape = codes =>
  Type.Intersect([NativeErrorSchema, Type.Object({ code: Type.Enum([...codes]) })])

/**
 * The error replies of a route, by their statuses.
 * @param codes those of the route itself; what every route may answer is added
 */
export function errorResponses(
  shape: ErrorShape,
  codes: readonly ErrorCode[],
  options: { body: boolean; role?: RouteSchema['role'] } = { body: true }
): Record<number, ResponseSchema> {
  const byStatus = new Map<number, ErrorCode[]>()
  const always = options.role === 'anyone' ? ALWAYS.filter(code => !OF_KEYS.includes(code)) : ALWAYS
  for (const code of new Set([...codes, ...(options.body ? WITH_BODY : []), ...always])) {
    byStatus.set(ERROR_STATUS[code], [...(byStatus.get(ERROR_STATUS[code]) ?? []), code])
  }
  return Object.fromEntries(
    [...byStatus].map(([status, of]) => [status, json(`\`${of.join('`, `')}\``, shape(of))] as const)
  )
}

/** What a route takes and gives. */
export interface RouteSchema extends FastifySchema {
  /** Its replies but the errors, by their statuses. */
  response?: Record<number, ResponseSchema | TSchema>
  /** The errors of the route itself. */
  errors?: readonly ErrorCode[]
  /** The role that it needs; `user` where absent. */
  role?: Role | 'anyone'
  /** Whether it changes something or shows what was said; by default whatever is no `GET`. */
  audited?: boolean
  /** How large its body may be; see `usualBodySize`. */
  bodySize?: FastifyContextConfig['bodySize']
}

/** Routes that ask a model take prompts, images and sounds; others take names and settings. */
const usualBodySize = (errors: readonly ErrorCode[]) => (errors.includes('context_exceeded') ? 'large' : 'small')

/** Makes the options of a surface's routes, as Fastify checks requests by them and the API document shows them. */
export const routesWith =
  (shape: ErrorShape) =>
  <Route extends RouteSchema>(tag: string, operationId: string, summary: string, route: Route) => {
    const { errors = [], response, role = 'user', audited, bodySize = usualBodySize(errors), ...more } = route
    const refusals = () => errorResponses(shape, errors, { body: more.body !== undefined, role })
    return {
      config: {
        role,
        bodySize,
        ...(audited !== undefined && { audited }),
        replies: () => ({ ...response, ...refusals() })
      },
      schema: {
        summary,
        tags: [tag],
        operationId,
        ...(role === 'anyone' && { security: [] }),
        ...more
      }
    }
  }

/** The options of a route with the native API's errors. */
export const nativeRoute = routesWith(nativeErrors)

/** A reply of one JSON value. */
export function json(description: string, schema: TSchema): ResponseSchema {
  return { description, content: { 'application/json': { schema } } }
}

/**
 * A reply that is one JSON value, or a stream of events where the request asks for one. `item` is the shape of one
 * event's data, `end` what the last one has that is no JSON.
 */
export function jsonOrStream(
  description: string,
  whole: TSchema,
  stream: {
    event: string
    item?: TSchema
    end?: string
    types?: readonly ('text/event-stream' | 'application/x-ndjson')[]
  }
): ResponseSchema {
  const types = stream.types ?? ['text/event-stream']
  const { event, item, end } = stream
  // One event, as tools that read event streams take the schema of their type; one line of the other kind is a text.
  const value = Type.String({ ...(item && { contentMediaType: 'application/json', contentSchema: item }) })
  const data = end === undefined ? value : Type.Union([Type.Literal(end), value])
  const schemas = {
    'text/event-stream': Type.Object({ event: Type.Optional(Type.String()), data }, { description: event }),
    'application/x-ndjson': Type.String({ description: event, ...(item && { contentSchema: item }) })
  }
  return {
    description,
    content: {
      'application/json': { schema: whole },
      ...Object.fromEntries(types.map(type => [type, { schema: schemas[type] }]))
    }
  }
}
