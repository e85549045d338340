import type { Caller } from '../../core/contracts/callers.ts'
import type { Catalog, Model } from '../../core/contracts/models.ts'
import type { ModelNaming } from '../../core/contracts/native-api.ts'
import { CorralError, type ErrorCode } from '../../core/errors.ts'
import { isAllowed, requireAllowed } from '../../core/models/allowed-models.ts'
import { bareName, type ModelName, modelKey, parseModelName } from '../../core/models/model-name.ts'

/** The owner of models whose names have none, as in Ollama. It is not shown. */
export const DEFAULT_OWNER = 'library'

/** What Ollama's clients put before `owner/name`: the hosts that it pulls from. */
const HOST = /^(?:https?:\/\/)?(?:registry\.ollama\.ai|ollama\.com|hf\.co|huggingface\.co)\/(?=[^/]+\/[^/]+$)/i

type Models = Pick<Catalog, 'list' | 'find' | 'variants'>

const refusal = (code: ErrorCode, message: string) => new CorralError(code, message, { param: 'model' })

/** Names as Ollama's clients write and compare them. */
export function ollamaNaming(catalog: Models): ModelNaming {
  return {
    parse: (requested, caller) => existingName(requested, catalog, caller),
    shown,
    toCreate: newName,
    toDelete: (requested, caller) => nameToDelete(requested, catalog, caller),
    atHub: requested => atHub(requested, catalog)
  }
}

/** The name that records show: always with a tag, since clients append `:latest` to names without one and compare. */
export function shown({ model: { owner, name }, isDefault, label, origin }: Model): string {
  const tag = isDefault && origin.tag === undefined ? 'latest' : label
  return owner.toLowerCase() === DEFAULT_OWNER ? `${name}:${tag}` : `${owner}/${name}:${tag}`
}

/**
 * The name under which a new model is stored: without an owner it is the default one's.
 * @throws CorralError `invalid_model_name`
 */
export function newName(requested: unknown): ModelName {
  if (typeof requested !== 'string' || requested === '') return parseModelName(requested)
  const text = requested.replace(HOST, '')
  return parseModelName(text.includes('/') ? text : `${DEFAULT_OWNER}/${text}`)
}

/**
 * The model that a request means. A name without an owner is the default owner's model, else the only one of this name.
 * @throws CorralError `invalid_model_name`, also where several owners have one; `model_not_found` for a name without an
 * owner that nobody has; `forbidden_model` for one that none of the caller's models has
 */
export function existingName(
  requested: unknown,
  catalog: Models,
  { models: allowed }: Pick<Caller, 'models'> = {}
): ModelName {
  const name = newName(requested)
  if (name.owner !== DEFAULT_OWNER || String(requested).includes('/')) return name
  if (catalog.variants(name).length > 0 || catalog.find(name)) return name
  const namesakes = catalog
    .list()
    .filter(each => each.model.name.toLowerCase() === name.name.toLowerCase() && isAllowed(allowed, each))
  const [found, ...others] = new Map(namesakes.map(({ model }) => [modelKey(model), model])).values()
  if (!found) {
    requireAllowed(allowed, name)
    const message = `There is no model named "${name.name}" here, whoever its owner. "corral list" shows what there is.`
    throw refusal('model_not_found', message)
  }
  if (others.length > 0) {
    const names = [found, ...others].map(bareName).sort().join(' or ')
    throw refusal('invalid_model_name', `"${name.name}" may be ${names}. Send one of these names.`)
  }
  const { owner, name: stored } = found
  return name.variant === undefined ? { owner, name: stored } : { owner, name: stored, variant: name.variant }
}

/**
 * What a deletion means: no more than the one model that records show under this name. There may be nothing but a pull
 * of it.
 * @throws CorralError as `existingName`; `model_not_found` where a name without a tag only finds what was made under one
 */
function nameToDelete(requested: string, catalog: Models, caller: Pick<Caller, 'models'>): ModelName {
  const name = existingName(requested, catalog, caller)
  const [first] = catalog.variants(name)
  if (name.variant !== undefined || !first) return name
  if (first.origin.tag === undefined) return first.model
  throw refusal('model_not_found', `There is no model "${bareName(name)}:latest" here, only ${shown(first)}.`)
}

/** The name that a pull sends to hubs; undefined when the model is here and came from no hub. */
function atHub(requested: string, catalog: Models): string | undefined {
  const text = requested.trim().replace(/^(?:https?:\/\/)?(?:registry\.ollama\.ai|ollama\.com)\//i, '')
  const unowned = !text.includes('/') || text.toLowerCase().startsWith(`${DEFAULT_OWNER}/`)
  const present = storedUnder(text, catalog)
  if (present && present.origin.kind !== 'hub') return undefined
  if (!unowned) return text
  if (present) return present.isDefault ? bareName(present.model) : `${bareName(present.model)}:${present.label}`
  const shown = requested.length > 120 ? `${requested.slice(0, 120)}…` : requested
  throw refusal(
    'repo_not_found',
    `${JSON.stringify(shown)} is not here, and corral does not pull from Ollama's registry: it pulls models ` +
      'from hubs by <owner>/<name>, for example hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M.'
  )
}

/** The variant that the text of a pull names, if any; what is not a plain name (an address) names none. */
function storedUnder(text: string, catalog: Models): Model | undefined {
  try {
    return catalog.find(existingName(text, catalog))
  } catch (error) {
    if (error instanceof CorralError && (error.code === 'model_not_found' || text.includes('/'))) return undefined
    throw error
  }
}
