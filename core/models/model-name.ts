import { CorralError } from '../errors.ts'
import { RESERVED_NAME } from '../system/usable-path.ts'

/** A checked model name. Names are compared by `key`, which ignores case; `owner` and `name` keep their case. */
export interface ModelName {
  owner: string
  name: string
  /** The quantization label after the colon; absent for a bare name and for `:latest`. */
  variant?: string
}

/** A model name from a request: without an owner it is a short name, which the catalog resolves. */
export type RequestedName = Omit<ModelName, 'owner'> & { owner?: string }

/** The owner of models that were stored without one, as Ollama's clients do. */
export const NO_OWNER = 'library'

/** The host of a registry at the beginning of Ollama's names, or a registry's address that people copy with a name. */
const HOST =
  /^(?:(?:https?:\/\/)?(?:registry\.ollama\.ai|ollama\.com|hf\.co|huggingface\.co)|(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+|localhost)(?::\d+)?)\/(?=[^/]+\/[^/]+$)/i

const SEGMENT = /^[A-Za-z0-9][A-Za-z0-9._-]*$/
const MAX_SEGMENT_LENGTH = 96

function segmentFault(segment: string): string | undefined {
  if (segment === '') return 'a part is empty'
  if (segment.length > MAX_SEGMENT_LENGTH) return `a part is longer than ${MAX_SEGMENT_LENGTH} characters`
  if (!SEGMENT.test(segment)) {
    return 'each part starts with a letter or digit and contains only letters (a to z), digits, ".", "_" and "-"'
  }
  if (segment.includes('..')) return '".." is not allowed'
  if (segment.endsWith('.')) return 'a part may not end in "."'
  if (RESERVED_NAME.test(segment)) return `"${segment}" is reserved by Windows`
  return undefined
}

/** Parses `owner/name` or `owner/name:variant` (`:latest` is the default). @throws `invalid_model_name` */
export function parseModelName(text: unknown): ModelName {
  return parsedName(text, false) as ModelName
}

/** Like `parseModelName`, but the owner may be missing and a registry host is ignored. */
export function parseRequestedName(text: unknown): RequestedName {
  return parsedName(typeof text === 'string' ? text.replace(HOST, '') : text, true)
}

const invalidName = (message: string) => new CorralError('invalid_model_name', message, { param: 'model' })

function parsedName(text: unknown, mayBeShort: boolean): RequestedName {
  if (typeof text !== 'string' || text === '') {
    throw invalidName('The model name is missing. Send "model": "<owner>/<name>".')
  }
  const fail = (why: string): never => {
    const shown = JSON.stringify(text.length > 120 ? `${text.slice(0, 120)}…` : text)
    const forms = 'Names have the form <owner>/<name> or <owner>/<name>:<variant>.'
    throw invalidName(`${shown} is not a model name: ${why}. ${forms}`)
  }
  const slash = text.indexOf('/')
  if (slash === -1 && !mayBeShort) fail('the owner is missing')
  const owner = slash === -1 ? undefined : text.slice(0, slash)
  const rest = text.slice(slash + 1)
  const colon = rest.indexOf(':')
  const name = colon === -1 ? rest : rest.slice(0, colon)
  const variant = colon === -1 ? undefined : rest.slice(colon + 1)
  for (const segment of [owner, name, variant]) {
    const fault = segment === undefined ? undefined : segmentFault(segment)
    if (fault) fail(fault)
  }
  const isDefault = variant === undefined || variant.toLowerCase() === 'latest'
  if (owner === undefined) return isDefault ? { name } : { name, variant }
  return isDefault ? { owner, name } : { owner, name, variant }
}

/** Returns `owner/name` as written, without the variant. A short name stays unchanged. */
export function bareName({ owner, name }: RequestedName): string {
  return owner === undefined ? name : `${owner}/${name}`
}

/** The whole name as people write it: `owner/name:variant`, without missing parts. */
export function formatModelName(name: RequestedName): string {
  return name.variant === undefined ? bareName(name) : `${bareName(name)}:${name.variant}`
}

/** The name for requesting a model: without the variant for the default one. */
export function publicModelName({ model, isDefault }: { model: ModelName; isDefault: boolean }): ModelName {
  return isDefault ? { owner: model.owner, name: model.name } : model
}

/** The key of all spellings of a model's name: `owner/name` in lower case, without the variant. */
export function modelKey(name: RequestedName): string {
  return bareName(name).toLowerCase()
}
