import type { IncomingMessage } from 'node:http'
import type { Runtimes } from './builds.ts'
import type { Conversion } from './conversion.ts'
import type { Adoption } from './found-models.ts'
import type { HardwareService } from './hardware.ts'
import type { NativeApi } from './native-api.ts'

/** Who may call. Which address the server itself listens on it knows; other listeners have theirs checked. */
export interface Access {
  /**
   * Checks another address to listen on, as the server's own is checked.
   * @param setting the path of the setting that names it
   * @returns called with each request that comes by it before any route sees it
   * @throws ConfigError when everybody in the network could use the server and nobody has said that they may
   */
  admit(address: { host: string; port: number }, setting: string): (request: IncomingMessage) => void
}

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
