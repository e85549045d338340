import type { CoreConfig } from '../../../core/config/core-schema.ts'
import type { Catalog, KnownNames, Model } from '../../../core/contracts/models.ts'
import { isAllowed, requireAllowed } from '../../../core/models/allowed-models.ts'
import {
  formatModelName,
  type ModelName,
  modelKey,
  NO_OWNER,
  parseModelName,
  parseRequestedName,
  type RequestedName
} from '../../../core/models/model-name.ts'
import { variantNamed } from './manifest.ts'
import { aliasOfMissingModel, ambiguousName, modelNotFound } from './refusals.ts'
import { similarNames } from './similar-names.ts'

/** The aliases from `config.yaml`, by alias in lower case. The catalog decides when an alias applies. */
export type Aliases = ReadonlyMap<string, { alias: string; target: ModelName }>

/** Returns a function for the current aliases, which rebuilds the table when the configuration changes. */
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

/**
 * Decides what a name means, short names and aliases included, for every API and command:
 *
 * 1. A name with an owner: the model of that name, otherwise the model that has it as an alias.
 * 2. A short name: the model stored without an owner, otherwise the model that has it as an alias, otherwise the only
 *    model of that name and variant under any owner, otherwise the model that a plugin knows by that name.
 *
 * A model that the caller may not use does not exist for that caller. Only a name with an owner is refused as
 * forbidden, whether or not the model exists, so callers cannot discover other models.
 */
export function createNameResolver(
  { variants, namesakes }: Pick<Catalog, 'variants'> & { namesakes(short: string): Model[][] },
  aliases: () => Aliases,
  knownNames: readonly KnownNames[],
  shown: Pick<Catalog, 'list' | 'aliases'>
): Pick<Catalog, 'find' | 'get'> {
  /** Returns the variant behind an alias. A variant named in the request takes precedence over the alias's own. */
  function aliased(name: RequestedName): Model | undefined {
    const target = aliases().get(modelKey(name))?.target
    if (!target) return undefined
    const variant = name.variant ?? target.variant
    // Aliases do not chain.
    return variantNamed(variants(target), variant === undefined ? {} : { variant })
  }

  /** A key allows an alias if it allows the model behind it or the alias itself. */
  function mayUseAlias(name: RequestedName, target: ModelName, allowed: readonly string[] | undefined): boolean {
    const model = aliased(name) ?? { key: formatModelName(target).toLowerCase() }
    return isAllowed(allowed, model) || isAllowed(allowed, { key: formatModelName(name).toLowerCase() })
  }

  /** Returns the models that a short name may mean: more than one if it is ambiguous. */
  function meanings(name: RequestedName, allowed: readonly string[] | undefined): Model[] {
    const own = variantNamed(variants({ ...name, owner: NO_OWNER }), name)
    if (own && isAllowed(allowed, own)) return [own]
    const alias = aliases().get(modelKey(name))
    if (alias && mayUseAlias(name, alias.target, allowed)) return [aliased(name) ?? []].flat()
    const found = namesakes(name.name).flatMap(group => variantNamed(group, name) ?? [])
    const usable = found.filter(model => isAllowed(allowed, model))
    if (usable.length > 0) return usable
    for (const names of knownNames) {
      const full = names(name)
      const known = full && variantNamed(variants(full), full)
      if (known && isAllowed(allowed, known)) return [known]
    }
    return []
  }

  function find(name: RequestedName, allowed?: readonly string[]): Model | undefined {
    if (name.owner === undefined) {
      const [found, ...others] = meanings(name, allowed)
      return others.length === 0 ? found : undefined
    }
    const own = variants(name as ModelName)
    const found = own.length > 0 ? variantNamed(own, name) : aliased(name)
    requireAllowed(allowed, name, found)
    return found
  }

  /** Explains why a name matches no model. */
  function notFound(name: RequestedName, allowed: readonly string[] | undefined): Error {
    if (name.owner === undefined) {
      const several = meanings(name, allowed)
      if (several.length > 1) return ambiguousName(name, several)
    }
    const alias = aliases().get(modelKey(name))
    const groups =
      name.owner === undefined
        ? namesakes(name.name)
        : [variants(name as ModelName), alias ? variants(alias.target) : []]
    const present = groups.map(group => group.filter(model => isAllowed(allowed, model))).filter(({ length }) => length)
    if (present.length === 1 && name.variant !== undefined) return modelNotFound(name, present[0]!)
    if (alias && variants(alias.target).length === 0 && mayUseAlias(name, alias.target, allowed)) {
      return aliasOfMissingModel(name, alias.target)
    }
    const names: string[] = []
    for (const model of shown.list()) if (model.isDefault && isAllowed(allowed, model)) names.push(model.publicName)
    return modelNotFound(name, [], {
      similar: similarNames(name, [...names, ...shown.aliases(allowed).map(({ alias }) => alias)]),
      here: names,
      mayBePulled: name.owner !== undefined || knownNames.some(known => known(name) !== undefined)
    })
  }

  return {
    find,
    get(name, allowed) {
      const found = find(name, allowed)
      if (!found) throw notFound(name, allowed)
      return found
    }
  }
}
