import type { RunningModel } from '../contracts/leases.ts'
import type { Model } from '../contracts/models.ts'
import type { LoadOptions } from '../models/load-options.ts'
import { type OverflowPolicy, type ParsedOptions, parseOptions } from '../models/options.ts'
import { parseDuration } from '../system/duration.ts'
import type { CoreConfig, ModelSettings } from './core-schema.ts'

/** How tokens are guessed ahead. */
interface Speculation {
  /** From what the conversation says already. */
  ngram: boolean
  /** By a small model. */
  draft?: {
    /** `owner/name` with or without a variant. */
    model: string
    /** Absolute path of its (first) model file, once an engine is started with it. */
    modelPath?: string
    maxTokens?: number
    minTokens?: number
    /** 0 to 1: the least sure guess. */
    minProbability?: number
    /** -1 is automatic. */
    gpuLayers?: number
  }
}

/** How a model's engines are started, beyond its load options. */
export interface EngineSettings {
  /** Kind of build or id of an installed one. */
  runtime?: string
  /** Flags of llama-server, after corral's own. */
  arguments: readonly string[]
  environment: Readonly<Record<string, string>>
  speculation: Speculation
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
  overflow: OverflowPolicy
  engine: EngineSettings
}

/** Options as they were read, by the frozen object that they stand in: they are asked for with each request. */
const readOnce = new WeakMap<object, ParsedOptions>()

function optionsOf(given: object): ParsedOptions {
  let read = readOnce.get(given)
  if (!read) {
    read = parseOptions(given)
    readOnce.set(given, read)
  }
  return read
}

/**
 * The settings of a variant: its tagged section over the bare one, over what it was made with, over `defaults`. Names
 * ignore case.
 */
export function settingsFor(config: CoreConfig, variant: Model): EffectiveSettings {
  const bare = `${variant.model.owner}/${variant.model.name}`.toLowerCase()
  const sections: ModelSettings[] = []
  for (const wanted of [bare, variant.key]) {
    const entry = Object.entries(config.models).find(([name]) => name.toLowerCase() === wanted)
    if (entry) sections.push(entry[1])
  }
  const server = optionsOf(config.defaults)
  const made = parseOptions(variant.defaults?.options)
  const settings: EffectiveSettings = {
    load: { ...(server.load as LoadOptions), ...made.load },
    sampling: { ...server.sampling, ...made.sampling },
    keepAlive: undefined,
    pin: false,
    preload: false,
    groups: [],
    maxConcurrent: undefined,
    overflow: made.overflow ?? server.overflow ?? 'error',
    engine: { arguments: [], environment: {}, speculation: { ngram: false }, loras: [] }
  }
  for (const section of sections) {
    const own = parseOptions(section.options)
    settings.load = { ...settings.load, ...own.load }
    settings.sampling = { ...settings.sampling, ...own.sampling }
    settings.overflow = own.overflow ?? settings.overflow
    if (section.keep_alive !== undefined) settings.keepAlive = parseDuration(section.keep_alive)
    settings.pin = section.pin ?? settings.pin
    settings.preload = section.preload ?? settings.preload
    settings.groups = section.groups?.map(group => group.toLowerCase()) ?? settings.groups
    settings.maxConcurrent = section.max_concurrent ?? settings.maxConcurrent
    settings.engine = engineSettings(settings.engine, section)
  }
  return settings
}

/** A section's word on engines over what held before. */
function engineSettings(before: EngineSettings, section: ModelSettings): EngineSettings {
  const { runtime, draft, projector } = section
  return {
    ...(runtime === undefined ? before : { ...before, runtime }),
    arguments: section.arguments ?? before.arguments,
    environment: { ...before.environment, ...section.environment },
    speculation: {
      ...before.speculation,
      ngram: section.ngram ?? before.speculation.ngram,
      ...(draft && {
        draft: {
          model: draft.model,
          maxTokens: draft.max_tokens,
          minTokens: draft.min_tokens,
          minProbability: draft.min_probability,
          gpuLayers: draft.n_gpu_layers
        }
      })
    },
    loras: section.lora?.map(({ path, scale = 1 }) => ({ path, scale })) ?? before.loras,
    // An empty path is the word for none.
    ...(projector !== undefined && { projector: projector === '' ? null : projector })
  }
}

/**
 * Tokens of context that a request has which asks for none of its own: those of the engine that runs, else those that
 * the model would be loaded with. No model has more than it was trained for.
 */
export function contextInForce(
  config: CoreConfig,
  variant: Model,
  running: readonly Pick<RunningModel, 'variant' | 'mode' | 'engine'>[]
): number {
  const own = running.filter(model => model.variant.key === variant.key)
  const engine = (own.find(({ mode }) => mode === 'chat') ?? own[0])?.engine
  const { contextLength = Number.POSITIVE_INFINITY } = variant.metadata
  return engine?.contextSize ?? Math.min(settingsFor(config, variant).load.num_ctx, contextLength)
}
