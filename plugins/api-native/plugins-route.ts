import type { FastifyPluginAsync } from 'fastify'
import { type Static, Type } from 'typebox'
import { errorResponses, json, nativeErrors } from '../../core/http/response-schemas.ts'
import type { PluginReport } from '../../core/plugins/plugin.ts'

const Names = (description: string) => Type.Array(Type.String(), { description })

const PluginSchema = Type.Object(
  {
    name: Type.String(),
    description: Type.String(),
    api: Type.Integer({ description: 'Version of the plugin contract that it is written for' }),
    path: Type.Optional(Type.String({ description: 'File that it was loaded from; absent for built-in ones' })),
    optional: Type.Boolean({ description: 'The server goes on without it when it fails' }),
    state: Type.Enum(['waiting', 'active', 'disabled', 'failed']),
    reason: Type.Optional(Type.String({ description: 'Why it is disabled or failed' })),
    needs: Names('Services of other plugins that it needs'),
    services: Names('Services that it offers to other plugins'),
    routes: Names('Such as GET /api/tags'),
    hooks: Names('What it sees or changes while the server runs, such as request')
  },
  { title: 'Plugin' }
)
const PluginsSchema = Type.Object({ plugins: Type.Array(PluginSchema) }, { title: 'Plugins' })

const operation = {
  summary: 'List the plugins',
  description: 'Built-in ones and those of the configuration: their states, and what they offer.',
  tags: ['Server'],
  operationId: 'listPlugins',
  response: { 200: json('The plugins', PluginsSchema), ...errorResponses(nativeErrors, [], { body: false }) }
}

/** `GET /plugins` */
export function pluginsRoute(plugins: () => PluginReport[]): FastifyPluginAsync {
  return async app => {
    app.get('/plugins', { schema: operation }, async (): Promise<Static<typeof PluginsSchema>> => {
      return { plugins: plugins().sort((a, b) => (a.name < b.name ? -1 : 1)) }
    })
  }
}
