import { isObject } from '../../core/system/json-object.ts'

type Fields = Record<string, unknown>

/** What holds one schema, many by name, and many in a list. */
const ONE = ['items', 'additionalProperties', 'additionalItems']
const NAMED = ['properties', '$defs', 'definitions']
const LISTS = ['allOf', 'anyOf', 'oneOf', 'prefixItems', 'items']

/** Most items that are written out one by one because an array must have more than it has places of its own. */
const MOST_FILLED = 16

/**
 * A request to llama-server with its JSON schemas in words that llama.cpp makes grammars of; what has none is given back
 * as it is. Answers by the new words are answers by the old ones.
 */
export function withEngineSchemas(body: Fields): Fields {
  const { response_format: format, json_schema: bare, tools } = body
  const changed: Fields = {}
  if (isObject(format)) changed.response_format = formatWith(format)
  if (isObject(bare)) changed.json_schema = engineSchema(bare)
  if (Array.isArray(tools) && tools.length > 0) changed.tools = tools.map(toolWith)
  return { ...body, ...changed }
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

  function plain(node: unknown): unknown {
    if (node === true) return {}
    if (!isObject(node)) return node
    const made: Fields = { ...node }
    if (node.$ref === '#') {
      named = true
      made.$ref = whole
    }
    for (const key of ONE) {
      // For objects, llama.cpp knows both words itself.
      if (key in node && !(key === 'additionalProperties' && node[key] === true)) made[key] = plain(node[key])
    }
    for (const key of LISTS) {
      const list = node[key]
      if (Array.isArray(list)) made[key] = list.map(plain)
    }
    for (const key of NAMED) {
      const map = node[key]
      if (isObject(map))
        made[key] = Object.fromEntries(Object.entries(map).map(([name, value]) => [name, plain(value)]))
    }
    return withPlaces(made)
  }

  const made = plain(schema) as Fields
  // What means nothing but itself is left to be refused.
  if (!named || schema.$ref === '#') return named ? schema : made
  const { $defs, ...own } = made
  return { ...made, $defs: { ...(isObject($defs) && $defs), [name]: own } }
}

/**
 * An array whose first items have schemas of their own: with exactly those, as many as there may or must be. llama.cpp
 * heeds either these places or the schema of the rest, and no numbers beside the places.
 */
function withPlaces(node: Fields): Fields {
  const { prefixItems, items, additionalItems, minItems, maxItems, ...others } = node
  const places = Array.isArray(prefixItems) ? prefixItems : Array.isArray(items) ? items : []
  if (places.length === 0 && items !== false) return node
  const rest = Array.isArray(items) ? additionalItems : items
  const least = typeof minItems === 'number' ? minItems : 0
  const bound = typeof maxItems === 'number' ? maxItems : Number.POSITIVE_INFINITY
  const most = rest === false ? Math.min(bound, places.length) : bound
  const count = Math.max(least, Math.min(places.length, most))
  // No array is like that, or none that could be written out.
  if (count > most || count > places.length + MOST_FILLED) return node
  if (count === 0) return { ...others, items: {}, maxItems: 0 }
  const filled = Array.from({ length: count }, (_, place) => places[place] ?? rest ?? {})
  return { ...others, prefixItems: filled }
}
