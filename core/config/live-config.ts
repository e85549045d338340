import { CoreConfigSchema } from './core-schema.ts'
import type { LoadedConfig } from './load.ts'

/**
 * The configuration in force while a server runs. Whoever keeps `view` sees the settings of this moment each time it
 * looks: its groups are replaced as a whole, and what it gives is frozen.
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
      // A server keeps its folders for as long as it runs.
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

  /** The configuration of this moment, which stays as it is. */
  get current(): LoadedConfig {
    return this.#current
  }

  replace(config: LoadedConfig): void {
    this.#current = config
  }
}
