import { Ajv, type ValidateFunction } from 'ajv'
import type { Static, TSchema } from 'typebox'
import { isObject } from './json-object.ts'

/** The keywords of JSON Schema that settings use and that errors explain. */
export interface JsonSchema {
  type?: string | string[]
  description?: string
  /** Describes the allowed values if the keywords do not describe them well: "an origin such as https://a.org". */
  title?: string
  default?: unknown
  examples?: unknown[]
  const?: unknown
  enum?: unknown[]
  anyOf?: JsonSchema[]
  properties?: Record<string, JsonSchema>
  patternProperties?: Record<string, JsonSchema>
  additionalProperties?: JsonSchema | boolean
  required?: string[]
  items?: JsonSchema
  format?: string
  pattern?: string
  minimum?: number
  maximum?: number
  minItems?: number
  minLength?: number
  maxLength?: number
  contentMediaType?: string
  /** Marks a secret: the value is never shown. */
  writeOnly?: boolean
  /** Marks a setting that is read only at the start: changing it, or a value in it, needs a restart. */
  restart?: boolean
  /** Marks a setting, or a value in it, that runs programs or controls access: only trusted files may set it. */
  needsTrust?: boolean
}

/** The first error in a value. */
export interface SchemaFault {
  path: (string | number)[]
  kind: 'missing' | 'unknown' | 'wrong'
  /** The schema of the expected value. */
  schema: JsonSchema
}

// All schemas are corral's own. Compiling the meta-schema would take longer than compiling them, and optimizing the
// code a third longer.
const ajv = new Ajv({
  strict: false,
  strictNumbers: true,
  validateFormats: false,
  meta: false,
  validateSchema: false,
  code: { optimize: false }
})
const compiled = new WeakMap<object, ValidateFunction>()

export function fits<Schema extends TSchema>(schema: Schema, value: unknown): value is Static<Schema> {
  return isValid(schema as JsonSchema, value)
}

// Parts of schemas are compiled too: otherwise searching a long list for its error would block all requests.
function isValid(schema: JsonSchema, value: unknown): boolean {
  let validate = compiled.get(schema)
  if (!validate) {
    validate = ajv.compile(schema)
    compiled.set(schema, validate)
  }
  return validate(value) as boolean
}

/** Finds the part of a value that violates its schema. Descends as long as it is clear which alternative was meant. */
export function findFault(schema: TSchema, value: unknown): SchemaFault | undefined {
  return faultAt(schema as JsonSchema, value, [])
}

function faultAt(schema: JsonSchema, value: unknown, path: SchemaFault['path']): SchemaFault | undefined {
  if (isValid(schema, value)) return undefined
  const here: SchemaFault = { path, kind: 'wrong', schema }
  const kind = kindOf(value)
  if (schema.anyOf) {
    const meant = formsOf(schema).filter(form => typesOf(form).includes(kind))
    return meant.length === 1 ? faultAt(meant[0]!, value, path) : here
  }
  if (!typesOf(schema).includes(kind)) return here
  if (isObject(value)) return faultInObject(schema, value, path) ?? here
  if (Array.isArray(value) && schema.items) {
    for (const [index, item] of value.entries()) {
      const fault = faultAt(schema.items, item, [...path, index])
      if (fault) return fault
    }
  }
  return here
}

function faultInObject(
  { properties = {}, patternProperties = {}, required = [], additionalProperties }: JsonSchema,
  fields: Record<string, unknown>,
  path: SchemaFault['path']
): SchemaFault | undefined {
  const discriminator = properties.type
  // A wrong type explains why other fields are missing.
  if (discriminator?.enum && typeof fields.type === 'string' && !isValid(discriminator, fields.type)) {
    return { path: [...path, 'type'], kind: 'wrong', schema: discriminator }
  }
  const missing = required.find(key => fields[key] === undefined)
  if (missing !== undefined) return { path: [...path, missing], kind: 'missing', schema: properties[missing] ?? {} }
  for (const [key, field] of Object.entries(fields)) {
    if (field === undefined) continue
    const pattern = Object.keys(patternProperties).find(pattern => new RegExp(pattern, 'u').test(key))
    const named = Object.hasOwn(properties, key) ? properties[key] : pattern && patternProperties[pattern]
    const rule = named || additionalProperties
    if (rule === false) return { path: [...path, key], kind: 'unknown', schema: {} }
    const fault = typeof rule === 'object' ? faultAt(rule, field, [...path, key]) : undefined
    if (fault) return fault
  }
  return undefined
}

/** Returns the alternatives of a value, including those of inner unions. */
function formsOf(schema: JsonSchema): JsonSchema[] {
  return schema.anyOf ? schema.anyOf.flatMap(formsOf) : [schema]
}

const typesOf = ({ type, properties }: JsonSchema): string[] => [type ?? (properties ? 'object' : [])].flat()

function kindOf(value: unknown): string {
  if (Array.isArray(value)) return 'array'
  return value === null ? 'null' : typeof value
}

/** The place of an error as people write it: `messages[0].role`. */
export function faultPlace({ path }: Pick<SchemaFault, 'path'>): string {
  return path.map((key, at) => (typeof key === 'number' ? `[${key}]` : at === 0 ? key : `.${key}`)).join('')
}

/** The error as one sentence about `whole`. Values are not quoted, because they may be prompts. */
export function faultSentence(fault: SchemaFault, whole: string): string {
  const place = fault.path.length === 0 ? whole : `"${faultPlace(fault)}"`
  if (fault.kind === 'unknown') return `${place} is unknown here.`
  const must = `must be ${allowedBy(fault.schema)}.`
  return fault.kind === 'missing' ? `${place} is missing. It ${must}` : `${place} ${must}`
}

const PLURALS: Record<string, string> = {
  string: 'texts',
  integer: 'whole numbers',
  number: 'numbers',
  boolean: 'booleans',
  object: 'objects'
}

/** Describes what a schema allows, for use after "must be". `special` has better phrases for some schemas. */
export function allowedBy(
  schema: JsonSchema,
  special: (schema: JsonSchema) => string | undefined = () => undefined
): string {
  const { type, anyOf, items } = schema
  const phrase = special(schema)
  if (phrase !== undefined) return phrase
  const inner = (part: JsonSchema) => allowedBy(part, special)
  if (anyOf)
    return joined(
      formsOf(schema)
        .filter(form => form.type !== 'null')
        .map(inner)
    )
  if (schema.const !== undefined) return JSON.stringify(schema.const)
  if (schema.contentMediaType !== undefined) return 'a file of a form (multipart/form-data), or base64'
  if (schema.enum) return joined(schema.enum.map(value => JSON.stringify(value)))
  if (Array.isArray(type)) return joined(type.filter(one => one !== 'null').map(one => inner({ ...schema, type: one })))
  switch (type) {
    case 'string':
      if (schema.pattern) return schema.title ?? `text that matches ${schema.pattern}`
      if (schema.minLength) return 'text that is not empty'
      return schema.maxLength === undefined ? 'text' : `text of at most ${schema.maxLength} characters`
    case 'boolean':
      return 'true or false'
    case 'integer':
      return `a whole number${range(schema)}`
    case 'number':
      return `a number${range(schema)}`
    case 'array':
      return `a list${items ? ` of ${pluralOf(items)}` : ''}${schema.minItems ? ' that is not empty' : ''}`
    case 'null':
      return 'null'
    case undefined:
      return 'something else'
    default:
      return 'an object'
  }
}

function pluralOf(schema: JsonSchema): string {
  if (schema.anyOf) return joined(formsOf(schema).map(pluralOf))
  if (schema.type === 'array') return schema.items ? `lists of ${pluralOf(schema.items)}` : 'lists'
  return PLURALS[String(schema.type)] ?? 'values'
}

function range({ minimum, maximum }: JsonSchema): string {
  if (minimum === undefined) return maximum === undefined ? '' : `, at most ${maximum}`
  return maximum === undefined ? `, at least ${minimum}` : ` from ${minimum} to ${maximum}`
}

/** `a, b or c`, without duplicates. */
function joined(phrases: string[]): string {
  const different = [...new Set(phrases)]
  const last = different.pop() ?? 'nothing'
  return different.length === 0 ? last : `${different.join(', ')} or ${last}`
}

/** Converts a text to the type of a schema. Text that cannot be converted stays as it is and fails the check. */
export function fromText(schema: JsonSchema | undefined, text: string): unknown {
  const types = [schema?.type ?? []].flat()
  if (types.includes('array')) {
    return text
      .split(',')
      .map(part => part.trim())
      .filter(part => part !== '')
  }
  if (types.includes('boolean')) {
    if (/^(1|true|yes|on)$/i.test(text)) return true
    if (/^(0|false|no|off)$/i.test(text)) return false
  }
  const numeric = !types.includes('string') && (types.includes('integer') || types.includes('number'))
  return numeric && text.trim() !== '' && Number.isFinite(Number(text)) ? Number(text) : text
}
