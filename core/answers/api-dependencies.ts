import type { Scheduler } from '../contracts/leases.ts'
import type { Catalog } from '../contracts/models.ts'
import type { PluginContext } from '../plugins/plugin.ts'
import { parseDuration } from '../system/duration.ts'
import type { Answers } from './question.ts'

export interface ApiDependencies {
  catalog: Catalog
  scheduler: Scheduler
  answers: Answers
  /** Milliseconds of silence after which a waiting stream sends a heartbeat. */
  heartbeat(): number
}

/** The dependencies of an API's routes. Its plugin needs `catalog`, `scheduler` and `engines`. */
export function apiDependencies(context: PluginContext, heartbeat: () => string | number): ApiDependencies {
  return {
    catalog: context.service('catalog'),
    scheduler: context.service('scheduler'),
    answers: context.answers({ optionsAtTop: true }),
    heartbeat: () => parseDuration(heartbeat())!
  }
}
