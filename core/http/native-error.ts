import type { FastifyBaseLogger, FastifyError, FastifyRequest } from 'fastify'
import type { FastifySchemaValidationError } from 'fastify/types/schema.js'
import type { TSchema } from 'typebox'
import { CorralError, type ErrorCode, errorMessage, invalidRequest, isSystemError } from '../errors.ts'
import { diskRefusal } from '../system/disk-space.ts'
import { faultPlace, faultSentence, findFault, type SchemaFault } from '../system/schema-check.ts'

/** Fastify's own failures before a handler runs, by its code. */
const FRAMEWORK_CODES: Record<string, ErrorCode> = {
  FST_ERR_CTP_BODY_TOO_LARGE: 'body_too_large',
  FST_ERR_CTP_EMPTY_JSON_BODY: 'missing_body',
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: 'invalid_request',
  FST_ERR_CTP_INVALID_MEDIA_TYPE: 'invalid_request',
  FST_ERR_BAD_URL: 'invalid_request',
  FST_ERR_MAX_PARAM_LENGTH: 'invalid_request',
  FST_ERR_ASYNC_CONSTRAINT: 'invalid_request'
}

/** The first error of Fastify's validation, explained by its schema. */
function fromValidation(error: FastifyError): CorralError {
  // For alternatives, Ajv first lists the errors of each alternative, then the error that none matches.
  const found = error.validation!.at(-1)! as FastifySchemaValidationError & { parentSchema?: TSchema; data?: unknown }
  const keys = found.instancePath.split('/').slice(1)
  const path = keys.map(key => (/^\d+$/.test(key) ? Number(key) : key.replaceAll('~1', '/').replaceAll('~0', '~')))
  const inner = explain(found.parentSchema, found.data)
  const fault: SchemaFault = { kind: 'wrong', schema: {}, ...inner, path: [...path, ...(inner?.path ?? [])] }
  const sentence = inner
    ? faultSentence(fault, 'The request')
    : `${path.length === 0 ? 'The request' : `"${faultPlace(fault)}"`} ${found.message}.`
  const param = fault.path.join('.')
  if (param !== 'model' && param !== 'name') return invalidRequest(param, sentence)
  const message = `The model name is not valid: ${sentence} Names have the form <owner>/<name>.`
  return new CorralError('invalid_model_name', message, { param })
}

/** Undefined if only the plugin with this kind of schema can explain it, such as a schema with references. */
function explain(schema: TSchema | undefined, value: unknown): SchemaFault | undefined {
  try {
    return schema && findFault(schema, value)
  } catch {
    return undefined
  }
}

/** Converts anything thrown by a route to a CorralError. Unexpected errors become `internal` without details. */
export function toCorralError(error: unknown): CorralError {
  if (error instanceof CorralError) return error
  const failure = error as FastifyError
  if (failure?.validation) return fromValidation(failure)
  const code = FRAMEWORK_CODES[failure?.code]
  if (code === 'missing_body') return new CorralError(code, 'The request has no body. Send a JSON object.')
  if (code === 'body_too_large') {
    return new CorralError(code, 'The request body is larger than this route allows. Send a smaller one.')
  }
  if (/^(Z_|ZSTD_|ERR__ERROR_FORMAT)/.test(failure?.code ?? '')) {
    return new CorralError('invalid_request', 'The request body does not match its Content-Encoding, or ends early.')
  }
  // Other errors of Fastify have the cause in their message.
  if (code || (failure?.code?.startsWith('FST_') && failure.statusCode === 400)) {
    return new CorralError(code ?? 'invalid_request', `The request is not valid: ${errorMessage(error)}.`)
  }
  if (error instanceof RangeError && /call stack/i.test(error.message)) {
    return new CorralError('invalid_request', 'The request is nested too deeply.')
  }
  // The codes can also mean that a file must not be read.
  const refusal = isSystemError(error, 'EACCES', 'EPERM') ? undefined : diskRefusal(error, 'The request failed')
  if (refusal) return refusal
  const message = "Something went wrong inside corral. The server's log has the details under this request id."
  return new CorralError('internal', message, { cause: error })
}

/** Logs failures of the server, but not mistakes of clients. */
export function logFailure(failure: CorralError, log: FastifyBaseLogger): void {
  if (failure.code === 'internal') log.error({ err: failure.cause ?? failure }, failure.message)
  else if (failure.status >= 500) log.warn({ code: failure.code }, failure.message)
}

export function nativeErrorBody(error: CorralError, request: FastifyRequest): Record<string, unknown> {
  return { ...error.details, error: error.message, errorCode: error.status, code: error.code, requestId: request.id }
}

/** The last event of work that failed after its stream had begun: a pull, a load, the installation of a build. */
export function workFailureEvent(error: CorralError): Record<string, unknown> {
  return {
    ...error.details,
    status: `error: ${error.message}`,
    error: error.message,
    errorCode: error.status,
    code: error.code
  }
}

/** Headers of an error reply, in all APIs. */
export function errorHeaders(error: CorralError): Record<string, string> {
  const headers: Record<string, string> = {}
  if (error.retryAfter !== undefined) headers['retry-after'] = String(Math.max(1, Math.ceil(error.retryAfter)))
  // OpenAI's SDKs retry every 5xx and 409 without this header.
  if ((error.status >= 500 || error.status === 409) && !error.retryable) headers['x-should-retry'] = 'false'
  if (error.status === 405 && Array.isArray(error.details?.allow)) headers.allow = error.details.allow.join(', ')
  // Node.js parses nothing that arrives together with an upgrade.
  if (error.status === 426) Object.assign(headers, { upgrade: 'HTTP/1.1', connection: 'upgrade, close' })
  return headers
}
