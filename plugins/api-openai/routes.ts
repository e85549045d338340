import type { FastifyPluginAsync } from 'fastify'
import { logFailure } from '../../core/application.ts'
import { ClientGone } from '../../core/http/client-signal.ts'
import { errorHeaders, toCorralError } from '../../core/http/native-error.ts'
import type { EngineFunction } from './engine-call.ts'
import { modelRoutes } from './models.ts'
import { openaiErrorBody } from './openai-error.ts'
import { type RelayDependencies, relay } from './relay.ts'

const whatItIs: EngineFunction['mode'] = ({ metadata }) =>
  metadata.capabilities.includes('completion') ? 'chat' : 'embedding'

/** What `/v1` passes on to the engine, by its path below `/v1`. */
const FUNCTIONS: Record<string, EngineFunction> = {
  '/chat/completions': {
    path: '/v1/chat/completions',
    required: 'messages',
    generates: true,
    mode: () => 'chat'
  },
  '/completions': { path: '/v1/completions', required: 'prompt', generates: true, mode: () => 'chat' },
  '/embeddings': { path: '/v1/embeddings', required: 'input', generates: false, mode: () => 'embedding' },
  '/tokenize': { path: '/tokenize', required: 'content', generates: false, mode: whatItIs },
  '/detokenize': { path: '/detokenize', required: 'tokens', generates: false, mode: whatItIs }
}

/** The hosted-chat API without its prefix. */
export function openaiRoutes(deps: RelayDependencies): FastifyPluginAsync {
  return async app => {
    app.wordErrors('/v1/', openaiErrorBody)
    app.setErrorHandler((error, request, reply) => {
      if (error instanceof ClientGone) return reply.hijack()
      const failure = toCorralError(error)
      logFailure(failure, request.log)
      return reply.code(failure.status).headers(errorHeaders(failure)).send(openaiErrorBody(failure))
    })
    app.setNotFoundHandler(request => {
      throw app.noRouteError(request.method, request.url)
    })
    await app.register(modelRoutes(deps.storage))
    for (const [path, target] of Object.entries(FUNCTIONS)) {
      app.post(path, (request, reply) => relay(deps, request, reply, target))
    }
  }
}
