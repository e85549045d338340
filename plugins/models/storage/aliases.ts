import type { CoreConfig } from '../../../core/config/core-schema.ts'
import { type ModelName, modelKey, parseModelName, parseRequestedName } from '../../../core/models/model-name.ts'

/** The aliases from `config.yaml`, by alias in lower case. The catalog decides when an alias applies. */
export type Aliases = ReadonlyMap<string, { alias: string; target: ModelName }>

/** Returns a function that gives the current aliases. It rebuilds the table only when the configuration has changed. */
export function currentAliases(models: () => CoreConfig['models']): () => Aliases {
  let known = { of: models(), aliases: aliasTable(models()) }
  return () => {
    const of = models()
    if (of !== known.of) known = { of, aliases: aliasTable(of) }
    return known.aliases
  }
}

export function aliasTable(models: CoreConfig['models']): Aliases {
  const aliases = new Map<string, { alias: string; target: ModelName }>()
  for (const [name, settings] of Object.entries(models)) {
    for (const alias of settings.aliases ?? []) {
      aliases.set(modelKey(parseRequestedName(alias)), { alias, target: parseModelName(name) })
    }
  }
  return aliases
}
