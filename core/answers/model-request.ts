import type { CoreConfig } from '../config/core-schema.ts'
import { settingsFor } from '../config/model-settings.ts'
import type { Caller } from '../contracts/callers.ts'
import type { EngineMode } from '../contracts/engines.ts'
import type { Catalog, Model, ModelDefaults } from '../contracts/models.ts'
import { catalogFor } from '../models/allowed-models.ts'
import { parseRequestedName } from '../models/model-name.ts'
import { isOwnOption, type ParsedOptions, parseKeepAlive, parseRequestOptions } from '../models/options.ts'
import type { PluginContext } from '../plugins/plugin.ts'
import { merged } from '../system/collections.ts'
import { parseDuration } from '../system/duration.ts'
import type { AnswerDependencies } from './question.ts'

export interface ApiDependencies extends AnswerDependencies {
  catalog: Catalog
  config: CoreConfig
  /** Milliseconds of silence after which a waiting stream sends a heartbeat. */
  heartbeat(): number
}

/** The dependencies of an API's routes. Its plugin needs `catalog`, `scheduler` and `engines`. */
export function apiDependencies(
  context: PluginContext,
  surface: string,
  heartbeat: () => string | number
): ApiDependencies {
  return {
    catalog: context.service('catalog'),
    scheduler: context.service('scheduler'),
    engines: context.service('engines'),
    hooks: context.hooks,
    config: context.config,
    surface,
    optionsAtTop: true,
    heartbeat: () => parseDuration(heartbeat())!
  }
}

export type ModelRequest = ReturnType<typeof readModelRequest>

/** Reads `model`, options and `keep_alive`. @throws CorralError `model_not_found`, `forbidden_model`, … */
export function readModelRequest(
  { catalog, config }: Pick<ApiDependencies, 'catalog' | 'config'>,
  body: Record<string, unknown>,
  caller: Pick<Caller, 'models'>
) {
  const requested = body.model ?? body.name ?? (config.default_model || undefined)
  const model = parseRequestedName(requested)
  const options = parseRequestOptions(body)
  const keepAlive = parseKeepAlive(body.keep_alive)
  const variant = catalogFor(catalog, caller).get(model)
  const settings = settingsFor(config, variant)
  return {
    /** As the client wrote it. */
    requested: requested as string,
    variant,
    settings,
    options,
    sampling: merged<Record<string, unknown>, Record<string, unknown>>(settings.sampling, options.sampling),
    overflow: options.overflow ?? settings.overflow,
    lease: { model, options: options.load, keepAlive }
  }
}

/** The body for the engine: its options and other fields without `own` ones. `null` counts as absent. */
export function passedFields(
  body: Record<string, unknown>,
  { sampling }: ParsedOptions,
  own: readonly string[]
): Record<string, unknown> {
  const fields: Record<string, unknown> = {}
  for (const name in sampling) if (!own.includes(name)) fields[name] = sampling[name]
  for (const name in body) {
    const value = body[name]
    if (value !== null && !isOwnOption(name) && !own.includes(name)) fields[name] = value
  }
  return fields
}

/** Returns the mode in which a model is loaded if the request implies none. */
export function anyMode({ metadata: { capabilities } }: Model): EngineMode {
  if (capabilities.includes('completion')) return 'chat'
  return capabilities.includes('rerank') ? 'rerank' : 'embedding'
}

interface Message {
  role?: unknown
}

const isSystem = ({ role }: Message) => role === 'system' || role === 'developer'

/** The system message, then the model's example messages, then the request's, with the engine's roles. */
export function withModelDefaults<T extends Message>(
  messages: readonly T[],
  defaults: ModelDefaults | undefined
): (T | { role: string; content: string })[] {
  if (!defaults?.system && !defaults?.messages?.length) return [...messages]
  const hasSystem = messages.some(isSystem)
  const begin = messages.findIndex(message => !isSystem(message))
  const head = messages.slice(0, begin === -1 ? messages.length : begin)
  // A system message in the request overrides the model's.
  const examples = (defaults.messages ?? []).filter(message => !hasSystem || !isSystem(message))
  const system = defaults.system && !hasSystem && !examples.some(isSystem)
  return [
    ...(system ? [{ role: 'system', content: defaults.system! }] : []),
    ...head,
    ...examples,
    ...messages.slice(head.length)
  ]
}
