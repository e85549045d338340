import { isObject } from '../../core/system/json-object.ts'

type Fields = Record<string, unknown>

/** Words of JSON Schema that llama.cpp's grammars pass over wherever they stand. */
const NEVER = new Set([
  'multipleOf',
  'uniqueItems',
  'contains',
  'minContains',
  'maxContains',
  'minProperties',
  'maxProperties',
  'patternProperties',
  'propertyNames',
  'dependentRequired',
  'dependentSchemas',
  'not',
  'if'
])
/** Those that hold for whole numbers only. */
const BOUNDS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum']
const LENGTHS = ['minLength', 'maxLength']
const KNOWN_FORMAT = /^(date|time|date-time|uuid[1-5]?)$/
/** What a schema says is taken from the first of these alone. */
const ALONE = ['$ref', 'oneOf', 'anyOf']
/** What would hold beside them. */
const BESIDE = ['properties', 'required', 'items', 'pattern', 'allOf', 'enum', 'const', ...LENGTHS, ...BOUNDS]

const INSIDE = ['items', 'additionalProperties']
const NAMED = ['properties', '$defs', 'definitions']
const LISTS = ['allOf', 'anyOf', 'oneOf', 'prefixItems']

/** The schemas that a whole answer is held to, as they were given. */
function schemasOf({ response_format: format, json_schema: bare }: Fields): Fields[] {
  const named = isObject(format) && isObject(format.json_schema) ? format.json_schema.schema : undefined
  return [isObject(format) ? format.schema : undefined, named, bare].filter(isObject)
}

/**
 * What of the schemas of a request's format an answer is not held to, as JSON pointers; empty where it is held to all.
 * llama.cpp's grammars pass it over.
 */
export function unenforced(body: Fields): string[] {
  return schemasOf(body).flatMap(unenforcedIn)
}

/** JSON pointers, as fragments of addresses, to what llama.cpp's grammar of a schema passes over. */
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
    const inside: [string, unknown][] = INSIDE.map(word => [word, fields[word]])
    for (const word of LISTS) {
      const list = fields[word]
      if (Array.isArray(list)) inside.push(...list.map((each, index): [string, unknown] => [`${word}/${index}`, each]))
    }
    for (const word of NAMED) {
      inside.push(
        ...Object.entries(fields[word] ?? {}).map(([name, each]): [string, unknown] => [`${word}/${token(name)}`, each])
      )
    }
    for (const [place, each] of inside) look(each, `${at}/${place}`)
  }

  look(schema, '#')
  return found
}

function token(name: string): string {
  // What is half a character, which no address can hold, becomes a whole one.
  return encodeURIComponent(Buffer.from(name).toString().replaceAll('~', '~0').replaceAll('/', '~1'))
}
