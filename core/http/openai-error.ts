import { Type } from 'typebox'
import type { CorralError, ErrorCode } from '../errors.ts'
import { contextMessage } from './context-message.ts'
import { Loose, Titled } from './request-fields.ts'
import { errorsWithin, routerWith } from './response-schemas.ts'

/** Types of errors, by status or code, in all APIs that are made like OpenAI's. */
const COMMON_TYPES = { 401: 'authentication_error', 403: 'permission_error', 404: 'not_found_error' }

/** Returns a function for the type of an error. @param own the API's own types, by status or code */
export const errorTypes =
  (own: Record<string, string>, ofServer = 'server_error') =>
  ({ code, status }: CorralError): string => {
    const types: Record<string, string> = { ...COMMON_TYPES, ...own }
    return types[code] ?? types[status] ?? (status >= 500 ? ofServer : 'invalid_request_error')
  }

const LATER = 'rate_limit_error'
const typeOf = errorTypes({ 429: LATER, queue_full: LATER, too_busy: LATER, hub_rate_limited: LATER })

/** OpenAI's own code for a full context, by which programs notice that they must shorten the conversation. */
export const OPENAI_CONTEXT_CODE = 'context_length_exceeded'
const renamed = (code: ErrorCode) => (code === 'context_exceeded' ? OPENAI_CONTEXT_CODE : code)

export function openaiErrorBody(error: CorralError): { error: Record<string, unknown> } {
  const { param = null, code } = error
  const own = code === 'context_exceeded' && { corral_code: code }
  const message = contextMessage(
    error,
    (tokens, most) => `This model's maximum context length is ${most} tokens, but the request has ${tokens} tokens.`,
    "This model's maximum context length is exceeded"
  )
  return { error: { ...error.details, message, type: typeOf(error), param, code: renamed(code), ...own } }
}

/** The same as the last event of a stream, which then ends without `[DONE]`. */
export function openaiErrorEvent(error: CorralError): string {
  return `data: ${JSON.stringify(openaiErrorBody(error))}\n\n`
}

const OpenaiError = Titled('OpenAIError', {
  error: Loose({
    message: Type.String({ description: 'What happened, to what, and what to do next' }),
    type: Type.String(),
    param: Type.Union([Type.String(), Type.Null()], { description: 'The invalid field' }),
    code: Type.String({ description: 'Stable, for programs' })
  })
})

export const openaiErrors = errorsWithin(OpenaiError, 'code', renamed)

export const openaiRouter = routerWith(openaiErrors)
