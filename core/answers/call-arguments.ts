import { isObject } from '../system/json-object.ts'
import { JsonScan } from '../system/json-scan.ts'

/** Nesting allowed in arguments. llama-server crashes at about ten thousand levels. */
const MAX_DEPTH = 100
/** Valid JSON that engines in C++ refuse: lone surrogates, and numbers beyond the range of a double. */
const MAY_BE_REFUSED = /\\u[dD][89a-fA-F]|[eE]\+?\d{3}|\d{300}/

/**
 * Converts the arguments of an earlier tool call to the JSON text of an object, which is all that chat templates and
 * engines accept. Absent and empty arguments become `{}`. Anything else, such as text that `max_tokens` truncated,
 * becomes `{"arguments": …}`: the model still sees what it wrote, and the conversation can continue. Accepted text is
 * not rewritten, so that the engine's prompt cache still applies to it.
 */
export function callArguments(given: unknown): string {
  if (given === undefined || given === null) return '{}'
  if (typeof given !== 'string') return JSON.stringify(isObject(given) ? given : { arguments: given })
  const value = parse(given)
  if (value === null) return '{}'
  if (!isObject(value)) return JSON.stringify({ arguments: value ?? given })
  return MAY_BE_REFUSED.test(given) ? acceptable(value) : given
}

/** Parses a JSON text. Returns null if it is blank, undefined if it is malformed or nested too deeply. */
function parse(text: string): unknown {
  if (text.trim() === '') return null
  if (new JsonScan(text, MAX_DEPTH).next(text.length)) return undefined
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** The JSON text of a value, with U+FFFD for lone surrogates and null for infinite numbers. */
function acceptable(value: unknown): string {
  return JSON.stringify(value).replace(/(?<!\\)((?:\\\\)*)\\ud[89a-f][0-9a-f]{2}/g, '$1\\ufffd')
}
