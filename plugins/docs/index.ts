import { Type } from 'typebox'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { docsRoutes, rememberDescribed } from './routes.ts'

export default definePlugin({
  name: 'docs',
  api: 1,
  description: 'The API document under /openapi.json, and a page to read and try it under /docs',
  optional: true,
  options: Type.Object({}, { additionalProperties: false }),
  setup() {
    let described: ReturnType<typeof rememberDescribed>
    return {
      hooks: async app => {
        described = rememberDescribed(app)
      },
      routes: async app => void (await app.register(docsRoutes(described)))
    }
  }
})
