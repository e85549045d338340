import type { CoreConfig } from '../../core/config/core-schema.ts'
import { type ModelName, modelKey, parseModelName } from '../../core/models/model-name.ts'

/** The other names of models that `config.yaml` gives, in lower case, and whose they are. Pure. */
export function aliasesOf(models: CoreConfig['models']): ReadonlyMap<string, ModelName> {
  const aliases = new Map<string, ModelName>()
  for (const [name, settings] of Object.entries(models)) {
    for (const alias of settings.aliases ?? []) aliases.set(modelKey(parseModelName(alias)), parseModelName(name))
  }
  return aliases
}

/**
 * The name that a model is stored under, for a name of a request; undefined where the latter is no alias. A variant that
 * the request names goes before the one that the alias stands for. Pure.
 */
export function behindAlias(aliases: ReadonlyMap<string, ModelName>, name: ModelName): ModelName | undefined {
  const target = aliases.get(modelKey(name))
  return target && (name.variant === undefined ? target : { ...target, variant: name.variant })
}
