import type { FastifyPluginAsync, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import type { ModelNaming, NativeApi } from '../../core/contracts/native-api.ts'
import { CorralError } from '../../core/errors.ts'
import { logFailure } from '../../core/http/application.ts'
import { isGone } from '../../core/http/client-signal.ts'
import { errorHeaders, nativeErrorBody, toCorralError } from '../../core/http/native-error.ts'
import { errorResponses, json, nativeErrors } from '../../core/http/response-schemas.ts'
import { modelfileText } from './models/create-request.ts'
import { tagAsOllama } from './operations.ts'
import { hostedPath, PROFILE } from './profile-paths.ts'

/**
 * What `/api/version` tells: the release of Ollama whose command line and API the profile is tested against. Clients
 * compare it with the release that brought what they need (VS Code wants 0.6.4 at least) and read each of its parts as
 * a whole number, so it is a plain release.
 */
export const OLLAMA_VERSION = '0.17.4'

const root = {
  summary: 'Say that the profile is there',
  operationId: 'ollamaRoot',
  response: {
    200: { description: 'It is', content: { 'text/plain': { schema: Type.String() } } },
    ...errorResponses(nativeErrors, [], { body: false })
  }
}
const loose = { additionalProperties: true }
const status = {
  summary: "Say that there are no models in Ollama's cloud",
  operationId: 'ollamaStatus',
  response: {
    200: json(
      'There are none',
      Type.Object({ cloud: Type.Object({ disabled: Type.Literal(true), source: Type.String() }, loose) }, loose)
    ),
    ...errorResponses(nativeErrors, [], { body: false })
  }
}

const account = (summary: string, operationId: string) => ({
  summary: `${summary}: there is none`,
  operationId,
  response: errorResponses(nativeErrors, ['not_implemented'], { body: false })
})

/** What the profile has at the server's own address, below `/ollama`. */
export function profileRoutes(options: {
  nativeApi: NativeApi
  naming: ModelNaming
  /** The routes that make models. */
  making: FastifyPluginAsync
  /** Called with each request that goes on to the hosted-chat API. */
  markHosted: (request: FastifyRequest['raw']) => void
}): FastifyPluginAsync {
  const { nativeApi, naming, making, markHosted } = options
  return async app => {
    tagAsOllama(app)
    app.setErrorHandler((error, request, reply) => {
      if (isGone(error, request)) return reply.hijack()
      const failure = inOllamasWords(toCorralError(error), request.body)
      logFailure(failure, request.log)
      return reply.code(failure.status).headers(errorHeaders(failure)).send(nativeErrorBody(failure, request))
    })
    app.get(PROFILE, { schema: root }, async (_request, reply) =>
      reply.type('text/plain; charset=utf-8').send('Ollama is running')
    )
    app.get(`${PROFILE}/api/status`, { schema: status }, async () => ({ cloud: { disabled: true, source: 'corral' } }))
    app.post(`${PROFILE}/api/me`, { schema: account('Tell the account at ollama.com', 'ollamaMe') }, noAccount)
    app.post(`${PROFILE}/api/signout`, { schema: account('Sign out of ollama.com', 'ollamaSignout') }, noAccount)
    await app.register(
      async scope => {
        scope.addHook('preHandler', async request => refuseTemplate(request))
        await scope.register(
          nativeApi.routes({
            defaultFraming: 'ndjson',
            naming,
            version: OLLAMA_VERSION,
            modelfile: variant => modelfileText(variant, naming.shown(variant))
          })
        )
        await scope.register(making)
      },
      { prefix: `${PROFILE}/api` }
    )
    // Requests to /v1 at the base address that a client has: they are taken out here and routed anew. The second
    // routing logs them.
    app.all(`${PROFILE}/v1/*`, {
      schema: { hide: true },
      logLevel: 'silent',
      onRequest: async (request, reply) => {
        reply.hijack()
        request.raw.url = hostedPath(request.raw.url!)
        markHosted(request.raw)
        app.routing(request.raw, reply.raw)
      },
      handler: async (_request, reply) => reply
    })
  }
}

/** Clients look for Ollama's own words in the text: `model 'x' not found`. */
export function inOllamasWords(failure: CorralError, body: unknown): CorralError {
  if (failure.code !== 'model_not_found' || typeof body !== 'object' || body === null) return failure
  // What is made of a model that is not here has another name.
  const { from, found, model, name, source } = body as Record<string, unknown>
  const asked = [found === undefined && from, model, name, source].find(text => typeof text === 'string' && text !== '')
  if (asked === undefined) return failure
  const { param, details } = failure
  return new CorralError('model_not_found', `model '${asked}' not found. ${failure.message}`, {
    ...(param === undefined ? {} : { param }),
    ...(details && { details })
  })
}

async function noAccount(): Promise<never> {
  throw new CorralError(
    'not_implemented',
    'corral knows no accounts at ollama.com: it neither pushes models there nor runs those of its cloud.'
  )
}

/** @throws CorralError where a request gives a template of its own, which would be left out silently */
function refuseTemplate(request: FastifyRequest): void {
  if (!/\/(?:chat|generate)$/.test(request.routeOptions.url ?? '')) return
  const { template } = (request.body ?? {}) as { template?: unknown }
  if (template === undefined || template === null || template === '') return
  throw new CorralError(
    'invalid_request',
    'A request cannot bring a template of its own. Make a model with it (POST /api/create with "from" and "template"), ' +
      'or send the finished prompt with "raw": true.',
    { param: 'template' }
  )
}
