import { Type } from 'typebox'
import type { CorralError, ErrorCode } from '../errors.ts'
import { contextMessage } from './context-message.ts'
import { Loose, Titled } from './request-fields.ts'
import { errorsWithin, routerWith } from './response-schemas.ts'

const TYPES: Record<number, string> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  429: 'rate_limit_error'
}

function typeOf({ code, status }: CorralError): string {
  if (code === 'queue_full' || code === 'too_busy' || code === 'hub_rate_limited') return 'rate_limit_error'
  return TYPES[status] ?? (status >= 500 ? 'server_error' : 'invalid_request_error')
}

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
