import { definePlugin } from 'corral/plugin'

const event = (name: string, data: object) => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`

/** An API with its own events. corral adds heartbeats, notices, filters, limits, and a retry if the engine dies. */
export default definePlugin({
  name: 'event-api',
  api: 1,
  description: 'An additional API under /event-api, which streams answers as named events',
  optional: true,
  setup: context => ({
    routes: async app => {
      app.post('/event-api/ask', { schema: { summary: 'Ask a model, and get events' } }, async (request, reply) => {
        const { model, question } = request.body as { model?: unknown; question?: unknown }
        const body = { model, messages: [{ role: 'user', content: String(question) }] }
        await context.answer(
          reply,
          { operation: 'chat', body },
          {
            // Called again if the engine dies before anything was sent.
            open() {
              let tokens = 0
              return {
                add: deltas =>
                  deltas
                    .map(({ content, usage }) => {
                      tokens = usage?.completionTokens ?? tokens
                      return content ? event('text', { text: content }) : ''
                    })
                    .join(''),
                end: () => event('end', { tokens })
              }
            },
            // Clients that time out count this event as activity while the model is loaded.
            activity: () => event('waiting', {}),
            // The last event of an answer that fails after it has begun. Earlier failures have a status code.
            failure: ({ code, message }) => event('error', { code, message })
          }
        )
      })
    }
  })
})
