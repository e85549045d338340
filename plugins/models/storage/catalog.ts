import { createHash } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import type { CoreConfig } from '../../../core/config/core-schema.ts'
import { nearest } from '../../../core/config/suggestion.ts'
import type { BroughtModel, Catalog, KnownNames, Model, ModelSource } from '../../../core/contracts/models.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import { errorMessage } from '../../../core/errors.ts'
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
import { addTo } from '../../../core/system/collections.ts'
import { variantNamed, variantNames } from './manifest.ts'
import type { ModelStore } from './model-store.ts'
import { aliasOfMissingModel, ambiguousName, modelNotFound } from './refusals.ts'

/** The label of a plugin's model if the plugin gives none. */
const LABEL = 'latest'

function toModel(source: string, brought: BroughtModel, isDefault: boolean, modifiedAt: string): Model {
  const { variant: label = LABEL, ...model } = parseModelName(brought.name)
  const digest = createHash('sha256')
    .update(JSON.stringify([source, brought]))
    .digest('hex')
  return {
    ...variantNames(model, label, isDefault),
    revision: digest.slice(0, 16),
    format: source,
    size: brought.size ?? 0,
    digest: brought.digest ?? digest,
    modifiedAt: brought.modifiedAt ?? modifiedAt,
    origin: { kind: 'plugin', from: source },
    metadata: {
      quantization: '',
      info: {},
      ...brought.metadata,
      ...(brought.contextLength !== undefined && { contextLength: brought.contextLength }),
      capabilities: brought.capabilities
    },
    ...(brought.defaults && { defaults: brought.defaults })
  }
}

/** The name under which Ollama's users know an imported variant, if it differs from the public name. */
function importedName({ origin, model: { owner, name }, label, publicName }: StoredVariant): string | undefined {
  if (origin.kind !== 'import' || origin.tag === undefined) return undefined
  const known = formatModelName({ ...(owner.toLowerCase() !== NO_OWNER && { owner }), name, variant: label })
  return known === publicName ? undefined : known
}

/** A source's models as reported, by `owner/name` and by name alone, in lower case. */
interface SourceIndex {
  /** The list object that the source returned, and a copy of its entries. */
  given: readonly BroughtModel[]
  brought: readonly BroughtModel[]
  byKey: Map<string, Model[]>
  byName: Map<string, Model[][]>
}

const same = (some: readonly unknown[], others: readonly unknown[]) =>
  some.length === others.length && some.every((each, at) => each === others[at])

/**
 * Lists the stored models, then the models of plugins. Resolves names, including short names and aliases, for every API
 * and command:
 *
 * 1. A name with an owner: the model with that name, otherwise the model that has it as an alias.
 * 2. A short name: the model stored without an owner, otherwise the model that has it as an alias, otherwise the only
 *    model with that name and variant under any owner, otherwise the model that a plugin knows by that name.
 *
 * A model that the caller may not use does not exist for that caller. Only a name with an owner is refused as
 * forbidden, whether or not the model exists, so callers cannot discover other models.
 */
export function createCatalog(
  storage: Pick<ModelStore, 'list' | 'variants' | 'namesakes'>,
  aliases: () => Aliases,
  log: Pick<FastifyBaseLogger, 'error'>
): Catalog {
  const sources: ModelSource[] = []
  const knownNames: { names: KnownNames; listed?: () => ReadonlyMap<string, readonly string[]> }[] = []
  const indexes = new WeakMap<ModelSource, SourceIndex>()
  /** Converted models by the plugin's report, since every request compares reports. */
  const known = new WeakMap<BroughtModel, Model>()
  /** The last list. Building one looks at every name, and little changes between two requests. */
  let last: { stored: Model[]; brought: SourceIndex[]; all: Model[] } | undefined
  const startedAt = new Date().toISOString()
  const reported = new Set<string>()

  /** Runs a source's function. Each error is logged once: one plugin's mistake must not hide all models. */
  function attempt<Given>(source: ModelSource, give: () => Given): Given | undefined {
    try {
      return give()
    } catch (error) {
      const message = `The plugin "${source.name}" lists a model that is left out: ${errorMessage(error)}`
      if (!reported.has(message)) log.error(message)
      reported.add(message)
      return undefined
    }
  }

  /** Returns the models of one source. The first model of a name is its default variant. */
  function indexModels(source: ModelSource): SourceIndex {
    const all = attempt(source, () => source.models()) ?? []
    const present = indexes.get(source)
    // A frozen list cannot have changed. This runs for each name of each request.
    if (present?.given === all && Object.isFrozen(all)) return present
    if (present && same(present.brought, all)) {
      present.given = all
      return present
    }
    const index: SourceIndex = { given: all, brought: [...all], byKey: new Map(), byName: new Map() }
    for (const brought of all) {
      const name = attempt(source, () => parseModelName(brought.name))
      if (!name) continue
      const key = modelKey(name)
      let variants = index.byKey.get(key)
      if (!variants) {
        variants = []
        index.byKey.set(key, variants)
        const short = name.name.toLowerCase()
        index.byName.set(short, [...(index.byName.get(short) ?? []), variants])
      }
      const isDefault = variants.length === 0
      let model = known.get(brought)
      if (model?.isDefault !== isDefault) {
        model = toModel(source.name, brought, isDefault, startedAt)
        known.set(brought, model)
      }
      variants.push(model)
    }
    indexes.set(source, index)
    return index
  }

  function variants(name: ModelName): Model[] {
    const stored = storage.variants(name)
    if (stored.length > 0) return stored
    for (const source of sources) {
      const found = indexModels(source).byKey.get(modelKey(name))
      if (found) return found.slice()
    }
    return []
  }

  function namesakes(short: string): Model[][] {
    const groups: Model[][] = storage.namesakes(short)
    if (sources.length === 0) return groups
    const all = new Map(groups.map(group => [modelKey(group[0]!.model), group]))
    for (const source of sources) {
      for (const group of indexModels(source).byName.get(short.toLowerCase()) ?? []) {
        const key = modelKey(group[0]!.model)
        if (!all.has(key)) all.set(key, group)
      }
    }
    return [...all.values()]
  }

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
    for (const { names } of knownNames) {
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
    for (const model of catalog.list()) if (model.isDefault && isAllowed(allowed, model)) names.push(model.publicName)
    return modelNotFound(name, [], {
      similar: similarNames(name, [...names, ...catalog.aliases(allowed).map(({ alias }) => alias)]),
      here: names,
      mayBePulled: name.owner !== undefined || knownNames.some(({ names }) => names(name) !== undefined)
    })
  }

  const catalog: Catalog = {
    list() {
      const stored: Model[] = storage.list()
      const brought = sources.map(indexModels).filter(({ byKey }) => byKey.size > 0)
      if (brought.length === 0) return stored
      if (last && same(last.stored, stored) && same(last.brought, brought)) return last.all.slice()
      const all = stored.slice()
      const names = new Set(stored.map(({ model }) => modelKey(model)))
      for (const { byKey } of brought) {
        for (const [name, models] of byKey) {
          if (names.has(name)) continue
          names.add(name)
          all.push(...models)
        }
      }
      last = { stored, brought, all }
      return all.slice()
    },
    variants,
    find,
    get(name, allowed) {
      const found = find(name, allowed)
      if (!found) throw notFound(name, allowed)
      return found
    },
    aliases(allowed) {
      const configured = [...aliases()].flatMap(([key, { alias, target }]) => {
        const name = key.includes('/') ? parseModelName(alias) : { owner: NO_OWNER, name: alias }
        const model = variantNamed(variants(target), target)
        const isShown = model && (isAllowed(allowed, model) || isAllowed(allowed, { key }))
        return isShown && variants(name).length === 0 ? [{ alias, model }] : []
      })
      const keys = new Set(knownNames.flatMap(({ listed }) => [...(listed?.().keys() ?? [])]))
      for (const variant of storage.list()) if (importedName(variant)) keys.add(variant.key)
      const listed = [...keys].flatMap(key =>
        catalog
          .listedNames({ key }, allowed)
          .map(alias => ({ alias, model: catalog.find(parseRequestedName(alias), allowed)! }))
      )
      return [...configured, ...listed]
    },
    listedNames({ key }, allowed) {
      const name = parseModelName(key)
      const stored = variantNamed(storage.variants(name), name)
      const imported = (stored && importedName(stored)) ?? []
      const names = [imported, ...knownNames.map(({ listed }) => listed?.().get(key) ?? [])].flat()
      // The name may by now mean another model, or none.
      return names.filter(name => catalog.find(parseRequestedName(name), allowed)?.key === key)
    },
    add(source) {
      if (sources.some(({ name }) => name === source.name)) {
        throw new Error(`There is a source of models named "${source.name}" already.`)
      }
      for (const brought of source.models()) {
        const [taken] = variants(parseModelName(brought.name))
        if (!taken) continue
        const owner = taken.origin.kind === 'plugin' ? `"${taken.origin.from}" brings one` : 'there is one on this disk'
        log.error(`The plugin "${source.name}" lists the model "${brought.name}", which is left out: ${owner}.`)
      }
      const remove = addTo(sources, source)
      return () => {
        remove()
        last = undefined
      }
    },
    addNames: (names, listed) => addTo(knownNames, { names, ...(listed && { listed }) })
  }
  return catalog
}

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
