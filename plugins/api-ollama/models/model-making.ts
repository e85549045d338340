import type { FastifyPluginAsync } from 'fastify'
import type { ServiceName } from '../../../core/contracts/services.ts'
import type { PluginContext } from '../../../core/plugins/plugin.ts'
import { createBlobStore } from './blob-store.ts'
import { type MakingMount, modelMakingRoutes } from './making-routes.ts'

/** What the making of models needs of other plugins. */
export const MAKING_NEEDS: ServiceName[] = ['storage', 'catalog', 'scheduler', 'downloads', 'conversion']

const SWEEP_INTERVAL = 3_600_000

/** The routes that make models, and the upkeep of what clients sent for it. */
export function modelMaking(context: PluginContext): {
  routes(mount: MakingMount): FastifyPluginAsync
  start(): Promise<void>
  stop(): void
} {
  const storage = context.service('storage')
  const blobs = createBlobStore(context.paths.blobs, storage, context.log)
  let timer: NodeJS.Timeout | undefined
  const deps = {
    storage,
    catalog: context.service('catalog'),
    blobs,
    scheduler: context.service('scheduler'),
    downloads: context.service('downloads'),
    conversion: context.service('conversion')
  }
  const sweep = () =>
    blobs
      .sweep()
      .catch(error => context.log.warn(error, `What clients sent to ${context.paths.blobs} cannot be looked at`))
  return {
    routes: mount => modelMakingRoutes(deps, mount),
    async start() {
      await sweep()
      timer = setInterval(sweep, SWEEP_INTERVAL)
      timer.unref()
    },
    stop: () => clearInterval(timer)
  }
}
