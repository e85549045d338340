import { isObject } from '../../core/system/json-object.ts'
import { type Fields, hasType, NUMBERS, TYPES } from './schema-keywords.ts'

/* Whether the alternatives of a `oneOf` exclude each other, so that a grammar with `anyOf` enforces it. */

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

/** Whether no value can fit two of these schemas. */
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
