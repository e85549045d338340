import { createHash } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import type { BroughtModel, Catalog, KnownNames, Model, ModelSource } from '../../../core/contracts/models.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import { errorMessage } from '../../../core/errors.ts'
import { isAllowed } from '../../../core/models/allowed-models.ts'
import {
  formatModelName,
  type ModelName,
  modelKey,
  NO_OWNER,
  parseModelName,
  parseRequestedName
} from '../../../core/models/model-name.ts'
import { addTo } from '../../../core/system/collections.ts'
import { variantNamed } from './manifest.ts'
import { variantNames } from './model-index.ts'
import type { ModelStore } from './model-store.ts'
import { type Aliases, createNameResolver } from './short-names.ts'

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

/** Lists the stored models, then the models of plugins. `short-names.ts` resolves names. */
export function createCatalog(
  storage: Pick<ModelStore, 'list' | 'variants' | 'namesakes'>,
  aliases: () => Aliases,
  log: Pick<FastifyBaseLogger, 'error'>
): Catalog {
  const sources: ModelSource[] = []
  const knownNames: KnownNames[] = []
  const listings: (() => ReadonlyMap<string, readonly string[]>)[] = []
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
    ...createNameResolver({ variants, namesakes }, aliases, knownNames, {
      list: () => catalog.list(),
      aliases: allowed => catalog.aliases(allowed)
    }),
    aliases(allowed) {
      const configured = [...aliases()].flatMap(([key, { alias, target }]) => {
        const name = key.includes('/') ? parseModelName(alias) : { owner: NO_OWNER, name: alias }
        const model = variantNamed(variants(target), target)
        const isShown = model && (isAllowed(allowed, model) || isAllowed(allowed, { key }))
        return isShown && variants(name).length === 0 ? [{ alias, model }] : []
      })
      const keys = new Set(listings.flatMap(listed => [...listed().keys()]))
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
      const names = [imported, ...listings.map(listed => listed().get(key) ?? [])].flat()
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
    addNames(names, listed) {
      const removes = [addTo(knownNames, names), ...(listed ? [addTo(listings, listed)] : [])]
      return () => {
        for (const remove of removes) remove()
      }
    }
  }
  return catalog
}
