import type { Access } from './access.ts'
import type { Adoption } from './adoption.ts'
import type { Runtimes } from './builds.ts'
import type { Conversion } from './conversion.ts'
import type { Downloads } from './downloads.ts'
import type { Engines } from './engines.ts'
import type { HardwareService } from './hardware.ts'
import type { NativeApi } from './native-api.ts'
import type { Scheduler } from './scheduler.ts'
import type { Storage } from './storage.ts'

/**
 * The services that plugins offer each other, by the name they are reached under. An outside plugin that offers one of
 * its own extends this interface by declaration merging.
 */
export interface Services {
  storage: Storage
  downloads: Downloads
  hardware: HardwareService
  runtimes: Runtimes
  conversion: Conversion
  scheduler: Scheduler
  engines: Engines
  adoption: Adoption
  access: Access
  nativeApi: NativeApi
}
export type ServiceName = keyof Services & string
