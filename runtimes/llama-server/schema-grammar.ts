import { isObject } from '../../core/system/json-object.ts'
import { TooCostly } from './grammar-cost.ts'

type Fields = Record<string, unknown>

/** Properties of one object that may be absent; see `SchemaGrammar.copies`. */
const MOST_OPTIONAL = 256
/** Of all objects in the schemas of one request. */
export const MOST_COPIES = MOST_OPTIONAL ** 3

export interface SchemaGrammar {
  text: string
  /**
   * What llama.cpp copies to make its own grammar: names of properties that may be absent, the third power of their
   * number for each object.
   */
  copies: number
}

const COMMON = `str ::= "\\"" ([^"\\\\] | "\\\\" [a-z"\\\\/])* "\\""
num ::= "-"? [0-9] [0-9.eE+-]*
any ::= str | num | "true" | "false" | "null" | map | list
map ::= "{" (str ":" any ("," str ":" any)*)? "}"
list ::= "[" (any ("," any)*)? "]"
`

/**
 * A grammar (GBNF) that can be followed in as many ways as the one that llama.cpp makes of a JSON schema. What has no
 * part in that is left out: whitespace, numbers of items between which commas stand, bounds of numbers and lengths.
 * @throws TooCostly
 */
export function schemaGrammar(schema: unknown): SchemaGrammar {
  const rules: string[] = []
  let copies = 0
  const references = new Map<string, string>()

  const rule = (kind: 'u' | 'p' | 's', text: string): string => {
    const name = `${kind}${rules.length}`
    rules.push(`${name} ::= ${text}\n`)
    return name
  }

  function reference(pointer: string): string {
    let name = references.get(pointer)
    if (name === undefined) {
      name = `r${references.size}`
      references.set(pointer, name)
      rules.push(`${name} ::= ${visit(pointedAt(schema, pointer))}\n`)
    }
    return name
  }

  function union(alternatives: readonly unknown[]): string {
    if (alternatives.length === 0) return 'any'
    return rule('u', alternatives.map(visit).join(' | '))
  }

  /** @param properties in their order @param additional schema of the others, where that is not any */
  function object(properties: readonly [string, unknown][], required: ReadonlySet<string>, more?: unknown): string {
    const pair = ([name, value]: [string, unknown]) => `${literal(JSON.stringify(name))} ":" ${visit(value)}`
    const always = properties.filter(([name]) => required.has(name)).map(pair)
    const others = properties.filter(([name]) => !required.has(name)).map(pair)
    const own = isObject(more) ? visit(more) : undefined
    copies += others.length ** 3
    if (copies > MOST_COPIES) throw new TooCostly()
    if (properties.length === 0) return own === undefined ? 'map' : `"{" (str ":" ${own} ("," str ":" ${own})*)? "}"`
    // Those that may be absent follow each other in their order; any of them may be the first.
    let rest = rule('s', own === undefined ? '""' : `("," str ":" ${own})*`)
    const firsts: string[] = []
    for (const each of others.toReversed()) {
      const one = rule('s', each)
      firsts.push(`${one} ${rest}`)
      rest = rule('s', `"," ${one} ${rest} | ${rest}`)
    }
    if (always.length > 0) return `"{" ${always.join(' "," ')} ${rest} "}"`
    return `"{" (${firsts.join(' | ')})? "}"`
  }

  /** One object with the properties of all parts; those of alternatives within them may be absent. */
  function allOf(parts: readonly unknown[]): string {
    const properties: [string, unknown][] = []
    const required = new Set<string>()
    const values: unknown[] = []
    const add = (part: unknown, always: boolean, seen: readonly string[] = []): void => {
      if (!isObject(part)) return
      if (typeof part.$ref === 'string') {
        if (!seen.includes(part.$ref)) add(pointedAt(schema, part.$ref), always, [...seen, part.$ref])
      } else if (Array.isArray(part.enum)) values.push(...part.enum)
      else {
        for (const property of propertiesOf(part)) {
          properties.push(property)
          if (always) required.add(property[0])
        }
      }
    }
    for (const part of parts) {
      const choices = isObject(part) && !('$ref' in part) ? choicesOf(part) : undefined
      if (choices) for (const choice of choices) add(choice, false)
      else add(part, true)
    }
    return `(${object(properties, required)})${values.map(value => ` | ${json(value)}`).join('')}`
  }

  /** In the order in which llama.cpp's `common_chat_schema_builder` looks for keywords: the first one decides. */
  function visit(node: unknown): string {
    if (!isObject(node)) return 'any'
    if ('$ref' in node) return typeof node.$ref === 'string' ? reference(node.$ref) : 'any'
    const choices = choicesOf(node)
    if (choices) return union(choices)
    if ('const' in node) return json(node.const)
    if ('enum' in node) return Array.isArray(node.enum) ? rule('u', node.enum.map(json).join(' | ') || 'any') : 'any'
    const { type = '', additionalProperties: more } = node
    const untyped = type === '' || type === null
    const hasProperties = 'properties' in node || ('additionalProperties' in node && more !== true)
    if ((untyped || type === 'object') && hasProperties) {
      const required = new Set(Array.isArray(node.required) ? node.required : [])
      return rule('s', object(propertiesOf(node), required, more))
    }
    if ((untyped || type === 'object' || type === 'string') && Array.isArray(node.allOf)) {
      return rule('s', allOf(node.allOf))
    }
    if (type === 'array' || (untyped && ('items' in node || 'prefixItems' in node))) return array(node)
    if (type === 'string' || (untyped && 'pattern' in node)) {
      return typeof node.pattern === 'string' ? patternRule(node.pattern) : 'str'
    }
    if (type === 'number' || type === 'integer') return 'num'
    if (type === 'boolean') return '("true" | "false")'
    if (type === 'object') return 'map'
    return type === 'null' ? '"null"' : 'any'
  }

  function array(node: Fields): string {
    const items = 'items' in node ? node.items : node.prefixItems
    if (Array.isArray(items)) return rule('s', `"[" ${items.map(visit).join(' "," ')} "]"`)
    const item = rule('s', visit(items))
    return rule('s', `"[" (${item} ("," ${item})*)? "]"`)
  }

  function patternRule(pattern: string): string {
    const text = patternGrammar(pattern)
    return text === undefined ? 'str' : rule('p', `"\\"" (${text}) "\\""`)
  }

  const root = visit(schema)
  return { text: `root ::= ${root}\n${rules.join('')}${COMMON}`, copies }
}

/** The schemas of which one holds: a list of types is one for each of them. */
function choicesOf(node: Fields): unknown[] | undefined {
  if ('oneOf' in node || 'anyOf' in node) {
    const choices = 'oneOf' in node ? node.oneOf : node.anyOf
    return Array.isArray(choices) ? choices : []
  }
  return Array.isArray(node.type) ? node.type.map(type => ({ ...node, type })) : undefined
}

function propertiesOf({ properties }: Fields): [string, unknown][] {
  return isObject(properties) ? Object.entries(properties) : []
}

function json(value: unknown): string {
  return literal(JSON.stringify(value) ?? 'null')
}

/** Whether the ways of a rule of such a grammar have to be counted by themselves, since much may stand before it. */
export const isBranching = (name: string): boolean => /^[upr]/.test(name)

const literal = (text: string) => `"${quoted(text)}"`

function quoted(text: string): string {
  return text.replace(/[\\"]/g, '\\$&').replace(/\n/g, '\\n').replace(/\r/g, '\\r')
}

/** What a reference within the schema points at; undefined where there is nothing, which llama.cpp refuses. */
function pointedAt(schema: unknown, reference: string): unknown {
  if (!reference.startsWith('#')) return undefined
  let at: unknown = schema
  for (const step of reference.slice(1).split('/').slice(1)) {
    // llama.cpp knows no escapes in pointers, and reads the number at the beginning of an index.
    const key = Array.isArray(at) ? Number.parseInt(step, 10) : step
    if (typeof at !== 'object' || at === null || !Object.hasOwn(at, key)) return undefined
    at = (at as Record<string | number, unknown>)[key]
  }
  return at
}

const CLASSES: Record<string, string> = {
  d: '[0-9]',
  w: '[a-zA-Z0-9_]',
  s: '[ \\t]',
  D: '[^0-9]',
  W: '[^a-z]',
  S: '[^ ]'
}

/** Escapes that mean the same in GBNF. */
const GBNF_ESCAPE = /\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"[\]-])/y

/**
 * A regular expression as GBNF, as llama.cpp's `_pattern_to_rule` writes it; undefined where it takes it for any text.
 * Some builds know classes such as `\d`, and anchors within a pattern as characters; so they count here.
 */
function patternGrammar(pattern: string): string | undefined {
  if (pattern.length < 2 || !pattern.startsWith('^') || !pattern.endsWith('$')) return undefined
  const inner = pattern.slice(1, -1)
  let at = 0
  const take = (expression: RegExp): string | undefined => {
    expression.lastIndex = at
    const found = expression.exec(inner)?.[0]
    at += found?.length ?? 0
    return found
  }

  let made = ''
  while (at < inner.length) {
    const group = take(/\((?:\?:)?/y)
    if (group) {
      if (inner[at] === '?') return undefined
      made += ' ('
      continue
    }
    const plain = take(/[)|]/y)
    const quantifier = plain ?? take(/[*+?]/y)
    if (quantifier) {
      made += plain ? ` ${plain}` : quantifier
      continue
    }
    const bounds = take(/\{[^}]*\}/y)
    if (bounds) {
      const written = repetition(bounds)
      if (written === undefined) return undefined
      made += written
      continue
    }
    if (take(/\./y)) {
      made += ' [^\\n\\r]'
      continue
    }
    const characters = take(/\[(?:\\.|[^\]\\])*\]/sy)
    if (characters) {
      made += ` ${characters.replace(/\\([dws])/g, (_, kind: string) => CLASSES[kind]!.slice(1, -1))}`
      continue
    }
    const known = take(/\\[dwsDWS]/y)
    if (known) {
      made += ` ${CLASSES[known[1]!]}`
      continue
    }
    // Escapes belong to the text before a quantifier, other characters only where they are alone.
    let text = ''
    for (let first = true; ; first = false) {
      const sign = take(GBNF_ESCAPE) ?? take(/\\./suy)?.slice(1)
      if (sign !== undefined) text += /^\\./su.test(sign) ? sign : quoted(sign)
      else {
        const character = take(first ? /[^|.()[\]{}*+?\\]/uy : /[^|.()[\]{}*+?\\](?![|()[\]{}*+?])/uy)
        if (character === undefined) break
        text += quoted(character)
      }
      if (/^\\[dwsDWS]/.test(inner.slice(at, at + 2))) break
    }
    if (text === '') return undefined
    made += ` "${text}"`
  }
  return made
}

/** `{2}`, `{2,}`, `{,3}` and `{2,3}`, with what C++ passes over in numbers; undefined for others. */
function repetition(bounds: string): string | undefined {
  const numbers = bounds.slice(1, -1).split(',')
  const [least, most] = numbers.map(text => (text === '' ? 0 : Number.parseInt(text, 10)))
  if (numbers.length > 2 || least === undefined || Number.isNaN(least) || Number.isNaN(most)) return undefined
  if (numbers.length === 1) return numbers[0] === '' ? undefined : `{${least}}`
  return `{${Math.max(0, least)},${numbers[1] === '' ? '' : Math.max(0, most!)}}`
}
