import type { Answers } from '../../../core/answers/question.ts'
import type { CoreConfig } from '../../../core/config/core-schema.ts'
import type { Hooks } from '../../../core/contracts/hooks.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { ModelNaming } from '../../../core/contracts/native-api.ts'
import type { Services } from '../../../core/contracts/services.ts'
import type { NativeStreams } from './sse-and-ndjson.ts'

export const SERVICES = [
  ...(['storage', 'catalog', 'scheduler', 'engines', 'runtimes', 'downloads', 'adoption', 'conversion'] as const)
]

/** The services and settings of the native routes. Ollama's API has its own set. */
export interface NativeDependencies extends Pick<Services, (typeof SERVICES)[number]> {
  answers: Answers
  hooks: Hooks
  config: Readonly<CoreConfig>
  streams: NativeStreams
  naming: ModelNaming
  /** See `NativeMount`. */
  truncates: boolean
  givesContext: boolean
  modelfile(variant: Model): string
}
