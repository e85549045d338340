import type { CoreConfig } from '../config/core-schema.ts'
import type { AnswerControls, EngineFields, Engines, TokenUsage } from '../contracts/engines.ts'
import type { Hooks } from '../contracts/hooks.ts'
import type { Lease, LeaseRequest, Scheduler } from '../contracts/leases.ts'
import type { Catalog, Model } from '../contracts/models.ts'
import type { RequestedName } from '../models/model-name.ts'
import type { OverflowPolicy } from '../models/options.ts'
import type { ContextGrowth } from './grow-context.ts'

export interface AnswerDependencies {
  catalog: Catalog
  config: CoreConfig
  scheduler: Scheduler
  engines: Pick<Engines, 'providerOf'>
  hooks: Hooks
  surface: string
  /** Whether options may also be at the top level of a request, not only in `options`. */
  optionsAtTop?: boolean
}

/** An API's request to a model, in OpenAI's format. */
export interface Question {
  operation: 'chat' | 'completion' | 'transcribe'
  /** Absent to only load the model. */
  body?: EngineFields
  lease: ModelLease
  variant: Model
  /** How to handle a conversation that is longer than the context. */
  overflow: OverflowPolicy
  whole?: boolean
  countEach?: boolean
  stopText?: boolean
  /** Whether the API returns the fields of llama-server's own API (`Delta.native`). */
  native?: boolean
  controlled?(controls: AnswerControls): void
  growth?: ContextGrowth | undefined
  used?(usage: TokenUsage, choice: number): void
  /** Called with the lease before the engine is asked. @throws CorralError if the engine cannot answer */
  check?(lease: Lease): void
}

export type ModelLease = Omit<LeaseRequest, 'model' | 'signal' | 'onProgress' | keyof CallerLease> & {
  model: RequestedName
}

export type CallerLease = Pick<
  LeaseRequest,
  'turn' | 'owner' | 'bounds' | 'idle' | 'session' | 'onClamped' | 'onGrown' | 'onUnenforcedSchema'
>
