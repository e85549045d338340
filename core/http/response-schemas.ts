import type { FastifyInstance, FastifyReply, FastifyRequest, FastifySchema, RouteOptions } from 'fastify'
import { type Static, type TSchema, Type } from 'typebox'
import { ERROR_STATUS, type ErrorCode, errorCodes } from '../errors.ts'
import { bodyObject } from './json-body.ts'
import { Integer, Text, Titled } from './request-fields.ts'
import type { Role } from './roles.ts'

/** The format of an API's errors, for the API document. */
export type ErrorShape = (codes: readonly ErrorCode[]) => TSchema

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Like `schema.response`, with errors. A function, because only the API document needs them. */
    replies?: () => Record<string, ResponseSchema | TSchema>
  }
}

/** A reply as Fastify's `schema.response` and the API document take it. */
export interface ResponseSchema {
  description: string
  content: Record<string, { schema: TSchema }>
}

/** Error codes of every route, for all callers. */
const ALWAYS = errorCodes(
  'unauthorized forbidden_role rate_limited origin_not_allowed host_not_allowed internal',
  'shutting_down'
)
const OF_KEYS = errorCodes('unauthorized forbidden_role rate_limited')
export const WITH_BODY = errorCodes(
  'invalid_json missing_body invalid_request body_too_large too_busy unsupported_encoding'
)
export const FILE_ERRORS = errorCodes('invalid_model_name model_not_found unsupported_capability')
export const DISK_ERRORS = errorCodes('insufficient_storage storage_not_writable')
export const DOWNLOAD_ERRORS = [...errorCodes('hub_unreachable checksum_mismatch hub_rate_limited'), ...DISK_ERRORS]
export const HUB_ERRORS = errorCodes('address_not_allowed hub_forbidden repo_not_found model_exists')
export const MODEL_ERRORS = [
  ...errorCodes(
    'invalid_model_name model_not_found load_failed engine_crashed engine_unreachable conversion_failed',
    'conversion_not_installed queue_full runtime_missing insufficient_memory model_stopped',
    'model_deleted load_timeout'
  ),
  ...DISK_ERRORS
]
/** Error codes of requests to a model. */
export const ANSWER_ERRORS = [
  ...MODEL_ERRORS,
  ...errorCodes(
    'invalid_option context_exceeded unsupported_capability not_implemented over_limit input_blocked',
    'forbidden_model draining'
  )
]

const NativeErrorSchema = Titled('NativeError', {
  error: Text('What happened, to what, and what to do next'),
  errorCode: Integer('The HTTP status'),
  code: Text('Stable, for programs'),
  requestId: Text('As in the header x-request-id and in the log')
})

/** The last event of work that failed after its stream had begun, see `workFailureEvent`. */
export const WorkFailureSchema = Titled('WorkFailure', {
  status: Type.String({ pattern: '^error: ' }),
  error: Text('What happened, to what, and what to do next'),
  errorCode: Integer('The HTTP status that it would have had'),
  code: Text('Stable, for programs')
})

/**
 * Returns the errors of an API whose bodies have an object `error`.
 * @param code the field of this object with the error code
 * @param rename returns the API's own name of a code
 */
export const errorsWithin =
  (schema: TSchema, code = 'code', rename: (code: ErrorCode) => string = code => code): ErrorShape =>
  codes =>
    Type.Intersect([schema, Type.Object({ error: Type.Object({ [code]: Type.Enum(codes.map(rename)) }) })])

export const nativeErrors: ErrorShape = codes =>
  Type.Intersect([NativeErrorSchema, Type.Object({ code: Type.Enum([...codes]) })])

/** The error replies of a route by status. @param codes the route's own codes; those of every route are added */
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

export interface RouteSchema extends FastifySchema {
  /** The reply with status 200, or all replies by status. */
  response?: ResponseSchema | Record<number, ResponseSchema | TSchema>
  errors?: readonly ErrorCode[]
  /** The role that it needs; `user` if absent. */
  role?: Role | 'anyone'
  /** Whether to log it in the audit log, as a change or a look at prompts or answers. Default: not for `GET`. */
  audited?: boolean
  /** Maximum size class of its body; see `usualBodySize`. */
  bodySize?: 'small' | 'large' | 'streamed'
}

const isReply = (response: RouteSchema['response']): response is ResponseSchema =>
  response !== undefined && 'content' in response

/** Routes that use a model take prompts, images and sounds. Other routes take names and settings. */
const usualBodySize = (errors: readonly ErrorCode[]) => (errors.includes('context_exceeded') ? 'large' : 'small')

/** Refuses a body that is missing or not an object, before its schema is checked. Both have their own error codes. */
async function requireObject(request: FastifyRequest): Promise<void> {
  const { schema } = request.routeOptions
  const isOptional = !schema?.body || schema.bodyOptional === true
  request.body = bodyObject(isOptional ? (request.body ?? {}) : request.body)
}

/** Creates the options of an API's routes: Fastify validates requests by them, the API document shows them. */
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
        replies: () => ({ ...(isReply(response) ? { 200: response } : response), ...refusals() })
      },
      ...((more.body || errors.includes('invalid_json')) &&
        bodySize !== 'streamed' && { preValidation: requireObject }),
      schema: {
        summary,
        tags: [tag],
        operationId,
        ...(role === 'anyone' && { security: [] }),
        ...more
      }
    }
  }

export const nativeRoute = routesWith(nativeErrors)

/** A route's schema and its handler, whose request has the types of the schema. */
export interface HandledRoute<
  Body extends TSchema,
  Querystring extends TSchema,
  Params extends TSchema,
  Headers extends TSchema
> extends RouteSchema {
  body?: Body
  querystring?: Querystring
  params?: Params
  headers?: Headers
  /** Whether `HEAD` requests are answered like `GET`, as by default. */
  exposeHeadRoute?: boolean
  handler(
    request: FastifyRequest<{
      Body: Static<Body>
      Querystring: Static<Querystring>
      Params: Static<Params>
      Headers: Static<Headers>
    }>,
    reply: FastifyReply
  ): unknown
}

/** Creates an API's router: it adds routes (`GET,HEAD /path`) in one group of the API document. */
export const routerWith =
  (shape: ErrorShape) =>
  (app: FastifyInstance, tag: string) =>
  <Body extends TSchema, Querystring extends TSchema, Params extends TSchema, Headers extends TSchema>(
    request: string,
    operationId: string,
    summary: string,
    { handler, exposeHeadRoute, ...route }: HandledRoute<Body, Querystring, Params, Headers>
  ): void => {
    const [methods, url = ''] = request.split(' ') as [string, string?]
    const method = methods.includes(',') ? methods.split(',') : methods
    const options = routesWith(shape)(tag, operationId, summary, route)
    app.route({
      method,
      url,
      ...(exposeHeadRoute === false && { exposeHeadRoute }),
      ...options,
      handler
    } as RouteOptions)
  }

export const nativeRouter = routerWith(nativeErrors)

export function json(description: string, schema: TSchema): ResponseSchema {
  return { description, content: { 'application/json': { schema } } }
}

/**
 * A reply that is one JSON value, or a stream of events if the request asks for one. `item` is the schema of one
 * event's data, `end` the text of the last event if it is not JSON.
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
  // One event, for tools that take the schema of event streams from their media type. A line of NDJSON is a text.
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
