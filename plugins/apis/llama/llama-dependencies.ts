import type { FastifyBaseLogger } from 'fastify'
import type { ApiDependencies } from '../../../core/answers/model-request.ts'
import type { Downloads } from '../../../core/contracts/downloads.ts'
import type { Storage } from '../../../core/contracts/storage.ts'
import type { ModelFeed } from './model-feed.ts'

export interface LlamaDependencies extends ApiDependencies {
  downloads: Downloads
  storage: Pick<Storage, 'find' | 'remove'>
  feed: ModelFeed
  log: Pick<FastifyBaseLogger, 'warn'>
  /** Aborted when the server stops. */
  ended: AbortSignal
}
