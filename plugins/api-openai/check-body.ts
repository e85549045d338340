import type { FastifySchemaCompiler } from 'fastify'
import type { TSchema } from 'typebox'
import { Compile, type Validator } from 'typebox/compile'
import { CorralError } from '../../core/errors.ts'
import { bodyObject } from '../../core/http/json-body.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { topLevelOptions } from '../../core/models/options.ts'

/** What the check reads of a schema. */
type Schema = TSchema & {
  type?: string
  const?: unknown
  enum?: unknown[]
  anyOf?: Schema[]
  properties?: Record<string, Schema>
  required?: string[]
  items?: Schema
  additionalProperties?: Schema | boolean
  minimum?: number
  maximum?: number
  minItems?: number
  minLength?: number
  contentMediaType?: string
}

interface Fault {
  /** As in `messages[0].role`; empty for the whole. */
  place: string
  schema: Schema
  missing?: boolean
}

const compiled = new WeakMap<TSchema, Validator>()

/**
 * Checks a value against a schema. Values are not quoted in the error: they may be prompts.
 * @throws CorralError `invalid_request`, or `invalid_option` for an option, with the place as `param`
 */
export function checkAgainst(schema: TSchema, value: unknown): void {
  if (fits(schema, value)) return
  throw wordFault(faultAt(schema as Schema, value, '') ?? { place: '', schema: schema as Schema })
}

/** Schemas are compiled, those of parts too: to search a long list for its fault would else hold up everybody. */
function fits(schema: TSchema, value: unknown): boolean {
  let validator = compiled.get(schema)
  if (!validator) {
    validator = Compile(schema)
    compiled.set(schema, validator)
  }
  return validator.Check(value)
}

/** Fastify's validation by `checkAgainst`. Numbers of a query come as text and are taken for what the schema says. */
export const schemaCompiler: FastifySchemaCompiler<TSchema> =
  ({ schema, httpPart }) =>
  given => {
    try {
      const value = httpPart === 'body' ? bodyObject(given) : readNumbers(schema as Schema, given)
      if (httpPart === 'body' && (schema as Schema).properties?.model) requireModel(value as Record<string, unknown>)
      checkAgainst(schema, value)
      return { value }
    } catch (error) {
      return { error: error as Error }
    }
  }

/** Without a model the rest matters little. */
function requireModel({ model, name }: Record<string, unknown>): void {
  const given = model ?? name
  if (given === undefined || given === null) parseModelName(given)
}

function readNumbers({ properties = {} }: Schema, given: unknown): unknown {
  if (typeof given !== 'object' || given === null) return given
  const read = ([name, value]: [string, unknown]) =>
    properties[name]?.type === 'integer' && typeof value === 'string' && /^-?\d{1,15}$/.test(value)
      ? Number(value)
      : value
  return Object.fromEntries(Object.entries(given).map(entry => [entry[0], read(entry)]))
}

/** Where a value breaks its schema: as deep as it is clear which of several forms it was meant to have. */
function faultAt(schema: Schema, value: unknown, place: string): Fault | undefined {
  if (fits(schema, value)) return undefined
  if (schema.anyOf) {
    const meant = formsOf(schema).filter(form => form.type === kindOf(value))
    return meant.length === 1 ? faultAt(meant[0]!, value, place) : { place, schema }
  }
  if (kindOf(value) !== schema.type) return { place, schema }
  const within = (key: string) => (place === '' ? key : `${place}.${key}`)
  let found: Fault | undefined
  if (schema.type === 'object') {
    const fields = value as Record<string, unknown>
    const { properties = {}, required = [], additionalProperties } = schema
    const kind = properties.type
    // A wrong type is why the rest is missing.
    if (kind?.enum && typeof fields.type === 'string' && !fits(kind, fields.type)) {
      return { place: within('type'), schema: kind }
    }
    const missing = required.find(key => fields[key] === undefined)
    if (missing !== undefined) return { place: within(missing), schema: properties[missing]!, missing: true }
    for (const [key, field] of Object.entries(fields)) {
      const rule = Object.hasOwn(properties, key) ? properties[key] : additionalProperties
      if (field !== undefined && typeof rule === 'object') found ??= faultAt(rule, field, within(key))
    }
  }
  if (schema.type === 'array' && schema.items) {
    for (const [index, item] of (value as unknown[]).entries()) {
      found ??= faultAt(schema.items, item, `${place}[${index}]`)
    }
  }
  return found ?? { place, schema }
}

/** The forms that a value may have, those of inner unions among them. */
function formsOf(schema: Schema): Schema[] {
  return schema.anyOf ? schema.anyOf.flatMap(formsOf) : [schema]
}

function kindOf(value: unknown): string {
  if (Array.isArray(value)) return 'array'
  return value === null ? 'null' : typeof value
}

function wordFault({ place, schema, missing }: Fault): CorralError {
  const [first = ''] = place.split(/[.[]/)
  if (first === 'model' || first === 'name') {
    return new CorralError('invalid_model_name', `"${place}" must be text of the form <owner>/<name>.`, {
      param: first
    })
  }
  const isOption = first === 'options' || first in topLevelOptions({ [first]: null })
  const must = `must be ${allowedBy(schema)}.`
  return new CorralError(
    isOption ? 'invalid_option' : 'invalid_request',
    missing ? `"${place}" is missing. It ${must}` : `${place === '' ? 'The request' : `"${place}"`} ${must}`,
    { param: place }
  )
}

const PLURALS: Record<string, string> = {
  string: 'texts',
  integer: 'whole numbers',
  number: 'numbers',
  boolean: 'truth values',
  object: 'objects'
}

/** What a schema allows, as a sentence goes on after "must be". */
export function allowedBy(schema: TSchema): string {
  const { type, const: only, enum: some, anyOf, items, minItems, minLength, contentMediaType } = schema as Schema
  if (anyOf)
    return joined(
      formsOf(schema)
        .filter(form => form.type !== 'null')
        .map(allowedBy)
    )
  if (only !== undefined) return JSON.stringify(only)
  if (contentMediaType !== undefined) return 'a file of a form (multipart/form-data), or base64'
  if (some) return joined(some.map(value => JSON.stringify(value)))
  switch (type) {
    case 'string':
      return minLength ? 'text that is not empty' : 'text'
    case 'boolean':
      return 'true or false'
    case 'integer':
      return `a whole number${range(schema as Schema)}`
    case 'number':
      return `a number${range(schema as Schema)}`
    case 'array': {
      const of = items ? ` of ${pluralOf(items)}` : ''
      return minItems ? `a list${of} that is not empty` : `a list${of}`
    }
    default:
      return 'an object'
  }
}

function pluralOf(schema: Schema): string {
  if (schema.anyOf) return joined(formsOf(schema).map(pluralOf))
  if (schema.type === 'array') return schema.items ? `lists of ${pluralOf(schema.items)}` : 'lists'
  return PLURALS[schema.type ?? ''] ?? 'values'
}

function range({ minimum, maximum }: Schema): string {
  if (minimum === undefined) return maximum === undefined ? '' : ` up to ${maximum}`
  return maximum === undefined ? ` from ${minimum}` : ` from ${minimum} to ${maximum}`
}

function joined(phrases: string[]): string {
  const different = [...new Set(phrases)]
  const last = different.pop()!
  return different.length === 0 ? last : `${different.join(', ')} or ${last}`
}
