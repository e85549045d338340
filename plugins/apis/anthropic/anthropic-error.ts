import type { CorralError } from '../../../core/errors.ts'

const TYPES: Record<number, string> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  504: 'timeout_error'
}

function errorType({ code, status }: CorralError): string {
  if (code === 'queue_full' || code === 'too_busy') return 'overloaded_error'
  if (code === 'hub_rate_limited') return 'rate_limit_error'
  return TYPES[status] ?? (status >= 500 ? 'api_error' : 'invalid_request_error')
}

/** Programs detect by Anthropic's own message that they must shorten the conversation. */
function errorMessage({ code, message, details }: CorralError): string {
  const { n_prompt_tokens: tokens, n_ctx: most } = details ?? {}
  if (code !== 'context_exceeded' || tokens === undefined) return message
  const [, advice = ''] = /\.( .*)$/s.exec(message) ?? []
  return `prompt is too long: ${tokens} tokens > ${most} maximum.${advice}`
}

/** Renders an error in Anthropic's format. */
export function anthropicErrorBody(error: CorralError, { id }: { id: string }): Record<string, unknown> {
  return {
    type: 'error',
    error: {
      type: errorType(error),
      message: errorMessage(error),
      code: error.code,
      ...(error.param !== undefined && { param: error.param }),
      // The SDKs expose these as `details` and `errorCode` of their exceptions.
      details: { error_code: error.code, ...error.details }
    },
    request_id: id
  }
}
