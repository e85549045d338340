import type { FastifyInstance, FastifyPluginAsync, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import type { ModelNaming, NativeApi } from '../../../core/contracts/native-api.ts'
import { CorralError, type ErrorCode } from '../../../core/errors.ts'
import { isGone } from '../../../core/http/client-gone.ts'
import { errorHeaders, logFailure, nativeErrorBody, toCorralError } from '../../../core/http/native-error.ts'
import { Loose } from '../../../core/http/request-fields.ts'
import { json, nativeRoute } from '../../../core/http/response-schemas.ts'
import { clientError } from '../../../core/http/server-folders.ts'
import { modelfileText } from './models/create-request.ts'

/**
 * The reply of `/api/version`: the release of Ollama whose command line and API the profile is tested against. Clients
 * compare it with the release that brought what they need (VS Code wants 0.6.4 at least) and read each of its parts as
 * a whole number, so it is a plain release.
 */
export const OLLAMA_VERSION = '0.17.4'

/** Where the profile is at the server's own address. */
const PROFILE = '/ollama'

const root = nativeRoute('Ollama', 'ollamaRoot', 'Check that the profile is there', {
  role: 'anyone',
  response: { 200: { description: 'It is there', content: { 'text/plain': { schema: Type.String() } } } }
})
const status = nativeRoute('Ollama', 'ollamaStatus', "Show that models of Ollama's cloud are disabled", {
  response: {
    200: json('Disabled', Loose({ cloud: Loose({ disabled: Type.Literal(true), source: Type.String() }) }))
  }
})
const account = (summary: string, operationId: string) =>
  nativeRoute('Ollama', operationId, `${summary} (there is none)`, { errors: ['not_implemented'] })

/** What the profile has at the server's own address, below `/ollama`. */
export function profileRoutes(
  nativeApi: NativeApi,
  naming: ModelNaming,
  making: FastifyPluginAsync
): FastifyPluginAsync {
  return async app => {
    tagAsOllama(app)
    app.setErrorHandler((error, request, reply) => {
      if (isGone(error, request)) return reply.hijack()
      const failure = likeOllama(toCorralError(error), request.body)
      request.record.failure = failure
      logFailure(failure, request.log)
      return reply
        .code(failure.status)
        .headers(errorHeaders(failure))
        .send(nativeErrorBody(clientError(failure, request), request))
    })
    app.get(PROFILE, root, async (_request, reply) => reply.type('text/plain; charset=utf-8').send('Ollama is running'))
    app.get(`${PROFILE}/api/status`, status, async () => ({ cloud: { disabled: true, source: 'corral' } }))
    app.post(`${PROFILE}/api/me`, account('Show the account at ollama.com', 'ollamaMe'), noAccount)
    app.post(`${PROFILE}/api/signout`, account('Sign out of ollama.com', 'ollamaSignout'), noAccount)
    await app.register(
      async scope => {
        scope.addHook('preHandler', async request => refuseTemplate(request))
        await scope.register(
          nativeApi.routes({
            defaultFraming: 'ndjson',
            naming,
            truncates: true,
            givesContext: true,
            version: OLLAMA_VERSION,
            modelfile: variant => modelfileText(variant, naming.shown(variant))
          })
        )
        await scope.register(making)
      },
      { prefix: `${PROFILE}/api` }
    )
    // Requests to /v1 at the base address that a client has: they are routed again without the profile's prefix.
    // The second routing logs them, and asks for the role of the route that it finds.
    app.all(`${PROFILE}/v1/*`, {
      config: { role: 'anyone' },
      schema: { hide: true },
      logLevel: 'silent',
      onRequest: async (request, reply) => {
        reply.hijack()
        request.raw.url = request.raw.url!.slice(PROFILE.length)
        app.routing(request.raw, reply.raw)
      },
      handler: async (_request, reply) => reply
    })
  }
}

/** Clients look for Ollama's own messages: `model 'x' not found`, `the input length exceeds the context length`. */
export function likeOllama(failure: CorralError, body: unknown): CorralError {
  const { code, message, param, details } = failure
  const ollamas = typeof body === 'object' && body !== null && messageOfOllama(code, body as Record<string, unknown>)
  if (!ollamas) return failure
  return new CorralError(code, `${ollamas}. ${message}`, {
    ...(param !== undefined && { param }),
    ...(details && { details })
  })
}

/** What Ollama says of a failure, where clients go by its words. */
function messageOfOllama(code: ErrorCode, body: Record<string, unknown>): string | undefined {
  const { from, found, model, name, source, input, truncate } = body
  if (code === 'context_exceeded') {
    const cut = input !== undefined && truncate !== false
    return cut ? 'input after truncation exceeds maximum context length' : 'the input length exceeds the context length'
  }
  if (code !== 'model_not_found') return undefined
  // The missing model is the one that a new model is made from, not the new one.
  const missing = [found === undefined && from, model, name, source].find(
    text => typeof text === 'string' && text !== ''
  )
  return missing === undefined ? undefined : `model '${missing}' not found`
}

async function noAccount(): Promise<never> {
  throw new CorralError(
    'not_implemented',
    'corral does not support accounts at ollama.com: it neither pushes models there nor runs those of its cloud.'
  )
}

/** @throws CorralError where a request has a template of its own, which would silently be ignored */
function refuseTemplate(request: FastifyRequest): void {
  if (!/\/(?:chat|generate)$/.test(request.routeOptions.url ?? '')) return
  const { template } = (request.body ?? {}) as { template?: unknown }
  if (template === undefined || template === null || template === '') return
  throw new CorralError(
    'invalid_request',
    'A request cannot have its own template. Create a model with it (POST /api/create with "from" and "template"), ' +
      'or send the finished prompt with "raw": true.',
    { param: 'template' }
  )
}

/**
 * Tells the routes that are registered from here on apart from the native ones, which they are a second time: under a
 * tag of their own, with ids such as `ollamaChat`.
 */
function tagAsOllama(app: FastifyInstance): void {
  app.addHook('onRoute', route => {
    const { operationId: id, ...schema } = route.schema ?? {}
    if (!id) return
    const operationId = id.startsWith('ollama') ? id : `ollama${id[0]!.toUpperCase()}${id.slice(1)}`
    route.schema = { ...schema, tags: ['Ollama'], operationId }
  })
}

/**
 * The path that a request to the profile's own address means: `/v1` is the hosted-chat API, as at Ollama's address, and
 * all else is below `/ollama`.
 * @param url of the request line: a path with its query, or a whole address as proxies are sent
 */
export function pathInProfile(url: string): string {
  const path = url.replace(/^https?:\/\/[^/?#]*/i, '')
  return /^\/v1(?:[/?]|$)/.test(path) ? path : `${PROFILE}${path}`
}
