import type { CoreConfig, ModelSettings } from './config/core-schema.ts'
import { parseDuration } from './duration.ts'
import { type LoadOptions, parseOptions } from './options.ts'
import type { StoredVariant } from './services.ts'

/** How tokens are guessed ahead. */
export type Speculation =
  | { kind: 'ngram' }
  | {
      kind: 'draft'
      /** Absolute path of its (first) model file once an engine is started with it; before that as `config.yaml` has it. */
      model: string
      maxTokens?: number
      minTokens?: number
      minProbability?: number
      gpuLayers?: number
    }

/** How a model's engines are started, beyond its load options. */
export interface EngineSettings {
  /** Kind of build or id of an installed one. */
  runtime?: string
  /** Flags of llama-server, after corral's own. */
  arguments: readonly string[]
  environment: Readonly<Record<string, string>>
  speculation?: Speculation
  /** Absolute paths. */
  loras: readonly { path: string; scale: number }[]
  /** Absolute path; null loads none; absent leaves the model's own. */
  projector?: string | null
}

/** What `config.yaml` says about one model, its own section laid over the server's defaults. */
export interface EffectiveSettings {
  load: LoadOptions
  /** Sent with each request that gives none of its own. */
  sampling: Record<string, unknown>
  /** Milliseconds; undefined where only the scheduler's default holds. */
  keepAlive: number | undefined
  pin: boolean
  preload: boolean
  /** Models that share one are never in memory together; lower case. */
  groups: readonly string[]
  /** Most requests answered at once; undefined is as many as there are slots. */
  maxConcurrent: number | undefined
  engine: EngineSettings
}

/** The settings of a variant: its tagged section over the bare one over `defaults`. Names ignore case. */
export function settingsFor(config: CoreConfig, variant: StoredVariant): EffectiveSettings {
  const bare = `${variant.model.owner}/${variant.model.name}`.toLowerCase()
  const sections: ModelSettings[] = []
  for (const wanted of [bare, variant.key]) {
    const entry = Object.entries(config.models).find(([name]) => name.toLowerCase() === wanted)
    if (entry) sections.push(entry[1])
  }
  const server = parseOptions(config.defaults)
  const settings: EffectiveSettings = {
    load: server.load as LoadOptions,
    sampling: server.sampling,
    keepAlive: undefined,
    pin: false,
    preload: false,
    groups: [],
    maxConcurrent: undefined,
    engine: { arguments: [], environment: {}, loras: [] }
  }
  for (const section of sections) {
    const own = parseOptions(section.options)
    settings.load = { ...settings.load, ...own.load }
    settings.sampling = { ...settings.sampling, ...own.sampling }
    if (section.keep_alive !== undefined) settings.keepAlive = parseDuration(section.keep_alive)
    if (section.pin !== undefined) settings.pin = section.pin
  }
  return settings
}
