import { Type } from 'typebox'
import { Duration } from '../../core/config/core-schema.ts'
import { parseDuration } from '../../core/duration.ts'
import { definePlugin } from '../../core/plugin.ts'
import { createScheduler } from './scheduler.ts'

export default definePlugin({
  name: 'scheduler',
  api: 1,
  description: 'Decides which models are in memory',
  offers: ['scheduler'],
  needs: ['storage', 'runtimes', 'conversion'],
  options: Type.Object(
    {
      keep_alive: Duration({
        default: '5m',
        description: 'How long a model stays loaded without requests; negative is for ever'
      }),
      max_loaded_models: Type.Integer({ default: 3, minimum: 1, description: 'Most models in memory at once' }),
      max_queue: Type.Integer({
        default: 512,
        minimum: 0,
        description: 'Most requests that wait for one model; more get 503 queue_full'
      })
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const keepAlive = parseDuration(options.keep_alive)!
    const scheduler = createScheduler({
      storage: context.service('storage'),
      runtimes: context.service('runtimes'),
      conversion: context.service('conversion'),
      config: context.config,
      limits: {
        maxLoaded: options.max_loaded_models,
        maxQueue: options.max_queue,
        keepAlive: keepAlive < 0 ? Number.POSITIVE_INFINITY : keepAlive
      },
      log: context.log
    })
    return {
      services: { scheduler },
      stop: () => scheduler.close(parseDuration(context.config.shutdown_grace)!)
    }
  }
})
