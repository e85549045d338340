import type { CoreConfig } from '../config/core-schema.ts'
import { settingsFor } from '../config/model-settings.ts'
import type { Caller } from '../contracts/callers.ts'
import type { Engines } from '../contracts/engines.ts'
import type { Hooks } from '../contracts/hooks.ts'
import type { Scheduler } from '../contracts/leases.ts'
import type { Catalog } from '../contracts/models.ts'
import type { ToolHost } from '../contracts/tool-host.ts'
import { catalogFor } from '../models/allowed-models.ts'
import { parseRequestedName } from '../models/model-name.ts'
import { parseKeepAlive, parseRequestOptions } from '../models/options.ts'
import { merged } from '../system/collections.ts'
import type { ApiDependencies } from './api-dependencies.ts'

export interface AnswerDependencies {
  catalog: Catalog
  config: CoreConfig
  scheduler: Scheduler
  engines: Pick<Engines, 'providerOf'>
  hooks: Hooks
  /** The service that runs tools, if there is one. */
  tools?: () => ToolHost | undefined
  surface: string
  /** Whether options may also be at the top level of a request, not only in `options`. */
  optionsAtTop?: boolean
}

/** The dependencies of the APIs that need more of the configuration. */
export interface ConfiguredApi extends ApiDependencies {
  config: CoreConfig
}

export type ModelRequest = ReturnType<typeof readModelRequest>

/** Reads `model`, options and `keep_alive`. @throws CorralError `model_not_found`, `forbidden_model`, … */
export function readModelRequest(
  { catalog, config }: Pick<AnswerDependencies, 'catalog' | 'config'>,
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
