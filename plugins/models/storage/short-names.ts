import type { CoreConfig } from '../../../core/config/core-schema.ts'
import { nearest } from '../../../core/config/suggestion.ts'
import type { Catalog, KnownNames, Model } from '../../../core/contracts/models.ts'
import { isAllowed, requireAllowed } from '../../../core/models/allowed-models.ts'
import { labelFromFileName } from '../../../core/models/gguf-file-name.ts'
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
 * Resolves names, including short names and aliases, for every API and command:
 *
 * 1. A name with an owner: the model with that name, otherwise the model that has it as an alias.
 * 2. A short name: the model stored without an owner, otherwise the model that has it as an alias, otherwise the only
 *    model with that name and variant under any owner, otherwise the model that a plugin knows by that name.
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

/** Maximum names compared letter by letter. That is slow, and requests for missing models are frequent. */
const MAX_COMPARED = 1000
const MAX_SUGGESTIONS = 3

/** Stems by name. They are slow to compute, and each request for a missing model needs the stems of all models. */
const stems = new Map<string, string>()
const MAX_STEMS = 50_000

function cachedStem(full: string): string {
  let stem = stems.get(full)
  if (stem === undefined) {
    if (stems.size >= MAX_STEMS) stems.clear()
    stem = toStem(full.slice(full.indexOf('/') + 1))
    stems.set(full, stem)
  }
  return stem
}

/** Reduces a name to its stem: without "-GGUF", a trailing quantization label, case and punctuation. */
function toStem(name: string): string {
  const bare = name.replace(/[-._]gguf$/i, '')
  const label = labelFromFileName(bare)
  const short = label && bare.toUpperCase().endsWith(label) ? bare.slice(0, -label.length) : bare
  return short.toLowerCase().replace(/[^a-z0-9]/g, '')
}

/** Returns names with the same stem, otherwise names that begin with it, otherwise the nearest one. */
export function similarNames({ owner, name, variant }: RequestedName, names: readonly string[]): string[] {
  // Ollama's tags are part of the name elsewhere: qwen3:8b, Qwen3-8B-GGUF.
  const wanted = new Set([toStem(name), ...(variant === undefined ? [] : [toStem(`${name}-${variant}`)])])
  wanted.delete('')
  const models = names.map(full => ({ full, stem: cachedStem(full) }))
  const isOwners = ({ full }: { full: string }) =>
    owner !== undefined && full.toLowerCase().startsWith(`${owner.toLowerCase()}/`)
  const ownersFirst = (found: typeof models) =>
    [...found].sort((a, b) => Number(isOwners(b)) - Number(isOwners(a))).map(({ full }) => full)
  const equal = ownersFirst(models.filter(({ stem }) => wanted.has(stem)))
  if (equal.length > 0) return equal.slice(0, MAX_SUGGESTIONS)
  const beginning = [...wanted].filter(({ length }) => length >= 4)
  const begun = ownersFirst(models.filter(({ stem }) => beginning.some(begin => stem.startsWith(begin))))
  if (begun.length > 0) return begun.slice(0, MAX_SUGGESTIONS)
  const near = models.slice(0, MAX_COMPARED)
  const byStem = new Map(near.map(({ full, stem }) => [stem, full]))
  const found = nearest(toStem(name), [...byStem.keys()])
  return found === undefined ? [] : [byStem.get(found)!]
}
