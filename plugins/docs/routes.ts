import type { FastifyPluginAsync, FastifyReply } from 'fastify'
import { Type } from 'typebox'
import { logFailure } from '../../core/http/application.ts'
import { errorHeaders, nativeErrorBody, toCorralError } from '../../core/http/native-error.ts'
import { errorResponses, json, nativeErrors } from '../../core/http/response-schemas.ts'
import type { DescribedRoute } from './described-routes.ts'

/** What the page fetches beside the document: Swagger UI's own files. */
const ASSETS = {
  'swagger-ui-bundle.js': 'text/javascript; charset=utf-8',
  'swagger-ui.css': 'text/css; charset=utf-8'
}

const errors = errorResponses(nativeErrors, [], { body: false })
const documentOperation = {
  summary: 'The API document',
  description: 'OpenAPI 3.1, of all routes of this server.',
  tags: ['Server'],
  operationId: 'getApiDocument',
  response: {
    200: json('The document', Type.Object({ openapi: Type.String() }, { additionalProperties: true })),
    ...errors
  }
}
const pageOperation = {
  summary: 'A page to read and try the API',
  description: 'Where a key is needed and not sent, a browser gets the page with the status 401, and is asked there.',
  tags: ['Server'],
  operationId: 'getDocs',
  response: { 200: { description: 'The page', content: { 'text/html': { schema: Type.String() } } }, ...errors }
}

/** The API document and the page that shows it. What they are made of is loaded when it is asked for first. */
export function docsRoutes(described: () => DescribedRoute[]): FastifyPluginAsync {
  let document: string | undefined

  async function documentText(): Promise<string> {
    if (document !== undefined) return document
    const [{ openApiDocument }, { documentInfo }] = await Promise.all([import('./openapi.ts'), import('./openapi.ts')])
    document = JSON.stringify(openApiDocument(described(), documentInfo))
    return document
  }

  async function sendPage(reply: FastifyReply): Promise<FastifyReply> {
    const { readPage } = await import('./page-files.ts')
    const { html, policy } = await readPage()
    return reply
      .type('text/html; charset=utf-8')
      .headers({
        'content-security-policy': policy,
        'x-content-type-options': 'nosniff',
        'referrer-policy': 'no-referrer',
        'cache-control': 'no-cache'
      })
      .send(html)
  }

  return async app => {
    app.get('/openapi.json', { schema: documentOperation }, async (_request, reply) =>
      reply.type('application/json; charset=utf-8').send(await documentText())
    )

    // A browser sends no key with an address: it gets the refusal as the page, which asks for one.
    const pageAsRefusal: FastifyPluginAsync = async scope => {
      scope.setErrorHandler(async (error, request, reply) => {
        const failure = toCorralError(error)
        logFailure(failure, request.log)
        reply.code(failure.status).headers(errorHeaders(failure))
        const isBrowser = /\btext\/html\b/i.test(request.headers.accept ?? '')
        if (failure.code === 'unauthorized' && isBrowser) return await sendPage(reply)
        return reply.send(nativeErrorBody(failure, request))
      })
      scope.get('/docs', { schema: pageOperation }, async (_request, reply) => await sendPage(reply))
    }
    await app.register(pageAsRefusal)

    for (const [name, type] of Object.entries(ASSETS)) {
      app.get(`/docs/${name}`, { schema: { hide: true } }, async (_request, reply) => {
        const { readAsset } = await import('./page-files.ts')
        return reply
          .type(type)
          .headers({ 'x-content-type-options': 'nosniff', 'cache-control': 'no-cache' })
          .send(await readAsset(name))
      })
    }
  }
}
