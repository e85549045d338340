import { CorralError } from '../../core/errors.ts'
import { isObject } from '../../core/system/json-object.ts'
import { TooCostly } from './grammar-cost.ts'
import keywords from './schema-keywords.json' with { type: 'json' }
import { compilePattern } from './schema-pattern.ts'

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

export const TYPES = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null']
export const NUMBERS = ['number', 'integer']
export const BOUNDS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum']
export const DEPENDENCIES = ['dependentRequired', 'dependentSchemas', 'dependencies']
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
export const KNOWN_FORMAT = /^(date|time|date-time|uuid[1-5]?)$/
export function unfit(at: string, why: string): CorralError {
  const text = `No value can match the JSON schema: ${shown(at)} ${why}. Correct the schema.`
  return new CorralError('invalid_request', text, { details: { path: shown(at) } })
}

export function malformed(at: string, must: string): CorralError {
  const text = `The JSON schema is malformed: ${shown(at)} ${must}.`
  return new CorralError('invalid_request', text, { details: { path: shown(at) } })
}

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

export function listOf(value: unknown, at: string): readonly unknown[] {
  if (value === undefined) return []
  if (Array.isArray(value)) return value
  throw malformed(at, 'must be a list of schemas')
}

export function requireFields(value: unknown, at: string): Fields {
  if (value === undefined) return {}
  if (isObject(value)) return value
  throw malformed(at, 'must be an object of schemas')
}

function getCount({ schema, at }: Part, word: string): number | undefined {
  const value = schema[word]
  if (value === undefined) return undefined
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0) return value
  throw malformed(`${at}/${word}`, 'must be a non-negative integer')
}

interface Bound {
  value: number
  excluded: boolean
  at: string
}

/** Returns the smallest range of a count that all parts allow. @throws Never if there is none */
export function getRange(parts: readonly Part[], least: string, most: string): { min: number; max: number } {
  const min = Math.max(...parts.map(part => getCount(part, least) ?? 0))
  const max = Math.min(...parts.map(part => getCount(part, most) ?? Number.POSITIVE_INFINITY))
  return min > max ? contradict(parts, least, most) : { min, max }
}

export function lowest(parts: readonly Part[]): Bound {
  return getLimit(parts, 'minimum', 'exclusiveMinimum', 1)
}
export function highest(parts: readonly Part[]): Bound {
  const { value, ...rest } = getLimit(parts, 'maximum', 'exclusiveMaximum', -1)
  return { value: -value, ...rest }
}

/** Returns the tightest lower limit of numbers multiplied by `sign`. */
function getLimit(parts: readonly Part[], word: string, exclusive: string, sign: 1 | -1): Bound {
  let found: Bound = { value: Number.NEGATIVE_INFINITY, excluded: false, at: '' }
  const take = (value: unknown, excluded: boolean, at: string) => {
    if (value === undefined) return
    if (typeof value !== 'number') throw malformed(at, 'must be a number')
    const bound = value * sign
    if (bound > found.value || (bound === found.value && excluded)) found = { value: bound, excluded, at }
  }
  for (const { schema, at } of parts) {
    // Before draft 6, the exclusive limits were true or false.
    const flag = schema[exclusive]
    take(schema[word], flag === true, `${at}/${word}`)
    if (typeof flag !== 'boolean') take(flag, true, `${at}/${exclusive}`)
  }
  return found
}

/** The schema that a limit belongs to. */
export const getPlace = (low: Bound, high: Bound) => (low.at || high.at).replace(/\/[^/]*$/, '')

/** Returns the types that all parts allow, or that their keywords apply to. Empty if values of all types fit. */
export function getTypes(parts: readonly Part[]): string[] {
  let types: string[] | undefined
  for (const { schema, at } of parts) {
    if (schema.type === undefined || schema.type === '') continue
    const given = [schema.type].flat()
    if (given.length === 0 || !given.every(type => TYPES.includes(type as string))) {
      throw malformed(`${at}/type`, `must be one of ${TYPES.join(', ')}, or a list of them`)
    }
    const allowed = given as string[]
    const both = types?.flatMap(type => {
      if (allowed.includes(type)) return [type]
      if (type === 'number' && allowed.includes('integer')) return ['integer']
      return type === 'integer' && allowed.includes('number') ? ['integer'] : []
    })
    if (both?.length === 0)
      throw new Never(`${at}/type`, `excludes the ${types!.join(' or ')} that is required beside it`)
    types = [...new Set(both ?? allowed)]
  }
  if (types) return types
  const about = parts.flatMap(({ schema }) => Object.keys(schema).flatMap(word => ABOUT.get(word) ?? []))
  return TYPES.filter(type => about.includes(type)).slice(0, 1)
}

/** Returns the values that all parts list, or undefined if none lists any. */
export function getValues(parts: readonly Part[]): unknown[] | undefined {
  let values: Map<string, unknown> | undefined
  for (const { schema, at } of parts) {
    for (const word of ['const', 'enum']) {
      if (!(word in schema)) continue
      const listed = word === 'const' ? [schema.const] : schema.enum
      if (!Array.isArray(listed)) throw malformed(`${at}/enum`, 'must be a list of values')
      const allowed = new Map(listed.map(value => [toKey(value), value]))
      const before: Map<string, unknown> = values ?? allowed
      values = new Map([...before].filter(([key]) => allowed.has(key)))
    }
  }
  return values && [...values.values()]
}

/** Returns JSON text that is the same for equal values. */
function toKey(value: unknown): string {
  if (typeof value !== 'object') return JSON.stringify(value)
  return JSON.stringify(value, (_, each) => (isObject(each) ? Object.fromEntries(Object.entries(each).sort()) : each))
}

export function hasType(value: unknown, type: string): boolean {
  if (type === 'integer') return Number.isInteger(value)
  if (type === 'array') return Array.isArray(value)
  if (type === 'null') return value === null
  return type === 'object' ? isObject(value) : typeof value === type
}

/** Whether a value is within a schema's limits. Does not check the contents of the value. */
export function fits(value: unknown, schema: Fields): boolean {
  const parts = [{ schema, at: '' }]
  const within = (count: number, least: string, most: string) => {
    return !(count < Number(schema[least] ?? 0) || count > Number(schema[most] ?? Number.POSITIVE_INFINITY))
  }
  if (typeof value === 'number') {
    const [low, high] = [lowest(parts), highest(parts)]
    return (
      (low.excluded ? value > low.value : value >= low.value) &&
      (high.excluded ? value < high.value : value <= high.value)
    )
  }
  if (typeof value === 'string') {
    return within([...value].length, 'minLength', 'maxLength')
  }
  if (Array.isArray(value)) return within(value.length, 'minItems', 'maxItems')
  if (!isObject(value)) return true
  const { required } = schema
  if (Array.isArray(required) && !required.every(name => typeof name !== 'string' || Object.hasOwn(value, name)))
    return false
  return within(Object.keys(value).length, 'minProperties', 'maxProperties')
}

export const hasPattern = ({ schema }: Part) => 'pattern' in schema && schema.pattern !== ''

export function getPattern({ schema, at }: Part, length?: { min: number; max: number }) {
  const { pattern } = schema
  try {
    if (typeof pattern === 'string') return compilePattern(pattern, length)
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error
  }
  throw malformed(`${at}/pattern`, 'must be a regular expression')
}

/** @param word the keyword that contradicts another one, if present @throws Never */
export function contradict(parts: readonly Part[], word: string, other: string): never {
  const { at, schema } = parts.find(part => word in part.schema) ?? parts[0]!
  throw new Never(word in schema ? `${at}/${word}` : at, `contradicts "${other}"`)
}

/** @throws TooCostly if the JSON text of a value is longer than about `left` characters */
export function requireLength(value: unknown, left: number): number {
  let rest = left - (typeof value === 'string' ? value.length : 8)
  if (rest < 0) throw new TooCostly()
  if (typeof value !== 'object' || value === null) return rest
  for (const [name, each] of Object.entries(value)) rest = requireLength(each, rest - name.length)
  return rest
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
export const picked = (schema: Fields, words: readonly string[]) =>
  Object.fromEntries(words.map(word => [word, schema[word]]))

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

/** Alternatives that are compared with each other, at most. */
const MAX_COMPARED = 50

interface LookUp {
  /** Returns the schema to which a `$ref` refers. */
  definition(reference: string): unknown
  /** Counts a step. @throws TooCostly after too many */
  step(): void
}

interface Facts {
  types: string[]
  values?: string[]
  tags: Map<string, string[]>
}

/** Whether no value can fit two of these alternatives of a `oneOf`, so that a grammar with `anyOf` enforces it. */
export function areApart(alternatives: readonly Fields[], look: LookUp): boolean {
  if (alternatives.length > MAX_COMPARED) return false
  const facts = alternatives.map(each => getFacts(each, look))
  return facts.every((a, index) =>
    facts.slice(index + 1).every(b => {
      if (!a || !b) return false
      if (
        !a.types.some(
          type => b.types.includes(type) || (NUMBERS.includes(type) && NUMBERS.some(other => b.types.includes(other)))
        )
      )
        return true
      if (a.values && b.values) return !a.values.some(value => b.values!.includes(value))
      return [...a.tags].some(
        ([name, values]) => b.tags.has(name) && !values.some(value => b.tags.get(name)!.includes(value))
      )
    })
  )
}

/** Collects the types of a schema's values, the values, and those of required properties, as JSON, if known. */
function getFacts(schema: unknown, look: LookUp, depth = 0): Facts | undefined {
  look.step()
  if (!isObject(schema) || depth > 5) return undefined
  if (typeof schema.$ref === 'string') {
    return getFacts(look.definition(schema.$ref), look, depth + 1)
  }
  const choices = schema.anyOf ?? schema.oneOf
  if (Array.isArray(choices)) {
    const facts = choices.map(each => getFacts(each, look, depth + 1))
    return facts.every(each => each !== undefined)
      ? { types: facts.flatMap(({ types }) => types), tags: new Map() }
      : undefined
  }
  const listed = 'const' in schema ? [schema.const] : Array.isArray(schema.enum) ? schema.enum : undefined
  const values = listed?.map(value => JSON.stringify(value))
  const types = listed
    ? TYPES.filter(type => listed.some(value => hasType(value, type)))
    : [schema.type].flat().map(String)
  if (!listed && schema.type === undefined) return undefined
  const tags = new Map<string, string[]>()
  const { properties, required } = schema
  for (const name of isObject(properties) && Array.isArray(required) ? required : []) {
    const { values } = getFacts((properties as Fields)[name], look, depth + 1) ?? {}
    if (values) tags.set(name, values)
  }
  return { types, ...(values && { values }), tags }
}
