import { CoreConfigSchema } from './core-schema.ts'
import type { LoadedConfig } from './load.ts'

/**
 * The current configuration of a running server. Code that keeps a reference to `view` sees the current settings each
 * time it reads them. The groups are replaced as a whole, and their values are frozen.
 */
export class LiveConfig {
  #current: LoadedConfig
  readonly view: LoadedConfig

  constructor(config: LoadedConfig) {
    this.#current = config
    const now = () => this.#current
    const core = Object.defineProperties(
      {},
      Object.fromEntries(
        (Object.keys(CoreConfigSchema.properties) as (keyof LoadedConfig['core'])[]).map(name => [
          name,
          { enumerable: true, get: () => now().core[name] }
        ])
      )
    ) as LoadedConfig['core']
    this.view = {
      core: Object.freeze(core),
      get sections() {
        return now().sections
      },
      // A server's folders do not change while it runs.
      paths: config.paths,
      get file() {
        return now().file
      },
      get origins() {
        return now().origins
      },
      get overridden() {
        return now().overridden
      },
      get unknown() {
        return now().unknown
      }
    }
  }

  /** A snapshot of the current configuration. */
  get current(): LoadedConfig {
    return this.#current
  }

  replace(config: LoadedConfig): void {
    this.#current = config
  }
}
