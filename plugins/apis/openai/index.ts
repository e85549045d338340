import { Type } from 'typebox'
import { apiDependencies } from '../../../core/answers/api-dependencies.ts'
import { Bytes, Path, Timeout } from '../../../core/config/core-schema.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseBytes } from '../../../core/system/bytes.ts'
import { StoredResponses } from './responses/stored-responses.ts'
import { cohereRoutes, openaiRoutes } from './routes.ts'

export default definePlugin({
  name: 'api-openai',
  api: 1,
  description: 'The OpenAI API under /v1',
  offers: ['responses'],
  needs: ['catalog', 'scheduler', 'engines'],
  optional: true,
  options: Type.Object({
    heartbeat: Timeout({ default: '10s', description: 'Silence after which a stream sends its status' }),
    stored_responses: Bytes({
      default: '64MiB',
      description: 'Memory for responses that previous_response_id can refer to; 0 stores none',
      restart: true
    }),
    responses_folder: Path({
      default: '',
      restart: true,
      needsTrust: true,
      description:
        'Folder in which they are stored too, which several servers with the same keys may share; empty is only in memory'
    })
  }),
  setup(context, options) {
    let { heartbeat } = options
    const stored = new StoredResponses(
      parseBytes(options.stored_responses)!,
      context.config.limits.stored_responses,
      options.responses_folder,
      context.log
    )
    const deps = { ...apiDependencies(context, () => heartbeat), config: context.config, stored }
    return {
      services: { responses: stored },
      routes: async app => {
        await app.register(api => openaiRoutes(api, deps), { prefix: '/v1' })
        await app.register(async api => cohereRoutes(api, deps), { prefix: '/v2' })
      },
      reload(next: typeof options) {
        heartbeat = next.heartbeat
      }
    }
  }
})
