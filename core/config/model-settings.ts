import type { Budgets, RequestBounds } from '../contracts/callers.ts'
import type { RunningModel } from '../contracts/leases.ts'
import type { Model } from '../contracts/models.ts'
import type { LoadOptions } from '../models/load-options.ts'
import { type OverflowPolicy, parseOptions } from '../models/options.ts'
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
  /** Flags of the engine, after corral's own. */
  arguments: readonly string[]
  environment: Readonly<Record<string, string>>
  speculation: Speculation
  /** Absolute paths. */
  loras: readonly { path: string; scale: number }[]
  /** Absolute path; null loads none; absent leaves the model's own. */
  projector?: string | null
  /** Machines that hold layers of it too: `host:port` of each, and whether they may be anywhere. */
  rpc?: { workers: readonly string[]; insecure: boolean }
}

export type TemplateSettings = Pick<EngineSettings, 'arguments' | 'environment'>

/** Whether `config.yaml` gives a model another chat template than its own. */
export function setsTemplate({ arguments: flags, environment }: TemplateSettings): boolean {
  return [...flags, ...Object.keys(environment)].some(each => /chat.template/i.test(each))
}

/** What `config.yaml` says about one model: its own section over the server's defaults. */
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
  /** At how many members of a cluster it is in memory: what it says of that; a `max` of 0 is no limit. */
  replicas: { min?: number; max?: number }
  overflow: OverflowPolicy
  /** What one request may ask for, where its key says nothing else. */
  bounds: RequestBounds
  /** What each client may take of it in time, beside what it may take of all models. */
  budgets: Budgets
  engine: EngineSettings
}

/** Settings of models, with what they were read from, which is frozen: each request needs them. */
const known = new WeakMap<Model, Pick<CoreConfig, 'models' | 'defaults' | 'limits'> & { settings: EffectiveSettings }>()

/** The settings of the variants that have neither a section nor defaults of their own: most of thousands. */
let common: Parameters<typeof known.set>[1] | undefined

/**
 * The settings of a variant: its tagged section over the bare one, over what it was made with, over `defaults`. Names
 * ignore case.
 */
export function settingsFor({ models, defaults, limits }: CoreConfig, variant: Model): EffectiveSettings {
  const found = known.get(variant)
  if (found?.models === models && found.defaults === defaults && found.limits === limits) return found.settings
  const isCommon = variant.defaults?.options === undefined && sectionsOf({ models }, variant).length === 0
  if (isCommon && common?.models === models && common.defaults === defaults && common.limits === limits) {
    known.set(variant, common)
    return common.settings
  }
  const now = { models, defaults, limits, settings: readSettings({ models, defaults, limits }, variant) }
  known.set(variant, now)
  if (isCommon) common = now
  return now.settings
}

/**
 * The settings of a variant.
 * @param trial a further section, over those of the configuration
 */
export function readSettings(
  config: Pick<CoreConfig, 'models' | 'defaults' | 'limits'>,
  variant: Model,
  trial?: ModelSettings
): EffectiveSettings {
  const sections = [...sectionsOf(config, variant), ...(trial ? [trial] : [])]
  const section: ModelSettings = Object.assign({}, ...sections)
  const limits: Partial<RequestBounds> & Budgets = Object.assign({}, ...sections.map(({ limits }) => limits))
  const layers = [config.defaults, variant.defaults?.options, ...sections.map(({ options }) => options)].map(
    parseOptions
  )
  return {
    load: Object.assign({}, ...layers.map(({ load }) => load)),
    sampling: Object.assign({}, ...layers.map(({ sampling }) => sampling)),
    keepAlive: parseDuration(section.keep_alive),
    pin: section.pin ?? false,
    preload: section.preload ?? false,
    groups: groupsOf(section),
    maxConcurrent: section.max_concurrent,
    replicas: Object.assign({}, ...sections.map(({ replicas }) => replicas)),
    overflow: layers.findLast(({ overflow }) => overflow)?.overflow ?? 'error',
    bounds: { ...config.limits, ...limits },
    budgets: limits,
    engine: engineSettings(section, Object.assign({}, ...sections.map(({ environment }) => environment)))
  }
}

/** Sections by their names in lower case, for the sections as they are in force. */
const named = new WeakMap<CoreConfig['models'], Map<string, ModelSettings>>()

/** The sections of a variant under `models`: the bare name's, then that with the tag. */
function sectionsOf({ models }: Pick<CoreConfig, 'models'>, { model, key }: Model): ModelSettings[] {
  let sections = named.get(models)
  if (!sections) {
    sections = new Map()
    for (const [name, section] of Object.entries(models)) {
      // Of two spellings the first one counts.
      if (!sections.has(name.toLowerCase())) sections.set(name.toLowerCase(), section)
    }
    named.set(models, sections)
  }
  return [`${model.owner}/${model.name}`.toLowerCase(), key].flatMap(wanted => sections.get(wanted) ?? [])
}

/** A worker serves one engine at a time, so that models which share one share a group. */
function groupsOf({ groups = [], rpc = [] }: ModelSettings): string[] {
  return [...groups.map(group => group.toLowerCase()), ...rpc.map(worker => `worker ${worker.toLowerCase()}`)]
}

function engineSettings(section: ModelSettings, environment: Record<string, string>): EngineSettings {
  const { runtime, draft, projector, rpc = [], rpc_insecure: insecure = false } = section
  return {
    ...(runtime !== undefined && { runtime }),
    arguments: section.arguments ?? [],
    environment,
    speculation: {
      ngram: section.ngram ?? false,
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
    loras: section.lora?.map(({ path, scale = 1 }) => ({ path, scale })) ?? [],
    // In the file, an empty path stands for none.
    ...(projector !== undefined && { projector: projector === '' ? null : projector }),
    ...(rpc.length > 0 && { rpc: { workers: rpc, insecure } })
  }
}

/**
 * Tokens of context for a request that names none: those of the engine that runs, else those that the model would be
 * loaded with. No model has more than it was trained for.
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
