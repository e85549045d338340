type Json = null | boolean | number | string | Json[] | JsonObject
export type JsonObject = { [key: string]: Json }

/** What has a name, told once for the whole document. */
export interface Components {
  /**
   * A schema as plain JSON, in which each inner schema whose `title` is a name (`LocalModel`) is a reference. One with
   * the keyword `documented` is that one instead.
   */
  plain(schema: unknown): Json
  /** A converted error reply as a reference; its name says surface, status and codes, as its description does. */
  error(status: string, reply: JsonObject): Json
  /** The schemas that have names. */
  schemas(): Record<string, Json>
  /** The error replies. */
  responses(): Record<string, Json>
}

const NAME = /^[A-Z][A-Za-z0-9]*$/
/** Where the values of a schema's keyword are data rather than schemas. */
const DATA = new Set(['const', 'enum', 'default', 'examples', 'example'])

export function createComponents(): Components {
  const named = new Map<string, { text: string; schema: Json }>()
  const errors = new Map<string, Json>()

  function convert(value: unknown): Json {
    if (Array.isArray(value)) return value.map(convert)
    if (typeof value !== 'object' || value === null) return value as Json
    const { title, documented, ...rest } = value as Record<string, unknown>
    if (documented !== undefined) return convert(documented)
    const isNamed = typeof title === 'string' && NAME.test(title)
    const converted: JsonObject = {}
    for (const [key, inner] of Object.entries(isNamed ? rest : (value as object))) {
      if (inner === undefined) continue
      converted[key] = DATA.has(key) ? (inner as Json) : convert(inner)
    }
    const plain = nullable(converted)
    return isNamed ? reference(title, plain) : plain
  }

  /** Schemas that share a name and differ are told apart by a number. */
  function reference(title: string, schema: Json): Json {
    const text = JSON.stringify(schema)
    for (let number = 1; ; number++) {
      const name = number === 1 ? title : `${title}${number}`
      const known = named.get(name)
      if (!known) named.set(name, { text, schema })
      if (!known || known.text === text) return { $ref: `#/components/schemas/${name}` }
    }
  }

  return {
    plain: convert,
    error(status, reply) {
      const surface = /"#\/components\/schemas\/(\w+)"/.exec(JSON.stringify(reply))?.[1]
      const codes = [...String(reply.description).matchAll(/`(\w+)`/g)].map(([, code]) => code!)
      if (!surface || codes.length === 0) return reply
      const name = [surface, status, ...codes].join('.')
      const known = errors.get(name)
      if (known && JSON.stringify(known) !== JSON.stringify(reply)) return reply
      errors.set(name, reply)
      return { $ref: `#/components/responses/${name}` }
    },
    schemas: () => byName([...named].map(([name, { schema }]) => [name, schema])),
    responses: () => byName([...errors])
  }
}

function byName(entries: [string, Json][]): Record<string, Json> {
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)))
}

/** `anyOf: [schema, null]` in a shorter form, where there is one. */
function nullable(schema: JsonObject): JsonObject {
  const { anyOf, ...rest } = schema
  if (!Array.isArray(anyOf) || anyOf.length !== 2 || JSON.stringify(anyOf[1]) !== '{"type":"null"}') return schema
  const inner = anyOf[0] as JsonObject
  if (Array.isArray(inner.anyOf)) return { ...inner, ...rest, anyOf: [...inner.anyOf, anyOf[1]!] }
  if (Array.isArray(inner.enum)) return { ...inner, ...rest, enum: [...inner.enum, null] }
  if (typeof inner.type === 'string' && !('const' in inner)) return { ...inner, ...rest, type: [inner.type, 'null'] }
  return schema
}
