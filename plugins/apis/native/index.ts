import type { FastifyInstance } from 'fastify'
import { Type } from 'typebox'
import { Timeout } from '../../../core/config/core-schema.ts'
import { type Framing, NATIVE_NAMING, type NativeMount } from '../../../core/contracts/native-api.ts'
import type { Services } from '../../../core/contracts/services.ts'
import type { Drain } from '../../../core/http/draining.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { benchmarkRoutes } from './benchmark-routes.ts'
import { cacheRoutes } from './cache-routes.ts'
import { eventRoutes } from './events/event-routes.ts'
import { StateCollector } from './events/state-collector.ts'
import { SharedStateFeed } from './events/state-feed.ts'
import { historyRoute, recordHistory } from './load-history.ts'
import { logRoutes } from './log-routes.ts'
import { SERVICES } from './native-dependencies.ts'
import { readinessRoutes } from './readiness.ts'
import { nativeRoutes, serverRoutes } from './routes.ts'
import { runtimeRoutes } from './runtime-routes.ts'
import { settingsRoutes } from './settings-routes.ts'
import { NativeStreams } from './sse-and-ndjson.ts'

export default definePlugin({
  name: 'api-native',
  api: 1,
  description: 'The native API under /api',
  offers: ['nativeApi', 'stateFeed'],
  needs: [...SERVICES, 'hardware'],
  options: Type.Object({
    negotiate: Type.Boolean({
      default: true,
      description: 'Respect the Accept header: clients that do not accept Server-Sent Events get NDJSON'
    }),
    heartbeat: Timeout({
      default: '10s',
      description: 'Silence after which a waiting stream sends a heartbeat with its status'
    })
  }),
  setup(context, options) {
    let settings = options
    const streams = (defaultFraming: Framing) => new NativeStreams(defaultFraming, () => settings)
    const services = Object.fromEntries(SERVICES.map(name => [name, context.service(name)])) as Pick<
      Services,
      (typeof SERVICES)[number]
    >
    const answers = context.answers()
    const dependencies = ({ defaultFraming, version: _, ...mount }: NativeMount) => ({
      ...services,
      hooks: context.hooks,
      answers,
      config: context.config,
      streams: streams(defaultFraming),
      naming: NATIVE_NAMING,
      truncates: false,
      givesContext: false,
      modelfile: () => '',
      ...mount
    })
    const native = dependencies({ defaultFraming: 'sse' })
    let drain: Drain | undefined
    const hardware = context.service('hardware')
    const history = recordHistory({ ...services, hardware })
    const feed = new SharedStateFeed(new StateCollector({ ...native, hardware, drain: () => drain }), context.log)
    return {
      services: {
        nativeApi: { routes: mount => app => nativeRoutes(app, dependencies(mount), mount.version), streams },
        stateFeed: feed
      },
      on: {
        stateChanged: topic => feed.touch(topic),
        // Whether a model is pinned is a setting.
        administered: ({ change }) => {
          if (change === 'config_reloaded') feed.touch('model')
        }
      },
      routes: async app => {
        drain = app.drain
        app.addHook('preClose', async () => {
          feed.close()
          history.stop()
        })
        const routes = async (api: FastifyInstance) => {
          eventRoutes(api, feed, native.streams)
          await nativeRoutes(api, native)
          runtimeRoutes(api, native)
          logRoutes(api, native, context.logLevels)
          cacheRoutes(api, native)
          benchmarkRoutes(api, native)
          settingsRoutes(api, native)
          historyRoute(api, history)
        }
        await app.register(routes, { prefix: '/api' })
        serverRoutes(app, context.plugins)
        await app.register(async root => readinessRoutes(root, native))
      },
      reload(next: typeof options) {
        settings = next
      }
    }
  }
})
