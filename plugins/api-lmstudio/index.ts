import { Type } from 'typebox'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { AnswerFacts } from './answer-facts.ts'
import { lmStudioRoutes } from './routes.ts'

export default definePlugin({
  name: 'api-lmstudio',
  api: 1,
  description: "LM Studio's REST API under /api/v0: models with their states, answers with their speed",
  needs: ['catalog', 'scheduler', 'runtimes'],
  optional: true,
  options: Type.Object({}, { additionalProperties: false, restart: true }),
  setup(context) {
    const scheduler = context.service('scheduler')
    const facts = new AnswerFacts({ scheduler, runtimes: context.service('runtimes') })
    const deps = { catalog: context.service('catalog'), scheduler, config: context.config }
    return {
      on: {
        request: request => facts.begin(request),
        event: (delta, request) => facts.note(delta, request),
        eventsOf: request => facts.wantedFor(request)
      },
      routes: async app => {
        await app.register(
          lmStudioRoutes(deps, request => facts.mark(request)),
          { prefix: '/api/v0' }
        )
      }
    }
  }
})
