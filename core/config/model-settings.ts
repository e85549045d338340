import { isDeepStrictEqual } from 'node:util'
import type { Budgets, RequestBounds } from '../contracts/callers.ts'
import type { Model } from '../contracts/models.ts'
import { DEFAULT_LOAD_OPTIONS, type LoadOptions } from '../models/load-options.ts'
import { DEFAULT_SAMPLING_OPTIONS, type OverflowPolicy, parseOptions } from '../models/options.ts'
import { parseDuration } from '../system/duration.ts'
import type { CoreConfig, ModelSettings } from './core-schema.ts'

/** How tokens are guessed ahead. The provider decides if nothing is set. */
interface Speculation {
  ngram?: boolean | undefined
  /** Absolute path of a draft model that was made for this model and guesses with its states. */
  companion?: string
  /** Guess with the model's own heads for the tokens after the next one. */
  mtp?: boolean
  /** The small model that guesses, with the absolute path of its (first) file once an engine is started with it. */
  draft?: NonNullable<ModelSettings['draft']> & { modelPath?: string }
}

/** Settings for starting a model's engines, in addition to its load options. */
export interface EngineSettings {
  /** Kind of build or id of an installed one. */
  runtime?: string
  arguments: readonly string[]
  environment: Readonly<Record<string, string>>
  speculation: Speculation
  loras: readonly { path: string; scale: number }[]
  /** Absolute path. If null, no projector is loaded. If absent, the model's own is. */
  projector?: string | null
  /** RPC workers that share its layers: `host:port` of each, and whether public addresses are allowed. */
  rpc?: { workers: readonly string[]; insecure: boolean }
}

export type TemplateSettings = Pick<EngineSettings, 'arguments' | 'environment'>

/** Whether `config.yaml` replaces a model's chat template. */
export function setsTemplate({ arguments: flags, environment }: TemplateSettings): boolean {
  return [...flags, ...Object.keys(environment)].some(each => /chat.template/i.test(each))
}

/** The effective settings of one model: its own section over the server's defaults. */
export interface EffectiveSettings {
  load: LoadOptions
  /** Defaults for options that a request does not set. */
  sampling: Record<string, unknown>
  /** Milliseconds; undefined to use the scheduler's default. */
  keepAlive: number | undefined
  pin: boolean
  preload: boolean
  /** Models that share a group are never in memory at the same time. Lower case. */
  groups: readonly string[]
  /** Maximum concurrent requests; undefined is the number of slots. */
  maxConcurrent: number | undefined
  /** How many nodes of a cluster have it in memory, and which; a `max` of 0 is unlimited. */
  replicas: NonNullable<ModelSettings['replicas']>
  overflow: OverflowPolicy
  /** Tools that corral runs for it: `files`, `search.web_search`. */
  tools: readonly string[]
  /** Whether a longer prompt gets a larger context, because nobody has set one. */
  growsContext: boolean
  /** Limits of one request, unless its key sets others. */
  bounds: RequestBounds
  /** Budgets of each client for this model, in addition to the budgets for all models. */
  budgets: Budgets
  engine: EngineSettings
}

/** Cached settings of models, with the frozen configuration that they were read from: each request needs them. */
const known = new WeakMap<Model, Pick<CoreConfig, 'models' | 'defaults' | 'limits'> & { settings: EffectiveSettings }>()

/** The shared settings of all models without a section or defaults of their own: most of thousands. */
let common: Parameters<typeof known.set>[1] | undefined

/**
 * The settings of a model variant: the section with its tag over the section without a tag, over the defaults that the
 * model was created with, over `defaults`. Names ignore case.
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

/** Reads the settings of a variant. @param trial settings that override the configuration */
export function readSettings(
  config: Pick<CoreConfig, 'models' | 'defaults' | 'limits'>,
  variant: Model,
  trial?: ModelSettings
): EffectiveSettings {
  const sections = [...sectionsOf(config, variant), ...(trial ? [trial] : [])]
  const section: ModelSettings = Object.assign({}, ...sections)
  const limits: Partial<RequestBounds> & Budgets = Object.assign({}, ...sections.map(({ limits }) => limits))
  const { context, ...defaults } = config.defaults
  const layers = [defaults, variant.defaults?.options, ...sections.map(({ options }) => options)].map(parseOptions)
  const [first, ...others] = layers.map(({ load }) => load.num_ctx)
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
    tools: section.tools ?? [],
    growsContext:
      context === 'grow' && first === DEFAULT_LOAD_OPTIONS.num_ctx && others.every(given => given === undefined),
    bounds: { ...config.limits, ...limits },
    budgets: limits,
    engine: engineSettings(section, Object.assign({}, ...sections.map(({ environment }) => environment)))
  }
}

/** A value of an option and its source: corral, `defaults`, the model, or the model's own section. */
export interface OptionLayer {
  value: unknown
  from: 'default' | 'config' | 'model' | 'settings'
}

/** The layers that set each option of a model, the one in force first. */
export function optionLayers(
  config: Pick<CoreConfig, 'models' | 'defaults'>,
  variant: Model
): Record<string, OptionLayer[]> {
  const { context: _, ...defaults } = config.defaults
  const found: Record<string, OptionLayer[]> = {}
  const add = (from: OptionLayer['from'], options: unknown) => {
    const { load, sampling, overflow } = parseOptions(options)
    for (const [name, value] of Object.entries({
      ...load,
      ...sampling,
      ...(overflow && { context_overflow: overflow })
    })) {
      const layers = Object.hasOwn(found, name) ? found[name]! : []
      // The configuration contains all defaults.
      if (from !== 'config' || !isDeepStrictEqual(layers[0]?.value, value)) found[name] = [{ value, from }, ...layers]
    }
  }
  add('default', { ...DEFAULT_LOAD_OPTIONS, ...DEFAULT_SAMPLING_OPTIONS, context_overflow: 'error' })
  add('config', defaults)
  add('model', variant.defaults?.options)
  for (const { options } of sectionsOf(config, variant)) add('settings', options)
  return found
}

/** Sections by their names in lower case, cached for the current configuration. */
const named = new WeakMap<CoreConfig['models'], Map<string, ModelSettings>>()

/** The sections of a variant under `models`: first without the tag, then with it. */
function sectionsOf({ models }: Pick<CoreConfig, 'models'>, { model, key }: Model): ModelSettings[] {
  let sections = named.get(models)
  if (!sections) {
    sections = new Map()
    for (const [name, section] of Object.entries(models)) {
      // The first of two spellings wins.
      if (!sections.has(name.toLowerCase())) sections.set(name.toLowerCase(), section)
    }
    named.set(models, sections)
  }
  return [`${model.owner}/${model.name}`.toLowerCase(), key].flatMap(wanted => sections.get(wanted) ?? [])
}

/** A worker serves one engine at a time, so models that share a worker share a group. */
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
      ...(section.ngram !== undefined && { ngram: section.ngram }),
      ...(draft && { draft })
    },
    loras: section.lora?.map(({ path, scale = 1 }) => ({ path, scale })) ?? [],
    // An empty path in the file means none.
    ...(projector !== undefined && { projector: projector === '' ? null : projector }),
    ...(rpc.length > 0 && { rpc: { workers: rpc, insecure } })
  }
}
