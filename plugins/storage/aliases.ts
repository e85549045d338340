import type { CoreConfig } from '../../core/config/core-schema.ts'
import { type ModelName, modelKey, parseModelName } from '../../core/models/model-name.ts'
import { findLabel } from './manifest.ts'

/** The other names of models that `config.yaml` gives, in lower case, and the names of those models. */
export type Aliases = ReadonlyMap<string, ModelName>

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
  const aliases = new Map<string, ModelName>()
  for (const [name, settings] of Object.entries(models)) {
    for (const alias of settings.aliases ?? []) aliases.set(modelKey(parseModelName(alias)), parseModelName(name))
  }
  return aliases
}

/** The variant that a name means. A model that really has such a name goes before an alias. Pure. */
export function findVariant<Variant extends { label: string }>(
  name: ModelName,
  aliases: Aliases,
  variantsOf: (name: ModelName) => Variant[]
): Variant | undefined {
  const own = variantsOf(name)
  // A name behind an alias is no alias itself.
  const target = own.length === 0 ? aliases.get(modelKey(name)) : undefined
  const variants = target ? variantsOf(target) : own
  // A variant that the request names goes before the one that the alias stands for.
  const label = name.variant ?? target?.variant
  return label === undefined ? variants[0] : findLabel(variants, label)
}
