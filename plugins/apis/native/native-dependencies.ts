import type { AnswerDependencies } from '../../../core/answers/question.ts'
import type { CoreConfig } from '../../../core/config/core-schema.ts'
import type { Model } from '../../../core/contracts/models.ts'
import type { ModelNaming } from '../../../core/contracts/native-api.ts'
import type { Services } from '../../../core/contracts/services.ts'
import type { NativeStreams } from './sse-and-ndjson.ts'

type Needed = 'storage' | 'catalog' | 'runtimes' | 'downloads' | 'adoption' | 'conversion'

/** The services and settings of the native routes. Ollama's API has its own set. */
export interface NativeDependencies extends AnswerDependencies, Pick<Services, Needed> {
  engines: Services['engines']
  config: Readonly<CoreConfig>
  streams: NativeStreams
  naming: ModelNaming
  /** See `NativeMount`. */
  truncates: boolean
  givesContext: boolean
  modelfile(variant: Model): string
}
