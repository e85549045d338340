import type { FastifyPluginAsync } from 'fastify'
import { logFailure } from '../../core/http/application.ts'
import { isGone } from '../../core/http/client-signal.ts'
import { errorHeaders, toCorralError } from '../../core/http/native-error.ts'
import type { OpenaiDependencies } from './answer.ts'
import { functionRoutes } from './function-routes.ts'
import { mediaRoutes } from './media/routes.ts'
import { modelRoutes } from './model-routes.ts'
import { openaiErrorBody } from './openai-error.ts'
import { responseRoutes } from './responses/routes.ts'

/** The hosted-chat API without its prefix. */
export function openaiRoutes(deps: OpenaiDependencies & { storedResponses: number }): FastifyPluginAsync {
  return async app => {
    app.wordErrors('/v1/', openaiErrorBody)
    app.setErrorHandler((error, request, reply) => {
      if (isGone(error, request)) return reply.hijack()
      const failure = toCorralError(error)
      logFailure(failure, request.log)
      return reply.code(failure.status).headers(errorHeaders(failure)).send(openaiErrorBody(failure))
    })
    app.setNotFoundHandler(request => {
      throw app.noRouteError(request.method, request.url)
    })
    await app.register(modelRoutes(deps))
    await app.register(functionRoutes(deps))
    await app.register(responseRoutes(deps))
    await app.register(mediaRoutes(deps))
  }
}
