import { isObject } from '../../core/system/json-object.ts'
import { TooCostly, textReader } from './grammar-cost.ts'
import { readGrammar } from './grammar-text.ts'

type Fields = Record<string, unknown>

/** Maximum optional properties of one object, see `schemaGrammar`. */
const MAX_OPTIONAL = 256
/** Total limit for all objects in the schemas of one request. */
export const MAX_COPIES = MAX_OPTIONAL ** 3

const COMMON = `str ::= "\\"" ([^"\\\\] | "\\\\" [a-z"\\\\/])* "\\""
num ::= "-"? [0-9] [0-9.eE+-]*
any ::= str | num | "true" | "false" | "null" | map | list
map ::= "{" (str ":" any ("," str ":" any)*)? "}"
list ::= "[" (any ("," any)*)? "]"
`

/**
 * Returns a grammar (GBNF) with as many ways to read it as the grammar that llama.cpp makes from a JSON schema in the
 * form of `engineSchema`. Parts without influence on that number are left out: whitespace, numbers of comma-separated
 * items, limits of numbers and lengths.
 * @returns `copies`: names of optional properties that llama.cpp copies, the third power of their number for each object
 * @throws TooCostly
 */
export function schemaGrammar(schema: Fields): { text: string; copies: number } {
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
      rules.push(`${name} ::= ${visit((schema.$defs as Fields)[pointer.slice('#/$defs/'.length)])}\n`)
    }
    return name
  }

  /** @param more schema of properties without a schema of their own, if they are allowed */
  function object({ properties, required, additionalProperties: more }: Fields): string {
    const needed = new Set(Array.isArray(required) ? required : [])
    const named = Object.entries(properties as Fields)
    const pair = ([name, value]: [string, unknown]) => `${literal(JSON.stringify(name))} ":" ${visit(value)}`
    const always = named.filter(([name]) => needed.has(name)).map(pair)
    const others = named.filter(([name]) => !needed.has(name)).map(pair)
    copies += others.length ** 3
    if (copies > MAX_COPIES) throw new TooCostly()
    const own = more === undefined || more === false ? undefined : `str ":" ${visit(more)}`
    if (named.length === 0) return own === undefined ? '"{" "}"' : `"{" (${own} ("," ${own})*)? "}"`
    // Optional properties follow each other in their order, and any of them may be the first.
    let rest = rule('s', own === undefined ? '""' : `("," ${own})*`)
    const firsts: string[] = own === undefined ? [] : [`${own} ${rest}`]
    for (const each of others.toReversed()) {
      const one = rule('s', each)
      firsts.push(`${one} ${rest}`)
      rest = rule('s', `"," ${one} ${rest} | ${rest}`)
    }
    if (always.length > 0) return `"{" ${always.join(' "," ')} ${rest} "}"`
    return `"{" (${firsts.join(' | ')})? "}"`
  }

  function visit(node: unknown): string {
    if (!isObject(node)) return 'any'
    if (typeof node.$ref === 'string') return reference(node.$ref)
    const choices = node.anyOf ?? node.oneOf ?? (Array.isArray(node.type) && node.type.map(type => ({ ...node, type })))
    if (Array.isArray(choices)) return rule('u', choices.map(visit).join(' | '))
    if ('const' in node) return json(node.const)
    if (Array.isArray(node.enum)) return rule('u', node.enum.map(json).join(' | '))
    switch (node.type) {
      case 'object':
        return node.properties === undefined ? 'map' : rule('s', object(node))
      case 'array':
        return rule('s', array(node))
      case 'string':
        return typeof node.pattern === 'string' ? rule('p', `"\\"" (${patternGrammar(node.pattern)}) "\\""`) : 'str'
      case 'number':
      case 'integer':
        return 'num'
      case 'boolean':
        return '("true" | "false")'
      default:
        return node.type === 'null' ? '"null"' : 'any'
    }
  }

  function array({ items, prefixItems }: Fields): string {
    if (Array.isArray(prefixItems)) return `"[" ${prefixItems.map(visit).join(' "," ')} "]"`
    const item = rule('s', visit(items))
    return `"[" (${item} ("," ${item})*)? "]"`
  }

  const root = visit(schema)
  return { text: `root ::= ${root}\n${rules.join('')}${COMMON}`, copies }
}

/**
 * Returns a function that reports whether a text matches a pattern of `compilePattern`. Undefined if that takes too long,
 * or if JSON could write a character of the text in several ways.
 */
export function textMatcher(pattern: string): (text: string) => boolean | undefined {
  try {
    const admits = textReader(readGrammar(schemaGrammar({ type: 'string', pattern }).text).rules)
    return text => {
      try {
        return /[\p{Cc}\p{Cs}]/u.test(text) ? undefined : admits(JSON.stringify(text))
      } catch {
        return undefined
      }
    }
  } catch (error) {
    if (error instanceof TooCostly) return () => undefined
    throw error
  }
}

function json(value: unknown): string {
  return literal(JSON.stringify(value))
}

/** Whether counting must also start at a rule of such a grammar, because it may follow a long text. */
export const isBranching = (name: string): boolean => /^[upr]/.test(name)

function literal(text: string): string {
  return `"${text.replace(/[\\"]/g, '\\$&')}"`
}

/** Translates a pattern of `compilePattern` to GBNF, as llama.cpp's `_pattern_to_rule` does. */
function patternGrammar(pattern: string): string {
  const pieces = pattern.slice(1, -1).match(/\[(?:\\.|[^\]\\])*\]|\{[^}]*\}|[()|*+?]|(?:\\.|[^[{()|*+?\\])+/gsu) ?? []
  return pieces
    .map(piece => {
      if (/^[{)|*+?]/.test(piece)) return piece
      return /^[[(]/.test(piece) ? ` ${piece}` : ` "${piece.replace(/\\([$()*+.?^{|}])/g, '$1')}"`
    })
    .join('')
}
