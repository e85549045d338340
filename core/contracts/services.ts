import type { Cluster } from './cluster.ts'
import type { Engines } from './engines.ts'
import type { Downloads } from './hubs.ts'
import type { Scheduler } from './leases.ts'
import type { Catalog } from './models.ts'
import type { Storage } from './storage.ts'

/** The services of plugins, by name. Plugins and `built-in-services.ts` add others by declaration merging. */
export interface Services {
  storage: Storage
  catalog: Catalog
  downloads: Downloads
  scheduler: Scheduler
  engines: Engines
  cluster: Cluster
}
export type ServiceName = keyof Services & string
