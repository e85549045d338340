import { Type } from 'typebox'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { fileRoutes } from './routes.ts'

export default definePlugin({
  name: 'api-files',
  api: 1,
  description: "The models' files under /api/files, from which other corrals pull",
  optional: true,
  needs: ['storage', 'catalog'],
  options: Type.Object({}, { additionalProperties: false }),
  setup(context) {
    const routes = fileRoutes(context.service('storage'), context.service('catalog'))
    return { routes: async app => void (await app.register(routes, { prefix: '/api/files' })) }
  }
})
