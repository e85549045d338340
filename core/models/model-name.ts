import { CorralError } from '../errors.ts'

/** A checked model name. Comparison goes by `key`, which ignores case; `owner` and `name` keep the case given. */
export interface ModelName {
  owner: string
  name: string
  /** The quantization label after the colon; absent for a bare name and for `:latest`. */
  variant?: string
}

const SEGMENT = /^[A-Za-z0-9][A-Za-z0-9._-]*$/
const MAX_SEGMENT_LENGTH = 96
/** Names that Windows keeps for devices, with or without an extension. */
const RESERVED = /^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?$/i

function segmentFault(segment: string): string | undefined {
  if (segment === '') return 'a part is empty'
  if (segment.length > MAX_SEGMENT_LENGTH) return `a part is longer than ${MAX_SEGMENT_LENGTH} characters`
  if (!SEGMENT.test(segment)) {
    return 'each part starts with a letter or digit and holds only letters, digits, ".", "_" and "-"'
  }
  if (segment.includes('..')) return '".." is not allowed'
  if (segment.endsWith('.')) return 'a part may not end in "."'
  if (RESERVED.test(segment)) return `"${segment}" is reserved by Windows`
  return undefined
}

/**
 * Parses `owner/name` or `owner/name:variant` (`:latest` is the default variant).
 * @throws CorralError `invalid_model_name` for anything else; the text is quoted shortened.
 */
export function parseModelName(text: unknown): ModelName {
  if (typeof text !== 'string' || text === '') {
    throw new CorralError('invalid_model_name', 'The model name is missing. Send "model": "<owner>/<name>".', {
      param: 'model'
    })
  }
  const fail = (why: string): never => {
    const shown = JSON.stringify(text.length > 120 ? `${text.slice(0, 120)}…` : text)
    throw new CorralError(
      'invalid_model_name',
      `${shown} is not a model name: ${why}. Names have the form <owner>/<name> or <owner>/<name>:<variant>.`,
      { param: 'model' }
    )
  }
  const slash = text.indexOf('/')
  if (slash === -1) fail('the owner is missing')
  const owner = text.slice(0, slash)
  const rest = text.slice(slash + 1)
  const colon = rest.indexOf(':')
  const name = colon === -1 ? rest : rest.slice(0, colon)
  const variant = colon === -1 ? undefined : rest.slice(colon + 1)
  for (const segment of variant === undefined ? [owner, name] : [owner, name, variant]) {
    const fault = segmentFault(segment)
    if (fault) fail(fault)
  }
  return variant === undefined || variant.toLowerCase() === 'latest' ? { owner, name } : { owner, name, variant }
}

/** `owner/name` in the case given, without the variant. */
export function bareName(name: ModelName): string {
  return `${name.owner}/${name.name}`
}

/** What two spellings of one repository share: `owner/name` in lower case, without the variant. */
export function modelKey(name: ModelName): string {
  return bareName(name).toLowerCase()
}
