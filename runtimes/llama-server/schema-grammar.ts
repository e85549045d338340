import { isObject } from '../../core/system/json-object.ts'

type Fields = Record<string, unknown>

const COMMON = `str ::= "\\"" ([^"\\\\] | "\\\\" [a-z"\\\\/])* "\\""
num ::= "-"? [0-9] [0-9.eE+-]*
any ::= str | num | "true" | "false" | "null" | map | list
map ::= "{" (str ":" any ("," str ":" any)*)? "}"
list ::= "[" (any ("," any)*)? "]"
`

/**
 * A grammar (GBNF) that can be followed in as many ways as the one that llama.cpp makes of a JSON schema. What has no
 * part in that is left out: whitespace, numbers of items between which commas stand, bounds of numbers and lengths.
 */
export function schemaGrammar(schema: unknown): string {
  const rules: string[] = []
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

  function object(node: Fields): string {
    const parts = [node, ...(Array.isArray(node.allOf) ? node.allOf.filter(isObject).map(resolved) : [])]
    const properties = Object.entries(Object.assign({}, ...parts.map(part => part.properties)))
    const required = new Set(parts.flatMap(part => (Array.isArray(part.required) ? part.required : [])))
    const pair = ([name, value]: [string, unknown]) => `${literal(JSON.stringify(name))} ":" ${visit(value)}`
    const always = properties.filter(([name]) => required.has(name)).map(pair)
    const others = properties.filter(([name]) => !required.has(name)).map(pair)
    const { additionalProperties: additional } = node
    const more = additional === false ? '' : `("," str ":" ${isObject(additional) ? visit(additional) : 'any'})*`
    if (properties.length === 0) return isObject(additional) ? `"{" (str ":" ${visit(additional)} ${more})? "}"` : 'map'
    // Those that may be absent follow each other in their order; any of them may be the first.
    let rest = rule('s', isObject(additional) ? more : '""')
    const firsts: string[] = []
    for (const each of others.toReversed()) {
      const one = rule('s', each)
      firsts.push(`${one} ${rest}`)
      rest = rule('s', `"," ${one} ${rest} | ${rest}`)
    }
    if (always.length > 0) return `"{" ${always.join(' "," ')} ${rest} "}"`
    return `"{" (${firsts.join(' | ')})? "}"`
  }

  function resolved(node: Fields): Fields {
    const target = typeof node.$ref === 'string' ? pointedAt(schema, node.$ref) : node
    return isObject(target) ? target : {}
  }

  function visit(node: unknown): string {
    if (!isObject(node)) return 'any'
    if (typeof node.$ref === 'string') return reference(node.$ref)
    const choices = node.oneOf ?? node.anyOf
    if (Array.isArray(choices)) return union(choices)
    if (Array.isArray(node.type)) return union(node.type.map(type => ({ ...node, type })))
    if ('const' in node) return literal(JSON.stringify(node.const) ?? 'null')
    if (Array.isArray(node.enum)) {
      return rule('u', node.enum.map(value => literal(JSON.stringify(value) ?? 'null')).join(' | ') || 'any')
    }
    const { type, items, prefixItems, pattern } = node
    const places = Array.isArray(prefixItems) ? prefixItems : Array.isArray(items) ? items : undefined
    if (places) return rule('s', `"[" ${places.map(visit).join(' "," ')} "]"`)
    if (type === 'array' || isObject(items)) {
      const item = rule('s', visit(items))
      return rule('s', `"[" (${item} ("," ${item})*)? "]"`)
    }
    if (type === 'object' || isObject(node.properties) || Array.isArray(node.allOf)) return rule('s', object(node))
    if ((type === 'string' || type === undefined) && typeof pattern === 'string') return patternRule(pattern)
    if (type === 'string') return 'str'
    if (type === 'number' || type === 'integer') return 'num'
    if (type === 'boolean') return '("true" | "false")'
    return type === 'null' ? '"null"' : 'any'
  }

  function patternRule(pattern: string): string {
    const text = patternGrammar(pattern)
    return text === undefined ? 'str' : rule('p', `"\\"" (${text}) "\\""`)
  }

  const root = visit(schema)
  return `root ::= ${root}\n${rules.join('')}${COMMON}`
}

/** Whether the ways of a rule of such a grammar have to be counted by themselves, since much may stand before it. */
export const isBranching = (name: string): boolean => /^[upr]/.test(name)

function literal(text: string): string {
  return `"${text.replace(/[\\"]/g, '\\$&').replace(/\n/g, '\\n').replace(/\r/g, '\\r')}"`
}

/** What a reference within the schema points at; undefined where there is nothing, which llama.cpp refuses. */
function pointedAt(schema: unknown, reference: string): unknown {
  if (!reference.startsWith('#')) return undefined
  let at: unknown = schema
  for (const step of reference.slice(1).split('/').slice(1)) {
    const key = step.replaceAll('~1', '/').replaceAll('~0', '~')
    if (typeof at !== 'object' || at === null || !Object.hasOwn(at, key)) return undefined
    at = (at as Fields)[key]
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

/** A regular expression as GBNF; undefined where llama.cpp takes it for any text. */
function patternGrammar(pattern: string): string | undefined {
  if (pattern.length < 2 || !pattern.startsWith('^') || !pattern.endsWith('$')) return undefined
  const inner = pattern.slice(1, -1)
  const piece = /\[(?:\\.|[^\]\\])*\]|\(\?:|[()|]|\{[^}]*\}|[*+?]|\.|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]/gsuy
  let made = ''
  for (let found = piece.exec(inner); found; found = piece.exec(inner)) {
    const [text] = found
    if (text.length > 1 && text.startsWith('[')) {
      made += ` ${text.replace(/\\([dws])/g, (_, kind: string) => CLASSES[kind]!.slice(1, -1))}`
    } else if (text === '(?:' || text === '(') made += ' ('
    else if (text === ')' || text === '|') made += ` ${text}`
    else if (/^[*+?]$/.test(text)) made += text
    else if (text.length > 1 && text.startsWith('{')) {
      if (!/^\{\d*(,\d*)?\}$/.test(text) || text === '{}') return undefined
      made += text.startsWith('{,') ? `{0${text.slice(1)}` : text
    } else if (text === '.') made += ' [^\\n\\r]'
    else if (/^[\^$\]}{[]$/.test(text)) return undefined
    else if (text.startsWith('\\')) made += ` ${CLASSES[text[1]!] ?? escaped(text)}`
    else made += ` ${literal(text)}`
  }
  return made
}

/** An escape as a literal of GBNF. */
function escaped(text: string): string {
  return /^\\([xutrn\\"[\]-])/.test(text) ? `"${text}"` : literal(text.slice(1))
}
