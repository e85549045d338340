import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyInstance, FastifyReply } from 'fastify'
import { Type } from 'typebox'
import type { Catalog } from '../../../core/contracts/models.ts'
import { json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { catalogFor } from '../../../core/models/allowed-models.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { packagedFile, packageRoot } from '../../../core/system/package-info.ts'
import type { DescribedRoute } from './openapi.ts'

export default definePlugin({
  name: 'docs',
  api: 1,
  description: 'The API document under /openapi.json, and a page to read it and try requests under /docs',
  optional: true,
  needs: ['catalog'],
  options: Type.Object({}, { restart: true }),
  setup(context) {
    const catalog = context.service('catalog')
    return { routes: async app => docsRoutes(app, catalog) }
  }
})

/** The routes in the order of their registration, without the HEAD of a GET. */
function describedRoutes({ allRoutes }: FastifyInstance): DescribedRoute[] {
  const routes = allRoutes.flatMap(options => [options.method].flat().map(method => ({ ...options, method })))
  const gets = new Set(routes.filter(({ method }) => method === 'GET').map(({ url }) => url))
  return routes
    .filter(({ method, url }) => method !== 'OPTIONS' && !(method === 'HEAD' && gets.has(url)))
    .filter(({ config, schema }) => !config?.leftOut && !schema?.hide)
    .map(({ method, url, schema = {}, config = {} }) => ({
      method,
      url,
      schema: config.replies ? { ...schema, response: config.replies() } : schema,
      role: config.role ?? 'user'
    }))
}

const ASSETS = { 'swagger-ui-bundle.js': 'text/javascript; charset=utf-8', 'swagger-ui.css': 'text/css; charset=utf-8' }

/** Serves the API document, built on the first request with models that the caller may use, and its page. */
function docsRoutes(app: FastifyInstance, catalog: Catalog): void {
  let document: string | undefined
  /** The state of the routes that it describes. */
  let described = -1
  const route = nativeRouter(app, 'Server')
  route('GET /openapi.json', 'getApiDocument', 'The API document', {
    description: 'OpenAPI 3.1 document of all routes of this server.',
    response: json('The document', Type.Object({ openapi: Type.String() }, { additionalProperties: true })),
    handler: async (request, reply) => {
      const [{ openApiDocument }, { withModelsHere }] = await Promise.all([
        import('./openapi.ts'),
        import('./examples.ts')
      ])
      const { changes } = app.forks
      if (!document || described !== changes) document = JSON.stringify(openApiDocument(describedRoutes(app)))
      described = changes
      return reply
        .type('application/json; charset=utf-8')
        .send(withModelsHere(document, catalogFor(catalog, request.caller).list()))
    }
  })

  route('GET /docs', 'getDocs', 'A page to read and try the API', {
    role: 'anyone',
    description: 'The page asks for a key if the API document needs one.',
    response: { description: 'The page', content: { 'text/html': { schema: Type.String() } } },
    handler: async (_request, reply) => await sendPage(reply)
  })

  for (const [name, type] of Object.entries(ASSETS)) {
    app.get(`/docs/${name}`, { config: { role: 'anyone' }, schema: { hide: true } }, async (_request, reply) =>
      reply
        .type(type)
        .headers({ 'x-content-type-options': 'nosniff', 'cache-control': 'no-cache' })
        .send(await readFile(packagedFile(`@fastify/swagger-ui/static/${name}`)))
    )
  }
}

function cspHash(html: string, element: 'script' | 'style'): string {
  const text = new RegExp(`<${element}>(.*?)</${element}>`, 's').exec(html)![1]!
  return `'sha256-${createHash('sha256').update(text).digest('base64')}'`
}

/**
 * Sends the page. Its content security policy allows only its own script and what the script fetches from this server.
 */
async function sendPage(reply: FastifyReply): Promise<FastifyReply> {
  const html = await readFile(join(packageRoot, 'plugins', 'apis', 'reference', 'page', 'index.html'), 'utf8')
  const policy = [
    "default-src 'none'",
    `script-src ${cspHash(html, 'script')} blob:`,
    `style-src ${cspHash(html, 'style')} blob:`,
    'img-src data:',
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'"
  ]
  return reply
    .type('text/html; charset=utf-8')
    .headers({
      'content-security-policy': policy.join('; '),
      'x-content-type-options': 'nosniff',
      'referrer-policy': 'no-referrer',
      'cache-control': 'no-cache'
    })
    .send(html)
}
