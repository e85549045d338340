import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { type Static, Type } from 'typebox'
import { hasFiles } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import { bodyObject } from '../../core/http/json-body.ts'
import { nativeErrorBody } from '../../core/http/native-error.ts'
import { Loose } from '../../core/http/request-fields.ts'
import { json, nativeRoute } from '../../core/http/response-schemas.ts'
import { type PluginReport, PluginReportSchema } from '../../core/plugins/plugin-report.ts'
import { version } from '../../core/system/package-info.ts'
import { answerRoutes } from './answer.ts'
import { embedRoutes } from './embed-routes.ts'
import { modelRoutes } from './models.ts'
import type { NativeDependencies } from './native-dependencies.ts'
import { pullRoutes } from './pull-routes.ts'

const health = nativeRoute('Server', 'getHealth', 'Check that corral is running', {
  role: 'anyone',
  response: { 200: json('Running', Loose({ status: Type.Literal('ok') })) }
})
const llamaServerHealth = nativeRoute(
  'Server',
  'getHealthAsLlamaServer',
  "Check that corral is running, as llama-server's clients do",
  {
    role: 'anyone',
    response: { 200: json('Running', Loose({ status: Type.Literal('ok') })) }
  }
)
const live = nativeRoute('Server', 'getLive', 'Check that the process answers', {
  description: 'For supervisors: where it does not, restart it.',
  role: 'anyone',
  response: { 200: json('It does', Loose({ status: Type.Literal('ok') })) }
})
const ready = nativeRoute('Server', 'getReady', 'Check that models can be loaded', {
  description: 'For load balancers: 503 until a llama.cpp build has been found, and while the server shuts down.',
  role: 'anyone',
  response: { 200: json('They can', Loose({ status: Type.Literal('ok') })) },
  errors: ['runtime_missing']
})
const versionRoute = nativeRoute('Server', 'getVersion', "Show corral's version", {
  response: { 200: json('The version', Loose({ version: Type.String() })) }
})

/** The native API without its prefix. */
export function nativeRoutes(deps: NativeDependencies, shownVersion = version): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    // A body that is missing or no object gets its own code before the schema speaks of fields.
    app.addHook('preValidation', async request => {
      if (request.method === 'POST' || request.method === 'DELETE') bodyObject(request.body)
    })
    app.get('/health', health, async () => ({ status: 'ok' }))
    app.get('/version', versionRoute, async () => ({ version: shownVersion }))
    await app.register(answerRoutes(deps))
    await app.register(embedRoutes(deps))
    await app.register(modelRoutes(deps))
    await app.register(pullRoutes(deps))
  }
}

const LINE = 'corral is running. Try GET /api/tags, or POST /api/chat.\n'

/** For a browser. The link is there only where the page it leads to is. */
function page(link: boolean): string {
  const docs = link ? ' <a href="/docs">Read and try its API.</a>' : ''
  return `<!doctype html><html lang="en"><meta charset="utf-8"><title>corral</title><p>corral is running.${docs}</p></html>\n`
}

const root = nativeRoute('Server', 'root', 'Root page', {
  role: 'anyone',
  description: 'A line of text; a page for browsers.',
  response: {
    200: {
      description: 'Running',
      content: { 'text/plain': { schema: Type.String() }, 'text/html': { schema: Type.String() } }
    }
  }
})

const PluginsSchema = Type.Object({ plugins: Type.Array(PluginReportSchema) }, { title: 'Plugins' })

const listPlugins = nativeRoute('Server', 'listPlugins', 'List the plugins', {
  role: 'operator',
  description: 'Built-in ones and those of the configuration: their states, and what they offer.',
  response: { 200: json('The plugins', PluginsSchema) }
})

/** What is at the address itself (a line for programs, a page for browsers), what supervisors ask, and the plugins. */
export function serverRoutes(
  { runtimes, catalog }: Pick<NativeDependencies, 'runtimes' | 'catalog'>,
  plugins: () => PluginReport[]
): FastifyPluginAsync {
  return async app => {
    app.get('/health', llamaServerHealth, async () => ({ status: 'ok' }))
    app.get('/livez', live, async () => ({ status: 'ok' }))
    app.get('/readyz', ready, async (request, reply) => {
      // Models of other servers need no build.
      if (runtimes.current() || catalog.list().some(model => !hasFiles(model))) return { status: 'ok' }
      const error = new CorralError(
        'runtime_missing',
        'No llama.cpp build has been found yet. Ask again later; "corral doctor" on the server says what is missing.'
      )
      // Sent as it is: a probe that asks every second is nothing to log.
      return reply.code(error.status).send(nativeErrorBody(error, request))
    })
    app.get('/', root, async (request, reply) => {
      reply.vary('Accept')
      // Browsers name HTML in what they accept.
      if (!/\btext\/html\b/i.test(request.headers.accept ?? '')) {
        return reply.type('text/plain; charset=utf-8').send(LINE)
      }
      return reply
        .type('text/html; charset=utf-8')
        .header('content-security-policy', "default-src 'none'; frame-ancestors 'none'")
        .send(page(app.hasRoute({ method: 'GET', url: '/docs' })))
    })
    app.get('/api/plugins', listPlugins, async (): Promise<Static<typeof PluginsSchema>> => {
      return { plugins: plugins().sort((a, b) => (a.name < b.name ? -1 : 1)) }
    })
  }
}
