import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import { ReloadReportSchema } from '../../../core/contracts/native-records.ts'
import { Loose, Titled } from '../../../core/http/request-fields.ts'
import { json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { streamRoutes } from '../../../core/http/resumable-streams.ts'
import { type PluginReport, PluginReportSchema } from '../../../core/plugins/plugin-report.ts'
import { version } from '../../../core/system/package-info.ts'
import { answerRoutes } from './answer.ts'
import { embedRoutes } from './embed-routes.ts'
import { modelRoutes } from './models.ts'
import type { NativeDependencies } from './native-dependencies.ts'
import { pullRoutes } from './pull-routes.ts'

const RunningSchema = Titled('Health', {
  status: Type.Literal('ok'),
  draining: Type.Optional(Type.Literal(true))
})

function getHealth({ drain }: FastifyInstance): Static<typeof RunningSchema> {
  return { status: 'ok', ...(drain.since && { draining: true }) }
}

export async function nativeRoutes(app: FastifyInstance, deps: NativeDependencies, shownVersion = version) {
  const route = nativeRouter(app, 'Server')
  route('GET /health', 'getHealth', 'Check that corral is running', {
    role: 'anyone',
    response: json('Running', RunningSchema),
    handler: async () => getHealth(app)
  })
  route('GET /version', 'getVersion', "Show corral's version", {
    response: json('The version', Loose({ version: Type.String() })),
    handler: async () => ({ version: shownVersion })
  })
  answerRoutes(app, deps)
  embedRoutes(app, deps)
  modelRoutes(app, deps)
  pullRoutes(app, deps)
  streamRoutes(app, nativeRouter(app, 'Answers'), 'NativeStream')
}

const LINE = 'corral is running. Try GET /api/tags, or POST /api/chat.\n'

/** The page for browsers if the web page is elsewhere or disabled. It has no dead links. */
function links(hasDocs: boolean, page: string | undefined): string {
  const chat = page === undefined ? '' : ` <a href="${page}">Chat.</a>`
  const docs = hasDocs ? ' <a href="/docs">Read and try its API.</a>' : ''
  return `<!doctype html><html lang="en"><meta charset="utf-8"><title>corral</title><p>corral is running.${chat}${docs}</p></html>\n`
}

const PluginsSchema = Titled('Plugins', { plugins: Type.Array(PluginReportSchema) })

export function serverRoutes(app: FastifyInstance, plugins: () => PluginReport[]): void {
  const route = nativeRouter(app, 'Server')
  route('GET /', 'root', 'Root page', {
    role: 'anyone',
    response: {
      description: 'Running',
      content: { 'text/plain': { schema: Type.String() }, 'text/html': { schema: Type.String() } }
    },
    handler: async (request, reply) => {
      reply.vary('Accept')
      // Browsers name HTML in their Accept header.
      if (!/\btext\/html\b/i.test(request.headers.accept ?? '')) {
        return reply.type('text/plain; charset=utf-8').send(LINE)
      }
      const { web } = app
      if (web?.path === '/') return web.sendPage(reply)
      return reply
        .type('text/html; charset=utf-8')
        .header('content-security-policy', "default-src 'none'; frame-ancestors 'none'")
        .send(links(app.hasRoute({ method: 'GET', url: '/docs' }), web?.path))
    }
  })
  route('POST /api/reload', 'reloadConfig', 'Reload the configuration', {
    role: 'admin',
    response: json('What has changed', ReloadReportSchema),
    errors: ['invalid_config', 'reload_failed', 'not_implemented'],
    handler: () => app.reloadConfig()
  })
  route('GET /api/plugins', 'listPlugins', 'List the plugins', {
    role: 'operator',
    response: json('The plugins', PluginsSchema),
    handler: async (): Promise<Static<typeof PluginsSchema>> => {
      return { plugins: plugins().sort((a, b) => (a.name < b.name ? -1 : 1)) }
    }
  })
}
