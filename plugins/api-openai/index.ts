import { Type } from 'typebox'
import { Duration } from '../../core/config/core-schema.ts'
import { parseDuration } from '../../core/duration.ts'
import { definePlugin } from '../../core/plugin.ts'
import { openaiRoutes } from './routes.ts'

export default definePlugin({
  name: 'api-openai',
  api: 1,
  description: 'The hosted-chat API under /v1',
  needs: ['storage', 'scheduler'],
  optional: true,
  options: Type.Object(
    {
      heartbeat: Duration({
        default: '10s',
        description: 'Silence after which a waiting stream says what is going on'
      })
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const deps = {
      storage: context.service('storage'),
      scheduler: context.service('scheduler'),
      config: context.config,
      heartbeat: parseDuration(options.heartbeat)!
    }
    return {
      routes: async app => {
        await app.register(openaiRoutes(deps), { prefix: '/v1' })
      }
    }
  }
})
