import type { FastifyBaseLogger } from 'fastify'
import type { CoreConfig } from '../../../core/config/core-schema.ts'
import type { EngineMode } from '../../../core/contracts/engines.ts'
import type { Hooks } from '../../../core/contracts/hooks.ts'
import type { Catalog, Model } from '../../../core/contracts/models.ts'
import type { Progress } from '../../../core/contracts/progress.ts'
import type { Storage } from '../../../core/contracts/storage.ts'
import type { OpenMap } from '../../../core/system/open-tables.ts'
import type { EngineRecord, PendingRequest } from './engine-record.ts'
import type { EngineRegistry } from './engine-registry.ts'
import type { HostMemory } from './host-memory.ts'
import type { ModelConfiguration } from './model-configuration.ts'
import type { Event, Limits, SchedulerState } from './scheduler-state.ts'

export interface SchedulerDependencies {
  storage: Pick<Storage, 'onRemove'>
  catalog: Catalog
  engines: EngineRegistry
  hostMemory: HostMemory
  config: CoreConfig
  hooks: Pick<Hooks, 'modelLoaded' | 'modelUnloaded' | 'loadFailed' | 'stateChanged'>
  log: FastifyBaseLogger
  limits: Limits
}

/** State and functions that the parts of the scheduler share. Only `decide` changes `state`. */
export interface SchedulerCore extends SchedulerDependencies {
  models: ModelConfiguration
  state: SchedulerState
  records: Map<string, EngineRecord>
  requests: OpenMap<number, PendingRequest>
  getRecord(variant: Model, mode: EngineMode): EngineRecord
  /** Decides about an event and carries the effects out. */
  dispatch(event: Event): void
  /** Reports progress to the requests that wait for an engine. */
  report(record: EngineRecord, progress: Progress): void
}
