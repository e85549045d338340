import type { Catalog, Model } from '../../../core/contracts/models.ts'
import type { ModelNaming } from '../../../core/contracts/native-api.ts'
import { CorralError } from '../../../core/errors.ts'
import { bareName, type ModelName, NO_OWNER, parseRequestedName } from '../../../core/models/model-name.ts'

/** What Ollama's clients put before names: its registry, and the owner of what has none there. */
const REGISTRY = /^(?:(?:https?:\/\/)?(?:registry\.ollama\.ai|ollama\.com)\/)?(?:library\/)?/i

/** Names as Ollama's clients write and compare them. */
export function ollamaNaming(catalog: Pick<Catalog, 'find' | 'variants' | 'listedNames'>): ModelNaming {
  return {
    // A program that pulled "qwen3:0.6b" looks for that.
    shown: variant => catalog.listedNames(variant).at(-1) ?? shown(variant),
    shownAlias: alias => (alias.includes(':') ? alias : `${alias}:latest`),
    plainDetails: true,
    toCreate: newName,
    toDelete: name => nameToDelete(name, catalog),
    atHub: requested => atHub(requested, catalog)
  }
}

/**
 * The name that records show of what was pulled by no name of Ollama's library: always with a tag, since clients append
 * `:latest` to names without one and compare.
 */
export function shown({ model: { owner, name }, isDefault, label, origin }: Model): string {
  const tag = isDefault && origin.tag === undefined ? 'latest' : label
  return owner.toLowerCase() === NO_OWNER ? `${name}:${tag}` : `${owner}/${name}:${tag}`
}

/**
 * The name under which a new model is stored: without an owner it is the default one's.
 * @throws CorralError `invalid_model_name`
 */
export function newName(requested: unknown): ModelName {
  const name = parseRequestedName(requested)
  return { ...name, owner: name.owner ?? NO_OWNER }
}

/**
 * What a deletion means: no more than the one model that records show under this name. There may be nothing but a pull
 * of it.
 * @throws CorralError `model_not_found` where a name without a tag only finds what was made under one
 */
function nameToDelete(name: ModelName, catalog: Pick<Catalog, 'variants'>): ModelName {
  const [first] = catalog.variants(name)
  if (name.variant !== undefined || !first) return name
  if (first.origin.tag === undefined) return first.model
  const message = `There is no model "${bareName(name)}:latest" here, only ${shown(first)}.`
  throw new CorralError('model_not_found', message, { param: 'model' })
}

/** The name that a pull sends to hubs; undefined when the model is here and came from no hub. */
function atHub(requested: string, catalog: Pick<Catalog, 'find'>): string | undefined {
  const text = requested.trim()
  const present = storedUnder(text, catalog)
  return present && present.origin.kind !== 'hub' ? undefined : text.replace(REGISTRY, '')
}

/** The model that the text of a pull names, if any; what is not a plain name (an address) names none. */
function storedUnder(text: string, catalog: Pick<Catalog, 'find'>): Model | undefined {
  try {
    return catalog.find(parseRequestedName(text))
  } catch (error) {
    if (error instanceof CorralError) return undefined
    throw error
  }
}
