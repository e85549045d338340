import type { Adoption } from '../../core/adoption.ts'
import type { CoreConfig } from '../../core/config/core-schema.ts'
import type { Conversion } from '../../core/conversion.ts'
import type { Downloads } from '../../core/downloads.ts'
import type { Runtimes } from '../../core/runtimes.ts'
import type { ModelNaming, Scheduler, Storage, StoredVariant } from '../../core/services.ts'
import type { NativeStreams } from './native-streams.ts'

/** What the native API works with, wherever it is mounted. */
export interface NativeDependencies {
  storage: Storage
  scheduler: Scheduler
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
  modelfile(variant: StoredVariant): string
}
