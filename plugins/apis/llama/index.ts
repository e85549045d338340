import { Type } from 'typebox'
import { apiDependencies, definePlugin, Timeout } from '../../../core/plugins/public-api.ts'
import { ModelFeed } from './model-feed.ts'
import { llamaRoutes, reroutedErrors } from './routes.ts'

export default definePlugin({
  name: 'api-llama',
  api: 1,
  description: "llama-server's router API, for its clients and its own web page",
  needs: ['catalog', 'scheduler', 'engines', 'downloads', 'stateFeed', 'storage'],
  optional: true,
  options: Type.Object({
    heartbeat: Timeout({ default: '10s', description: 'Silence after which a stream sends its status' })
  }),
  setup(context, options) {
    let { heartbeat } = options
    const api = apiDependencies(context, () => heartbeat)
    const downloads = context.service('downloads')
    const feed = new ModelFeed({ ...api, downloads, stateFeed: context.service('stateFeed') })
    const deps = {
      ...api,
      downloads,
      storage: context.service('storage'),
      feed,
      log: context.log,
      ended: context.signal
    }
    const rerouted = reroutedErrors()
    const look = () => feed.look()
    return {
      hooks: rerouted.hooks,
      on: { modelLoaded: look, modelUnloaded: look, loadFailed: look, pullFinished: ({ model }) => feed.stored(model) },
      routes: async app => llamaRoutes(app, deps, rerouted.mark),
      reload(next: typeof options) {
        heartbeat = next.heartbeat
      }
    }
  }
})
