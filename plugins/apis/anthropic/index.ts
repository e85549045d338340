import { Type } from 'typebox'
import { apiDependencies } from '../../../core/answers/model-request.ts'
import { Timeout } from '../../../core/config/core-schema.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { anthropicRoutes } from './routes.ts'

export default definePlugin({
  name: 'api-anthropic',
  api: 1,
  description: "Anthropic's Messages API: /v1/messages, and all of it again under /anthropic/v1",
  needs: ['catalog', 'scheduler', 'engines'],
  optional: true,
  options: Type.Object(
    {
      heartbeat: Timeout({ default: '10s', description: 'Silence after which a waiting stream sends a ping' })
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    let { heartbeat } = options
    return {
      routes: anthropicRoutes(apiDependencies(context, 'api-anthropic', () => heartbeat)),
      reload(next: typeof options) {
        heartbeat = next.heartbeat
      }
    }
  }
})
