import type { CoreConfig } from '../../../core/config/core-schema.ts'
import { type ModelName, modelKey, parseModelName, parseRequestedName } from '../../../core/models/model-name.ts'

/** The other names of models that `config.yaml` gives, by the name in lower case. */
export type Aliases = ReadonlyMap<string, { alias: string; target: ModelName }>

/** The aliases of the models' sections that are in force whenever it is called. */
export function currentAliases(models: () => CoreConfig['models']): () => Aliases {
  let known = { of: models(), aliases: aliasesOf(models()) }
  return () => {
    const of = models()
    if (of !== known.of) known = { of, aliases: aliasesOf(of) }
    return known.aliases
  }
}

/** The aliases of a configuration. Pure. */
export function aliasesOf(models: CoreConfig['models']): Aliases {
  const aliases = new Map<string, { alias: string; target: ModelName }>()
  for (const [name, settings] of Object.entries(models)) {
    for (const alias of settings.aliases ?? []) {
      aliases.set(modelKey(parseRequestedName(alias)), { alias, target: parseModelName(name) })
    }
  }
  return aliases
}
