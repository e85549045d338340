import { Type } from 'typebox'
import type { CorralError } from '../../core/errors.ts'
import type { ErrorShape } from '../../core/http/response-schemas.ts'

const TYPES: Record<number, string> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error'
}

function typeOf(error: CorralError): string {
  if (error.code === 'queue_full' || error.code === 'hub_rate_limited') return 'rate_limit_error'
  return TYPES[error.status] ?? (error.status >= 500 ? 'server_error' : 'invalid_request_error')
}

/** An error in the shape that hosted-chat clients read. */
export function openaiErrorBody(error: CorralError): { error: Record<string, unknown> } {
  return {
    error: {
      ...error.details,
      message: error.message,
      type: typeOf(error),
      param: error.param ?? null,
      code: error.code
    }
  }
}

/** The same as the last event of a stream, which then ends without `[DONE]`. */
export function openaiErrorEvent(error: CorralError): string {
  return `data: ${JSON.stringify(openaiErrorBody(error))}\n\n`
}

const OpenaiErrorSchema = Type.Object(
  {
    error: Type.Object(
      {
        message: Type.String({ description: 'What happened, to what, and what to do next' }),
        type: Type.String(),
        param: Type.Union([Type.String(), Type.Null()], { description: 'The field at fault' }),
        code: Type.String({ description: 'Stable, for programs' })
      },
      { additionalProperties: true }
    )
  },
  { title: 'OpenAIError', additionalProperties: true }
)

/** What hosted-chat clients read of an error, for the API document. */
export const openaiErrors: ErrorShape = codes =>
  Type.Intersect([OpenaiErrorSchema, Type.Object({ error: Type.Object({ code: Type.Enum([...codes]) }) })])
