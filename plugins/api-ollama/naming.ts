import type { Catalog, Model } from '../../core/contracts/models.ts'
import type { ModelNaming } from '../../core/contracts/native-api.ts'
import { CorralError } from '../../core/errors.ts'
import { bareName, type ModelName, modelKey, parseModelName } from '../../core/models/model-name.ts'

/** The owner of models whose names have none, as in Ollama. It is not shown. */
export const DEFAULT_OWNER = 'library'

/** What Ollama's clients put before `owner/name`: the hosts that it pulls from. */
const HOST = /^(?:https?:\/\/)?(?:registry\.ollama\.ai|ollama\.com|hf\.co|huggingface\.co)\/(?=[^/]+\/[^/]+$)/i

/** Names as Ollama's clients write and compare them. */
export function ollamaNaming(catalog: Pick<Catalog, 'list' | 'find' | 'variants'>): ModelNaming {
  return {
    parse: asked => existingName(asked, catalog),
    shown,
    toCreate: newName,
    toDelete: asked => nameToDelete(asked, catalog),
    atHub: asked => atHub(asked, catalog)
  }
}

/**
 * The name that records show: with a tag always, since clients append `:latest` to names without one and compare.
 */
export function shown({ model: { owner, name }, isDefault, label, origin }: Model): string {
  const tag = isDefault && origin.tag === undefined ? 'latest' : label
  return owner.toLowerCase() === DEFAULT_OWNER ? `${name}:${tag}` : `${owner}/${name}:${tag}`
}

/**
 * The name under which a new model is stored: without an owner it is the default one's.
 * @throws CorralError `invalid_model_name`
 */
export function newName(asked: unknown): ModelName {
  if (typeof asked !== 'string' || asked === '') return parseModelName(asked)
  const text = asked.replace(HOST, '')
  return parseModelName(text.includes('/') ? text : `${DEFAULT_OWNER}/${text}`)
}

/**
 * The model that a request means. A name without an owner is the default owner's model, else the only one of this name.
 * @throws CorralError `invalid_model_name`, also where several owners have one; `model_not_found` for a name without an
 * owner that nobody has
 */
export function existingName(asked: unknown, catalog: Pick<Catalog, 'list' | 'find' | 'variants'>): ModelName {
  const name = newName(asked)
  if (name.owner !== DEFAULT_OWNER || String(asked).includes('/')) return name
  if (catalog.variants(name).length > 0 || catalog.find(name)) return name
  const owners = new Map<string, ModelName>()
  for (const { model } of catalog.list()) {
    if (model.name.toLowerCase() === name.name.toLowerCase()) owners.set(modelKey(model), model)
  }
  const [found, ...others] = owners.values()
  if (!found) {
    throw new CorralError(
      'model_not_found',
      `There is no model named "${name.name}" here, whoever its owner. "corral list" shows what there is.`,
      { param: 'model' }
    )
  }
  if (others.length > 0) {
    throw new CorralError(
      'invalid_model_name',
      `"${name.name}" may be ${[found, ...others].map(bareName).sort().join(' or ')}. Send one of these names.`,
      { param: 'model' }
    )
  }
  const { owner, name: stored } = found
  return name.variant === undefined ? { owner, name: stored } : { owner, name: stored, variant: name.variant }
}

/**
 * What a deletion means: no more than the one model that records show under this name. There may be nothing but a pull
 * of it.
 * @throws CorralError as `existingName`; `model_not_found` where a name without a tag only finds what was made under one
 */
function nameToDelete(asked: string, catalog: Pick<Catalog, 'list' | 'find' | 'variants'>): ModelName {
  const name = existingName(asked, catalog)
  const [first] = catalog.variants(name)
  if (name.variant !== undefined || !first) return name
  if (first.origin.tag === undefined) return first.model
  throw new CorralError('model_not_found', `There is no model "${bareName(name)}:latest" here, only ${shown(first)}.`, {
    param: 'model'
  })
}

/** What a pull asks hubs for; undefined when the model is here and came from none of them. */
function atHub(asked: string, catalog: Pick<Catalog, 'list' | 'find' | 'variants'>): string | undefined {
  const text = asked.trim().replace(/^(?:https?:\/\/)?(?:registry\.ollama\.ai|ollama\.com)\//i, '')
  const unowned = !text.includes('/') || text.toLowerCase().startsWith(`${DEFAULT_OWNER}/`)
  const present = storedUnder(text, catalog)
  if (present) return present.origin.kind === 'hub' ? (unowned ? bareWithTag(present) : text) : undefined
  if (!unowned) return text
  throw new CorralError(
    'repo_not_found',
    `${JSON.stringify(shortened(asked))} is not here, and corral does not pull from Ollama's registry: it pulls models ` +
      'from hubs by <owner>/<name>, for example hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M.',
    { param: 'model' }
  )
}

/** The variant that a pull's text names, where there is one; what is no plain name (an address) names none. */
function storedUnder(text: string, catalog: Pick<Catalog, 'list' | 'find' | 'variants'>): Model | undefined {
  try {
    return catalog.find(existingName(text, catalog))
  } catch (error) {
    if (error instanceof CorralError && (error.code === 'model_not_found' || text.includes('/'))) return undefined
    throw error
  }
}

function bareWithTag({ model, isDefault, label }: Model): string {
  return isDefault ? bareName(model) : `${bareName(model)}:${label}`
}

const shortened = (text: string) => (text.length > 120 ? `${text.slice(0, 120)}…` : text)
