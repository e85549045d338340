import type { Caller } from '../contracts/callers.ts'
import type { Catalog, Model, ModelAlias } from '../contracts/models.ts'
import { CorralError } from '../errors.ts'
import { formatModelName, type RequestedName } from './model-name.ts'

/** A key's models: `owner/name` or `owner/name:variant`, with `*` for any characters. Owners may be missing. */
export const MODEL_PATTERN = '^([A-Za-z0-9._*-]+/)?[A-Za-z0-9._*-]+(:[A-Za-z0-9._*-]+)?$'

/** Cache of compiled patterns: a key has the same list with each request. */
const compiled = new WeakMap<readonly string[], RegExp>()

function patternOf(allowed: readonly string[]): RegExp {
  let pattern = compiled.get(allowed)
  if (!pattern) {
    const sources = allowed.map(entry => {
      const source = entry
        .toLowerCase()
        .replace(/[.]/g, '\\.')
        .replace(/:latest$/, '')
      if (source === '*') return '.*'
      const parts = source.replaceAll('*', '[a-z0-9._-]*')
      const owned = source.includes('/') ? parts : `(?:[a-z0-9._-]*/)?${parts}`
      // Without a variant, it matches all variants.
      return source.includes(':') ? owned : `${owned}(:.*)?`
    })
    pattern = new RegExp(`^(?:${sources.join('|')})$`)
    compiled.set(allowed, pattern)
  }
  return pattern
}

/** Whether a list of models allows this one. Without a list all models are allowed. */
export function isAllowed(allowed: readonly string[] | undefined, { key }: Pick<Model, 'key'>): boolean {
  return allowed === undefined || patternOf(allowed).test(key)
}

/**
 * Refuses a model that the caller's key does not allow. Also refuses names of missing models that are not in the key's
 * list. Otherwise a caller could find out which other models exist. An alias in the list is allowed like its model.
 * @param name as it was requested
 * @param model the model with that name
 * @throws CorralError `forbidden_model`
 */
export function requireAllowed(allowed: readonly string[] | undefined, name: RequestedName, model?: Model): void {
  if (allowed === undefined || (model && isAllowed(allowed, model))) return
  const asked = formatModelName(name)
  if (isAllowed(allowed, { key: asked.toLowerCase() })) return
  const message = `Your key may not use the model "${asked}", only ${list(allowed)}. Ask the admin of this server for a key that may.`
  throw new CorralError('forbidden_model', message, { param: 'model' })
}

const list = (allowed: readonly string[]) =>
  allowed.length <= 10 ? allowed.join(', ') : `${allowed.slice(0, 10).join(', ')} and ${allowed.length - 10} more`

export function aliasesByModel(aliases: readonly ModelAlias[]): Map<string, string[]> {
  const names = new Map<string, string[]>()
  for (const { alias, model } of aliases) {
    const own = names.get(model.key)
    if (own) own.push(alias)
    else names.set(model.key, [alias])
  }
  return names
}

/** The rows of a list of models: all models, then all aliases, each with its name. */
export const listedModels = (seen: Pick<VisibleCatalog, 'list' | 'aliases'>): ModelAlias[] => [
  ...seen.list().map(model => ({ alias: model.publicName, model })),
  ...seen.aliases()
]

/** Finds a model by a name, with the alias if the name is one. @throws CorralError as `Catalog.get` */
export function findListed(seen: VisibleCatalog, name: RequestedName): Partial<ModelAlias> & Pick<ModelAlias, 'model'> {
  const model = seen.get(name)
  const text = formatModelName(name).toLowerCase()
  return seen.aliases().find(({ alias }) => alias.toLowerCase() === text) ?? { model }
}

/** The catalog without the methods that change it. */
export type VisibleCatalog = Omit<Catalog, 'add' | 'addNames'>

/** The catalog as a caller may see it: other models are left out of lists, and their names are refused. */
export function catalogFor(catalog: Catalog, { models: allowed }: Pick<Caller, 'models'>): VisibleCatalog {
  if (allowed === undefined) return catalog
  return {
    list: () => catalog.list().filter(model => isAllowed(allowed, model)),
    variants: name => catalog.variants(name).filter(model => isAllowed(allowed, model)),
    find: name => catalog.find(name, allowed),
    get: name => catalog.get(name, allowed),
    aliases: () => catalog.aliases(allowed),
    listedNames: model => catalog.listedNames(model, allowed)
  }
}
