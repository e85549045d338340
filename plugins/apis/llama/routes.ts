import type { IncomingMessage } from 'node:http'
import type { FastifyInstance, FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import { sendErrors } from '../../../core/http/application.ts'
import { bodyObject } from '../../../core/http/json-body.ts'
import { reroute } from '../../../core/http/reroute.ts'
import { ANSWER_ERRORS, json, WITH_BODY } from '../../../core/http/response-schemas.ts'
import { clientError } from '../../../core/http/server-folders.ts'
import { completionRoutes } from './completion-routes.ts'
import type { LlamaDependencies } from './llama-dependencies.ts'
import { llamaErrorBody, llamaRoute } from './llama-error.ts'
import { modelControlRoutes } from './model-control-routes.ts'
import { propsRoutes } from './props-routes.ts'
import { resumeRoutes } from './resume-routes.ts'

/** Routes that are the same as routes of the OpenAI API. */
const SAME: [method: 'GET' | 'POST', path: string, as: string, operationId: string, summary: string][] = [
  ['GET', '/models', '/v1/models', 'llamaModels', 'List models with their states'],
  ['POST', '/chat/completions', '/v1/chat/completions', 'llamaChat', 'Answer a conversation'],
  [
    'POST',
    '/chat/completions/input_tokens',
    '/v1/chat/completions/input_tokens',
    'llamaChatTokens',
    'Count the tokens of a conversation'
  ],
  ['POST', '/responses', '/v1/responses', 'llamaResponse', 'Answer an input'],
  ['POST', '/apply-template', '/v1/chat/completions/prompt', 'llamaPrompt', 'Show the prompt of a conversation'],
  ['POST', '/rerank', '/v1/rerank', 'llamaRerank', 'Rank documents by relevance to a query'],
  ['POST', '/reranking', '/v1/reranking', 'llamaReranking', 'Rank documents by relevance to a query'],
  ['POST', '/tokenize', '/v1/tokenize', 'llamaTokenize', 'Split a text into tokens'],
  ['POST', '/detokenize', '/v1/detokenize', 'llamaDetokenize', 'Turn tokens into text']
]

/**
 * Routes at the same paths as llama-server's router. @param markRerouted called with each request that is passed to /v1
 */
export function llamaRoutes(
  deps: LlamaDependencies,
  markRerouted: (request: IncomingMessage) => void
): FastifyPluginAsync {
  return async app => {
    sendErrors(app, llamaErrorBody)
    app.addHook('preValidation', async request => {
      if (request.routeOptions.schema?.body) bodyObject(request.body)
    })
    app.addHook('preClose', async () => deps.feed.close())
    rerouted(app, markRerouted)
    propsRoutes(app, deps)
    modelControlRoutes(app, deps)
    completionRoutes(app, deps)
    resumeRoutes(app)
  }
}

/** Routes requests to their /v1 equivalents. The second routing logs them. */
function rerouted(app: FastifyInstance, mark: (request: IncomingMessage) => void): void {
  for (const [method, path, as, operationId, summary] of SAME) {
    const { schema, config } = llamaRoute(operationId, summary, {
      description: `The same as ${method} ${as}, with errors in llama-server's shape.`,
      response: { 200: json(`As ${as}`, Type.Unknown()) },
      errors: method === 'GET' ? ['invalid_request'] : [...ANSWER_ERRORS, ...WITH_BODY]
    })
    reroute(app, { method, url: path, as, config, schema }, mark)
  }
}

/** Renders errors of rerouted requests in llama-server's shape. `hooks` must be registered on the application. */
export function reroutedErrors() {
  const marked = new WeakSet<IncomingMessage>()
  return {
    mark: (request: IncomingMessage) => void marked.add(request),
    hooks: async (app: FastifyInstance) => {
      app.addHook('preSerialization', async (request, _reply, payload) => {
        const { failure } = request.record
        return failure && marked.has(request.raw) ? llamaErrorBody(clientError(failure, request)) : payload
      })
    }
  }
}
