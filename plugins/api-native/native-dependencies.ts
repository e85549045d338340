import type { AnswerDependencies } from '../../core/answers/pipeline.ts'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import type { Runtimes } from '../../core/contracts/builds.ts'
import type { Conversion } from '../../core/contracts/conversion.ts'
import type { Downloads } from '../../core/contracts/downloads.ts'
import type { Engines } from '../../core/contracts/engines.ts'
import type { Adoption } from '../../core/contracts/found-models.ts'
import type { Catalog, Model } from '../../core/contracts/models.ts'
import type { ModelNaming } from '../../core/contracts/native-api.ts'
import type { Storage } from '../../core/contracts/storage.ts'
import type { NativeStreams } from './native-streams.ts'

/** What the native API works with, wherever it is mounted. */
export interface NativeDependencies extends AnswerDependencies {
  engines: Engines
  storage: Storage
  catalog: Catalog
  runtimes: Runtimes
  downloads: Downloads
  adoption: Adoption
  conversion: Conversion
  config: Readonly<CoreConfig>
  negotiate: boolean
  /** Milliseconds. */
  heartbeat: number
}

/** The same for one mount point, which has its own default framing and ways with names. */
export interface MountedDependencies extends NativeDependencies {
  streams: NativeStreams
  naming: ModelNaming
  modelfile(variant: Model): string
}
