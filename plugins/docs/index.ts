import type { FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { rememberDescribed } from './described-routes.ts'
import { docsRoutes } from './routes.ts'

export default definePlugin({
  name: 'docs',
  api: 1,
  description: 'The API document under /openapi.json, and a page to read and try it under /docs',
  optional: true,
  options: Type.Object({}, { additionalProperties: false }),
  setup() {
    // By application: routes are registered on others first, to find out which plugins fail.
    const described = new WeakMap<object, ReturnType<typeof rememberDescribed>>()
    return {
      hooks: async app => void described.set(app.server, rememberDescribed(app)),
      routes: async (app: FastifyInstance) => void (await app.register(docsRoutes(described.get(app.server)!)))
    }
  }
})
