import type { FastifyPluginAsync } from 'fastify'
import { Type } from 'typebox'
import { errorResponses, json, nativeErrors } from '../../core/http/response-schemas.ts'
import type { DescribedRoute } from './described-routes.ts'

/** The API document and the page that shows it. Both are made when they are asked for first. */
export function docsRoutes(described: () => DescribedRoute[]): FastifyPluginAsync {
  let document: string | undefined

  async function documentText(): Promise<string> {
    if (document !== undefined) return document
    const [{ openApiDocument }, { documentInfo }] = await Promise.all([
      import('./openapi.ts'),
      import('./document-info.ts')
    ])
    document = JSON.stringify(openApiDocument(described(), documentInfo))
    return document
  }

  return async app => {
    const schema = {
      summary: 'The API document',
      description: 'OpenAPI 3.1, of all routes of this server.',
      tags: ['Server'],
      operationId: 'openapi',
      response: {
        200: json('The document', Type.Object({ openapi: Type.String() }, { additionalProperties: true })),
        ...errorResponses(nativeErrors, [], { body: false })
      }
    }
    app.get('/openapi.json', { schema }, async (_request, reply) =>
      reply.type('application/json; charset=utf-8').send(await documentText())
    )
  }
}
