import type { Access } from './access.ts'
import type { Adoption } from './adoption.ts'
import type { Runtimes } from './builds.ts'
import type { Conversion } from './conversion.ts'
import type { HardwareService } from './hardware.ts'
import type { NativeApi } from './native-api.ts'

declare module './services.ts' {
  interface Services {
    hardware: HardwareService
    runtimes: Runtimes
    conversion: Conversion
    adoption: Adoption
    access: Access
    nativeApi: NativeApi
  }
}
