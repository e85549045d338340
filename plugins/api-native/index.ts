import { Type } from 'typebox'
import { Timeout } from '../../core/config/core-schema.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { parseDuration } from '../../core/system/duration.ts'
import { logRoutes } from './log-routes.ts'
import { createNativeStreams } from './native-streams.ts'
import { pluginsRoute } from './plugins-route.ts'
import { nativeRoutes, rootRoute } from './routes.ts'
import { runtimeRoutes } from './runtime-routes.ts'

export default definePlugin({
  name: 'api-native',
  api: 1,
  description: 'The native API under /api',
  offers: ['nativeApi'],
  needs: ['storage', 'catalog', 'scheduler', 'engines', 'runtimes', 'downloads', 'adoption', 'conversion'],
  options: Type.Object(
    {
      negotiate: Type.Boolean({
        default: true,
        description: 'Heed the Accept header: clients that rule Server-Sent Events out get NDJSON'
      }),
      heartbeat: Timeout({
        default: '10s',
        description: 'Silence after which a waiting stream says what is going on'
      })
    },
    { additionalProperties: false }
  ),
  setup(context, options) {
    const deps = {
      storage: context.service('storage'),
      catalog: context.service('catalog'),
      scheduler: context.service('scheduler'),
      engines: context.service('engines'),
      runtimes: context.service('runtimes'),
      downloads: context.service('downloads'),
      adoption: context.service('adoption'),
      conversion: context.service('conversion'),
      hooks: context.hooks,
      surface: 'api-native',
      config: context.config,
      negotiate: options.negotiate,
      heartbeat: parseDuration(options.heartbeat)!
    }
    return {
      services: {
        nativeApi: {
          routes: mount => nativeRoutes(deps, mount),
          framingOf: (request, defaultFraming) => createNativeStreams({ ...deps, defaultFraming }).framingOf(request)
        }
      },
      routes: async app => {
        await app.register(rootRoute)
        await app.register(nativeRoutes(deps, { defaultFraming: 'sse' }), { prefix: '/api' })
        await app.register(runtimeRoutes(deps), { prefix: '/api' })
        await app.register(logRoutes(deps), { prefix: '/api' })
        await app.register(pluginsRoute(context.plugins), { prefix: '/api' })
      }
    }
  }
})
