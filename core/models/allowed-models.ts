import type { Caller } from '../contracts/callers.ts'
import type { Catalog, Model } from '../contracts/models.ts'
import { CorralError } from '../errors.ts'
import { nameText, type RequestedName } from './model-name.ts'

/**
 * How the models of a key are named: `owner/name` or `owner/name:variant`, where `*` is any characters; `*` is all.
 * Without an owner it is the models of this name, whoever's, and the alias of this name.
 */
export const MODEL_PATTERN = '^([A-Za-z0-9._*-]+/)?[A-Za-z0-9._*-]+(:[A-Za-z0-9._*-]+)?$'

/** Patterns as they were compiled: a key has the same list with each request. */
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
      // Without a variant all of them are meant.
      return source.includes(':') ? owned : `${owned}(:.*)?`
    })
    pattern = new RegExp(`^(?:${sources.join('|')})$`)
    compiled.set(allowed, pattern)
  }
  return pattern
}

/** Whether a list of models names this one. Without a list all models are allowed. */
export function isAllowed(allowed: readonly string[] | undefined, { key }: Pick<Model, 'key'>): boolean {
  return allowed === undefined || patternOf(allowed).test(key)
}

/**
 * Refuses a model that the caller's key does not allow, and names that the key's list does not have where there is no
 * model: nobody learns what there is besides its own. An alias that the list names is allowed as the model is.
 * @param name as it was requested
 * @param model what that name means
 * @throws CorralError `forbidden_model`
 */
export function requireAllowed(allowed: readonly string[] | undefined, name: RequestedName, model?: Model): void {
  if (allowed === undefined || (model && isAllowed(allowed, model))) return
  const asked = nameText(name)
  if (isAllowed(allowed, { key: asked.toLowerCase() })) return
  throw new CorralError(
    'forbidden_model',
    `Your key may not use the model "${asked}", only ${list(allowed)}. Ask the admin of this server for a key that may.`,
    { param: 'model' }
  )
}

const list = (allowed: readonly string[]) =>
  allowed.length <= 10 ? allowed.join(', ') : `${allowed.slice(0, 10).join(', ')} and ${allowed.length - 10} more`

/** What a caller may see of the catalog. */
export type SeenCatalog = Omit<Catalog, 'add' | 'addNames'>

/** The catalog as a caller may see it: lists leave out what is not allowed, and names of it are refused. */
export function catalogFor(catalog: Catalog, { models: allowed }: Pick<Caller, 'models'>): SeenCatalog {
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
