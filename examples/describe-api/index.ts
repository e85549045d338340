import { definePlugin, parseRequestedName } from 'corral/plugin'

export default definePlugin({
  name: 'describe-api',
  api: 1,
  description: 'An API of our own, under /describe-api',
  optional: true,
  needs: ['catalog'],
  setup(context) {
    // All models: those in storage, and those that plugins bring.
    const catalog = context.service('catalog')
    return {
      routes: async app => {
        app.post('/describe-api/describe', { schema: { summary: 'Describe a model' } }, async request => {
          const { model } = request.body as { model?: unknown }
          const { publicName, size, metadata } = catalog.get(parseRequestedName(model))
          return { model: publicName, size, capabilities: metadata.capabilities }
        })
      }
    }
  }
})
