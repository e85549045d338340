type Json = null | boolean | number | string | Json[] | { [key: string]: Json }

/** Schemas that have a name, told once for the whole document. */
export interface Components {
  /**
   * A schema as plain JSON, in which each inner schema whose `title` is a name (`LocalModel`) is a reference. One with
   * the keyword `documented` is that one instead.
   */
  plain(schema: unknown): Json
  /** The named ones, by name. */
  schemas(): Record<string, Json>
}

const NAME = /^[A-Z][A-Za-z0-9]*$/
/** Where the values of a schema's keyword are data rather than schemas. */
const DATA = new Set(['const', 'enum', 'default', 'examples', 'example'])

export function createComponents(): Components {
  const named = new Map<string, { text: string; schema: Json }>()

  function convert(value: unknown): Json {
    if (Array.isArray(value)) return value.map(convert)
    if (typeof value !== 'object' || value === null) return value as Json
    const { title, documented, ...rest } = value as Record<string, unknown>
    if (documented !== undefined) return convert(documented)
    const isNamed = typeof title === 'string' && NAME.test(title)
    const converted: Record<string, Json> = {}
    for (const [key, inner] of Object.entries(isNamed ? rest : (value as object))) {
      if (inner === undefined) continue
      converted[key] = DATA.has(key) ? (inner as Json) : convert(inner)
    }
    return isNamed ? reference(title, converted) : converted
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
    schemas: () =>
      Object.fromEntries([...named].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, { schema }]) => [name, schema]))
  }
}
