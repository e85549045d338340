import type { Catalog, Model } from '../../../core/contracts/models.ts'
import type { ModelNaming } from '../../../core/contracts/native-api.ts'
import { CorralError } from '../../../core/errors.ts'
import { bareName, type ModelName, NO_OWNER, parseRequestedName } from '../../../core/models/model-name.ts'

/** Prefixes that Ollama's clients put before names: its registry, and the default owner there. */
const REGISTRY = /^(?:(?:https?:\/\/)?(?:registry\.ollama\.ai|ollama\.com)\/)?(?:library\/)?/i

/** Names as Ollama's clients write and compare them. */
export function ollamaNaming(catalog: Pick<Catalog, 'find' | 'variants' | 'listedNames'>): ModelNaming {
  return {
    // A program that pulled "qwen3:0.6b" looks for this name.
    shown: variant => catalog.listedNames(variant).at(-1) ?? displayName(variant),
    shownAlias: alias => (alias.includes(':') ? alias : `${alias}:latest`),
    plainDetails: true,
    toCreate: newName,
    toDelete: name => nameToDelete(name, catalog),
    atHub: requested => atHub(requested, catalog)
  }
}

/**
 * Returns the displayed name of a model that was not pulled by an Ollama library name. It always has a tag, because
 * clients append `:latest` to names without one before they compare.
 */
export function displayName({ model: { owner, name }, isDefault, label, origin }: Model): string {
  const tag = isDefault && origin.tag === undefined ? 'latest' : label
  return owner.toLowerCase() === NO_OWNER ? `${name}:${tag}` : `${owner}/${name}:${tag}`
}

/**
 * Returns the name under which a new model is stored. Without an owner it gets the default owner.
 * @throws CorralError `invalid_model_name`
 */
export function newName(requested: unknown): ModelName {
  const name = parseRequestedName(requested)
  return { ...name, owner: name.owner ?? NO_OWNER }
}

/**
 * Returns the single model to delete: the one displayed under this name, or only its unfinished pull.
 * @throws CorralError `model_not_found` if a name without a tag only matches models that were created under a tag
 */
function nameToDelete(name: ModelName, catalog: Pick<Catalog, 'variants'>): ModelName {
  const [first] = catalog.variants(name)
  if (name.variant !== undefined || !first) return name
  if (first.origin.tag === undefined) return first.model
  const message = `There is no model "${bareName(name)}:latest" here, only ${displayName(first)}.`
  throw new CorralError('model_not_found', message, { param: 'model' })
}

/** Returns the name that a pull sends to the hubs, or undefined if the model is here and did not come from a hub. */
function atHub(requested: string, catalog: Pick<Catalog, 'find'>): string | undefined {
  const text = requested.trim()
  const present = storedUnder(text, catalog)
  return present && present.origin.kind !== 'hub' ? undefined : text.replace(REGISTRY, '')
}

/** Finds the model that the text of a pull names. Texts that are not plain names, such as URLs, match none. */
function storedUnder(text: string, catalog: Pick<Catalog, 'find'>): Model | undefined {
  try {
    return catalog.find(parseRequestedName(text))
  } catch (error) {
    if (error instanceof CorralError) return undefined
    throw error
  }
}
