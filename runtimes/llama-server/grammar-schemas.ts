import { isObject } from '../../core/system/json-object.ts'

type Fields = Record<string, unknown>

/** Keywords with one schema, with several by name, and with several in a list. */
const ONE = ['items', 'additionalProperties', 'additionalItems']
const NAMED = ['properties', '$defs', 'definitions']
const LISTS = ['allOf', 'anyOf', 'oneOf', 'prefixItems', 'items']

/** Most items that are written out one by one because an array must have more than it has places of its own. */
const MOST_FILLED = 16

/**
 * A request to llama-server with its JSON schemas in the form that llama.cpp can make grammars of; a request without
 * schemas is returned as it is. Every answer that fits the new schemas fits the old ones.
 */
export function withEngineSchemas(body: Fields): Fields {
  const { response_format: format, json_schema: bare, tools } = body
  const changed: Fields = {}
  if (isObject(format)) changed.response_format = formatWith(format)
  if (isObject(bare)) changed.json_schema = engineSchema(bare)
  if (Array.isArray(tools) && tools.length > 0) changed.tools = tools.map(toolWith)
  return Object.keys(changed).length === 0 ? body : { ...body, ...changed }
}

function formatWith(format: Fields): Fields {
  const { schema, json_schema: named } = format
  return {
    ...format,
    ...(isObject(schema) && { schema: engineSchema(schema) }),
    ...(isObject(named) && isObject(named.schema) && { json_schema: { ...named, schema: engineSchema(named.schema) } })
  }
}

function toolWith(tool: unknown): unknown {
  if (!isObject(tool) || !isObject(tool.function) || !isObject(tool.function.parameters)) return tool
  return { ...tool, function: { ...tool.function, parameters: engineSchema(tool.function.parameters) } }
}

/**
 * A schema without what llama.cpp refuses or passes over and can be said otherwise: references to the whole (`#`), `true`
 * as a schema, and arrays whose places have schemas of their own beside a number of items or a schema for the rest.
 */
export function engineSchema(schema: Fields): Fields {
  let name = 'whole'
  while (isObject(schema.$defs) && name in schema.$defs) name += '-'
  let named = false
  const whole = `#/$defs/${name}`

  /** @param fill whether arrays may be written out: those within what is written out would multiply */
  function plain(node: unknown, fill: boolean): unknown {
    if (node === true) return {}
    if (!isObject(node)) return node
    const made: Fields = { ...node }
    if (node.$ref === '#') {
      named = true
      made.$ref = whole
    }
    for (const key of ONE) {
      // For objects, llama.cpp knows both words itself.
      if (key in node && !(key === 'additionalProperties' && node[key] === true))
        made[key] = plain(node[key], fill && !hasPlaces(node))
    }
    for (const key of LISTS) {
      const list = node[key]
      if (Array.isArray(list)) made[key] = list.map(each => plain(each, fill))
    }
    for (const key of NAMED) {
      const map = node[key]
      if (isObject(map))
        made[key] = Object.fromEntries(Object.entries(map).map(([name, value]) => [name, plain(value, fill)]))
    }
    return withPlaces(made, fill)
  }

  const made = plain(schema, true) as Fields
  // What means nothing but itself is left to be refused.
  if (!named || schema.$ref === '#') return named ? schema : made
  const { $defs, ...own } = made
  return { ...made, $defs: { ...(isObject($defs) && $defs), [name]: own } }
}

/**
 * An array whose first items have schemas of their own: with exactly those, as many as there may or must be. llama.cpp
 * uses either these places or the schema of the rest, and no numbers beside the places.
 */
function withPlaces(node: Fields, fill: boolean): Fields {
  const { prefixItems, items, additionalItems, minItems, maxItems, ...others } = node
  const places = placesOf(node)
  if (places.length === 0 && items !== false) return node
  const rest = Array.isArray(items) ? additionalItems : items
  const least = typeof minItems === 'number' ? minItems : 0
  const bound = typeof maxItems === 'number' ? maxItems : Number.POSITIVE_INFINITY
  const most = rest === false ? Math.min(bound, places.length) : bound
  const count = Math.max(least, Math.min(places.length, most))
  // No array is like that, or none that could be written out.
  if (count > most || count > places.length + (fill ? MOST_FILLED : 0)) return node
  if (count === 0) return { ...others, items: {}, maxItems: 0 }
  const filled = Array.from({ length: count }, (_, place) => places[place] ?? rest ?? {})
  return { ...others, prefixItems: filled }
}

function placesOf({ prefixItems, items }: Fields): unknown[] {
  return Array.isArray(prefixItems) ? prefixItems : Array.isArray(items) ? items : []
}

const hasPlaces = (node: Fields) => placesOf(node).length > 0

/** Keywords of JSON Schema that llama.cpp's grammars always ignore. */
const NEVER = new Set(
  `multipleOf uniqueItems contains minContains maxContains minProperties maxProperties patternProperties
  propertyNames dependentRequired dependentSchemas not if`.split(/\s+/)
)
/** Keywords that its grammars enforce for whole numbers only. */
const BOUNDS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum']
const LENGTHS = ['minLength', 'maxLength']
const KNOWN_FORMAT = /^(date|time|date-time|uuid[1-5]?)$/
/** Where a schema has one of these keywords, only the first of them counts. */
const ALONE = ['$ref', 'oneOf', 'anyOf']
/** Keywords that are ignored beside these. */
const BESIDE = ['properties', 'required', 'items', 'pattern', 'allOf', 'enum', 'const', ...LENGTHS, ...BOUNDS]

/** The parts of a request's schemas that llama.cpp's grammars do not enforce, as JSON pointers; empty where all are. */
export function unenforced({ response_format: format, json_schema: bare }: Fields): string[] {
  const named = isObject(format) && isObject(format.json_schema) ? format.json_schema.schema : undefined
  return [isObject(format) ? format.schema : undefined, named, bare].filter(isObject).flatMap(unenforcedIn)
}

/** JSON pointers, as fragments of addresses, to what llama.cpp's grammar of a schema ignores. */
export function unenforcedIn(schema: unknown): string[] {
  const found: string[] = []

  function look(node: unknown, at: string): void {
    if (typeof node !== 'object' || node === null || Array.isArray(node)) return
    const fields = node as Fields
    const alone = ALONE.find(word => word in fields)
    const fractions = [fields.type].flat().includes('number')
    for (const [word, value] of Object.entries(fields)) {
      const passedOver =
        (NEVER.has(word) && value !== false) ||
        (fractions && BOUNDS.includes(word)) ||
        (LENGTHS.includes(word) && 'pattern' in fields) ||
        (word === 'format' && !KNOWN_FORMAT.test(String(value))) ||
        (word === 'allOf' && 'properties' in fields) ||
        (alone !== undefined && BESIDE.includes(word))
      if (passedOver) found.push(`${at}/${word}`)
    }
    const inside: [string, unknown][] = ['items', 'additionalProperties'].map(word => [word, fields[word]])
    for (const word of ['allOf', 'anyOf', 'oneOf', 'prefixItems']) {
      const list = fields[word]
      for (const [index, each] of Array.isArray(list) ? list.entries() : []) inside.push([`${word}/${index}`, each])
    }
    for (const word of NAMED) {
      for (const [name, each] of Object.entries(fields[word] ?? {})) inside.push([`${word}/${token(name)}`, each])
    }
    for (const [place, each] of inside) look(each, `${at}/${place}`)
  }

  look(schema, '#')
  return found
}

function token(name: string): string {
  // Half a character cannot be written in an address; it becomes a whole one.
  return encodeURIComponent(Buffer.from(name).toString().replaceAll('~', '~0').replaceAll('/', '~1'))
}
