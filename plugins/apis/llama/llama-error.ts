import type { FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import {
  type ApiDependencies,
  type CorralError,
  contextMessage,
  errorsWithin,
  errorTypes,
  eventChannel,
  Loose,
  routerWith,
  routesWith,
  Titled
} from '../../../core/plugins/public-api.ts'

const errorType = errorTypes({
  501: 'not_supported_error',
  503: 'unavailable_error',
  context_exceeded: 'exceed_context_size_error'
})

/** Renders an error in llama-server's shape. `code` is the HTTP status, `corral_code` is corral's own error code. */
export function llamaErrorBody(error: CorralError): { error: Record<string, unknown> } {
  const { param, code, status, details } = error
  const message = contextMessage(
    error,
    (tokens, most) => `request (${tokens} tokens) exceeds the available context size (${most} tokens).`,
    'request exceeds the available context size'
  )
  return {
    error: {
      ...details,
      code: status,
      message,
      type: errorType(error),
      corral_code: code,
      ...(param !== undefined && { param })
    }
  }
}

const LlamaError = Titled('LlamaServerError', {
  error: Loose({
    code: Type.Integer(),
    message: Type.String(),
    type: Type.String(),
    corral_code: Type.String(),
    param: Type.Optional(Type.String())
  })
})

const llamaErrors = errorsWithin(LlamaError, 'corral_code')
export const llamaRoute = routesWith(llamaErrors)

export const llamaRouter = (app: FastifyInstance) => routerWith(llamaErrors)(app, 'llama-server')

export const llamaChannel = (deps: Pick<ApiDependencies, 'heartbeat'>, activity?: () => string) =>
  eventChannel(deps.heartbeat(), error => `data: ${JSON.stringify(llamaErrorBody(error))}\n\n`, activity)
