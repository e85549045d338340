import { CorralError } from '../../core/errors.ts'
import { isObject } from '../../core/system/json-object.ts'
import keywords from './schema-keywords.json' with { type: 'json' }

/* The keywords of JSON Schema: the values that they apply to, their meaning, and their mistakes. */

export type Fields = Record<string, unknown>

export interface Part {
  schema: Fields
  at: string
}

/** Thrown for a schema that no value fits. */
export class Never extends Error {
  override readonly name = 'Never'
  readonly at: string

  constructor(at: string, why: string) {
    super(why)
    this.at = at
  }
}

export type Made = Fields | Never

const TYPES = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null']
export const BOUNDS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum']
export const DEFINITIONS = ['$defs', 'definitions']
/** Keywords, with the type of values that each applies to. */
const ABOUT = new Map(
  Object.entries(keywords.about).flatMap(([type, words]) => words.map(word => [word, type] as const))
)
/** Keywords for values of any type that grammars do not enforce. */
export const UNENFORCED = keywords.unenforced
/** Keywords that listed values are not checked against. */
export const UNCHECKED: Record<string, string[]> = keywords.unchecked
const CONSTRAINTS = new Set([...ABOUT.keys(), ...UNENFORCED, ...keywords.others])
/** Constraints that llama.cpp ignores. */
const IGNORED = new Set(keywords.ignored)

export const unfit = ({ at, message }: Never) =>
  mistake(at, `No value can match the JSON schema: ${shown(at)} ${message}. Correct the schema.`)

export const malformed = (at: string, must: string) =>
  mistake(at, `The JSON schema is malformed: ${shown(at)} ${must}.`)

const mistake = (at: string, text: string) => new CorralError('invalid_request', text, { details: { path: shown(at) } })

const MAX_PATH = 200
export const shown = (at: string) => (at.length > MAX_PATH ? `${at.slice(0, MAX_PATH)}…` : at)

/** Wraps a schema with its place. Drops null keywords, which programs write for absent ones. @throws Never for `false` */
export function located(schema: unknown, at: string): Part {
  if (schema === true) return { schema: {}, at }
  if (schema === false) throw new Never(at, 'is false')
  if (!isObject(schema)) throw malformed(at, 'must be a JSON schema')
  const plain: Fields = {}
  for (const [word, value] of Object.entries(schema)) {
    if (value !== null || !CONSTRAINTS.has(word) || word === 'const') plain[word] = value
    else if (word === 'properties') plain.properties = {}
  }
  return { schema: plain, at }
}

/** Lists the values of a keyword, with their places. */
export function given(parts: readonly Part[], word: string): { value: unknown; at: string }[] {
  return parts.flatMap(({ schema, at }) => (word in schema ? [{ value: schema[word], at: `${at}/${word}` }] : []))
}

/** Lists the schemas in a list, with their places. */
export function schemasIn(list: unknown, at: string): [schema: unknown, at: string][] {
  if (list === undefined) return []
  if (Array.isArray(list)) return list.map((each, index) => [each, `${at}/${index}`])
  throw malformed(at, 'must be a list of schemas')
}

export function propertiesOf({ schema: { properties = {} }, at }: Part): Fields {
  if (isObject(properties)) return properties
  throw malformed(`${at}/properties`, 'must be an object of schemas')
}

/** Returns the smallest range of a count that all parts allow. @throws Never if there is none */
export function getRange(parts: readonly Part[], least: string, most: string): { min: number; max: number } {
  const counts = (word: string) =>
    given(parts, word).map(({ value, at }) => {
      if (typeof value === 'number' && Number.isInteger(value) && value >= 0) return value
      throw malformed(at, 'must be a non-negative integer')
    })
  const min = Math.max(0, ...counts(least))
  const max = Math.min(Number.POSITIVE_INFINITY, ...counts(most))
  return min > max ? contradict(parts, least, most) : { min, max }
}

/** Returns the tightest lower (`sign` 1) or upper (-1) limit of numbers. */
export function getLimit(parts: readonly Part[], sign: 1 | -1) {
  const [word, exclusive] = sign === 1 ? ['minimum', 'exclusiveMinimum'] : ['maximum', 'exclusiveMaximum']
  let found = { value: -sign * Number.POSITIVE_INFINITY, excluded: false, at: '' }
  const take = ({ value, at }: { value: unknown; at: string }, excluded: boolean) => {
    if (typeof value !== 'number') throw malformed(at, 'must be a number')
    const more = sign * (value - found.value)
    if (more > 0 || (value === found.value && excluded)) found = { value, excluded, at }
  }
  for (const part of parts) {
    // Before draft 6, the exclusive limits were true or false.
    for (const each of given([part], word!)) take(each, part.schema[exclusive!] === true)
    for (const each of given([part], exclusive!)) if (typeof each.value !== 'boolean') take(each, true)
  }
  return found
}

/** Returns the types that all parts allow, or that their keywords apply to. Empty if values of all types fit. */
export function getTypes(parts: readonly Part[]): string[] {
  let types: string[] | undefined
  for (const { value, at } of given(parts, 'type')) {
    if (value === undefined || value === '') continue
    const allowed = [value].flat() as string[]
    if (allowed.length === 0 || !allowed.every(type => TYPES.includes(type))) {
      throw malformed(at, `must be one of ${TYPES.join(', ')}, or a list of them`)
    }
    const both = types?.flatMap(type => {
      if (allowed.includes(type)) return [type]
      const isNumber =
        type === 'number' ? allowed.includes('integer') : type === 'integer' && allowed.includes('number')
      return isNumber ? ['integer'] : []
    })
    if (both?.length === 0) throw new Never(at, `excludes the ${types!.join(' or ')} that is required beside it`)
    types = [...new Set(both ?? allowed)]
  }
  if (types) return types
  const about = parts.flatMap(({ schema }) => Object.keys(schema).map(word => ABOUT.get(word)))
  return TYPES.filter(type => about.includes(type)).slice(0, 1)
}

/** Returns the different values that all parts list, or undefined if none lists any. */
export function getValues(parts: readonly Part[]): unknown[] | undefined {
  const lists = given(parts, 'const').map(({ value }) => [value])
  for (const { value, at } of given(parts, 'enum')) {
    if (!Array.isArray(value)) throw malformed(at, 'must be a list of values')
    lists.push(value)
  }
  const [first, ...others] = lists.map(list => new Map(list.map(value => [toKey(value), value])))
  return first && [...first].flatMap(([key, value]) => (others.every(other => other.has(key)) ? [value] : []))
}

/** Returns JSON text that is the same for equal values. */
function toKey(value: unknown): string {
  return JSON.stringify(value, (_, each) => (isObject(each) ? Object.fromEntries(Object.entries(each).sort()) : each))
}

export function hasType(value: unknown, type: string): boolean {
  if (type === 'integer') return Number.isInteger(value)
  if (type === 'array') return Array.isArray(value)
  if (type === 'null') return value === null
  return type === 'object' ? isObject(value) : typeof value === type
}

/** Whether a value is within the limits of all parts. Does not check the contents of the value. */
export function fits(value: unknown, parts: readonly Part[]): boolean {
  const within = (count: number, least: string, most: string) => {
    const { min, max } = getRange(parts, least, most)
    return count >= min && count <= max
  }
  if (typeof value === 'number') {
    const [low, high] = [getLimit(parts, 1), getLimit(parts, -1)]
    const isLow = value < low.value || (value === low.value && low.excluded)
    return !(isLow || value > high.value || (value === high.value && high.excluded))
  }
  if (typeof value === 'string') return within([...value].length, 'minLength', 'maxLength')
  if (Array.isArray(value)) return within(value.length, 'minItems', 'maxItems')
  if (!isObject(value)) return true
  const required = given(parts, 'required').flatMap(({ value }) => value)
  const isComplete = required.every(name => typeof name !== 'string' || Object.hasOwn(value, name))
  return isComplete && within(Object.keys(value).length, 'minProperties', 'maxProperties')
}

/** @param word the keyword that contradicts another one, if present @throws Never */
export function contradict(parts: readonly Part[], word: string, other: string): never {
  throw new Never(given(parts, word)[0]?.at ?? parts[0]!.at, `contradicts "${other}"`)
}

/** Adds the parts' other keywords in order, also those that llama.cpp ignores, because models read tools' schemas. */
export function written(parts: readonly Part[], keywords: Fields): Fields {
  const made: Fields = {}
  for (const { schema } of parts) {
    for (const word of Object.keys(schema)) {
      if (Object.hasOwn(made, word) || DEFINITIONS.includes(word)) continue
      if (Object.hasOwn(keywords, word)) made[word] = keywords[word]
      else if (!CONSTRAINTS.has(word) || IGNORED.has(word) || (keywords.type === 'number' && BOUNDS.includes(word))) {
        made[word] = schema[word]
      }
    }
  }
  return { ...made, ...keywords }
}

export const listConstraints = (schema: Fields) => Object.keys(schema).filter(word => CONSTRAINTS.has(word))

/** Unwraps `allOf` with one schema and no other keywords. Programs use this form to add descriptions to references. */
export function withoutWrapping(part: Part): Part {
  const { allOf, ...rest } = part.schema
  if (!Array.isArray(allOf) || allOf.length !== 1 || !isObject(allOf[0]) || listConstraints(rest).length > 0)
    return part
  const inner = located(allOf[0], `${part.at}/allOf/0`)
  return { schema: { ...inner.schema, ...rest }, at: inner.at }
}

/** Returns the steps of a JSON pointer in a URI fragment (RFC 6901). */
export function pointerTokens(reference: string): string[] {
  const decoded = (token: string) => {
    try {
      return decodeURIComponent(token)
    } catch {
      return token
    }
  }
  const steps = reference.slice(1).split('/').slice(1)
  return steps.map(token => decoded(token).replaceAll('~1', '/').replaceAll('~0', '~'))
}

export function pointerToken(name: string): string {
  // Half of a surrogate pair cannot be written in a URI. It is replaced.
  return encodeURIComponent(Buffer.from(name).toString().replaceAll('~', '~0').replaceAll('/', '~1'))
}

/** The depth to which alternatives are compared. */
const MAX_COMPARED_DEPTH = 5

/**
 * Whether no value can fit both of two compiled schemas, such as alternatives of a `oneOf`: they have other types, other
 * values, or a required property for which this is true.
 * @param resolve returns the schema to which a `$ref` refers @param step counts a step. @throws TooCostly after too many
 */
export function areApart(
  a: unknown,
  b: unknown,
  resolve: (reference: string) => unknown,
  step: () => void,
  depth = 0
): boolean {
  step()
  const compare = (a: unknown, b: unknown) => areApart(a, b, resolve, step, depth + 1)
  if (!isObject(a) || !isObject(b) || depth > MAX_COMPARED_DEPTH) return false
  if (typeof a.$ref === 'string') return compare(resolve(a.$ref), b)
  const choices = a.anyOf ?? a.oneOf
  if (Array.isArray(choices)) return choices.every(each => compare(each, b))
  if ('$ref' in b || 'anyOf' in b || 'oneOf' in b) return compare(b, a)
  const [one, other] = [listValues(a), listValues(b)]
  if (one && other) return !one.some(value => other.includes(value))
  const [types, others] = [typesOf(a), typesOf(b)]
  if (types.length > 0 && others.length > 0 && !types.some(type => others.includes(type))) return true
  const common = [a.required, b.required].every(Array.isArray) ? (a.required as string[]) : []
  return common.some(name => {
    const [left, right] = [a.properties, b.properties].map(properties => (properties as Fields | undefined)?.[name])
    return (b.required as string[]).includes(name) && left !== undefined && compare(left, right)
  })
}

function listValues(schema: Fields): string[] | undefined {
  const values = 'const' in schema ? [schema.const] : schema.enum
  return Array.isArray(values) ? values.map(value => JSON.stringify(value)) : undefined
}

/** The types of a schema's values. Empty if unknown. Integers are numbers too. */
function typesOf(schema: Fields): string[] {
  const values = listValues(schema)?.map(value => JSON.parse(value) as unknown)
  const types = values ? TYPES.filter(type => values.some(value => hasType(value, type))) : [schema.type].flat()
  return types.flatMap(type => (type === undefined ? [] : type === 'integer' ? 'number' : String(type)))
}
