import { definePlugin, parseRequestedName } from 'corral/plugin'

const PAGE = `<!doctype html><html lang="en"><meta charset="utf-8"><title>What can models do?</title>
<p>Ask <code>POST /describe-api/describe</code> with the name of a model.</p></html>`

export default definePlugin({
  name: 'describe-api',
  api: 1,
  description: 'An additional API under /describe-api: what models can do, and their answers',
  optional: true,
  needs: ['catalog'],
  setup(context) {
    // All models: stored models and models of plugins.
    const catalog = context.service('catalog')
    return {
      // Shown in a frame by the server's own page, under Server, Plugins.
      web: { title: 'What can models do?', path: '/describe-api/page' },
      routes: async app => {
        // Browsers request pages in frames without a key, so this page contains nothing that needs one.
        app.get('/describe-api/page', { config: { role: 'anyone' }, schema: { hide: true } }, async (_, reply) => {
          reply.type('text/html; charset=utf-8')
          reply.header('content-security-policy', "default-src 'none'; frame-ancestors 'self'")
          return PAGE
        })
        app.post('/describe-api/describe', { schema: { summary: 'Describe a model' } }, async request => {
          const { model } = request.body as { model?: unknown }
          const { publicName, size, metadata } = catalog.get(parseRequestedName(model))
          return { model: publicName, size, capabilities: metadata.capabilities }
        })
        app.post('/describe-api/ask', { schema: { summary: 'Ask a model a question' } }, async (request, reply) => {
          const { model, question } = request.body as { model?: unknown; question?: unknown }
          const messages = [{ role: 'user', content: String(question) }]
          let answer = ''
          // This applies the rules of other APIs: keys, limits, budgets, filters.
          await context.answer(reply, { operation: 'chat', body: { model, messages } }, deltas => {
            for (const { content = '' } of deltas) answer += content
            return undefined
          })
          return { answer }
        })
      }
    }
  }
})
