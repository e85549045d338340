import { Type } from 'typebox'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { AnswerStats } from './answer-stats.ts'
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
    const facts = new AnswerStats({ scheduler, runtimes: context.service('runtimes') })
    const deps = { catalog: context.service('catalog'), scheduler, config: context.config }
    return {
      hooks: async app => {
        app.addHook('preValidation', async ({ raw, body }) => {
          if (!facts.isMarked(raw) || !isObject(body)) return
          readTtl(body)
          // llama-server reports which stop text ended an answer only in its own format.
          if (!raw.url?.startsWith('/v1/embeddings')) body.verbose = true
        })
      },
      on: {
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

/** Renames LM Studio's `ttl`, which is in seconds, to `keep_alive`. */
function readTtl(body: Record<string, unknown>): void {
  const { ttl } = body
  delete body.ttl
  if (ttl !== undefined && ttl !== null) body.keep_alive ??= ttl
}
