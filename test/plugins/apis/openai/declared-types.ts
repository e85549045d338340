import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'

/** A type in the client's declarations, as far as JSON values can be checked. */
type Type =
  | { kind: 'any' | 'string' | 'number' | 'boolean' | 'null' | 'undefined' }
  | { kind: 'literal'; value: string | number | boolean }
  | { kind: 'array'; of: Type }
  | { kind: 'union'; of: Type[] }
  | { kind: 'name'; name: string; scope: string }
  | { kind: 'object'; fields: Map<string, { type: Type; optional: boolean }>; rest?: Type; extends: Type[] }

const ANY: Type = { kind: 'any' }
const TOKEN = /'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[A-Za-z_$][\w$]*|-?\d+(?:\.\d+)?|[^\s]/g

/**
 * Parses the declarations of the official client, so that corral's output can be checked against them: interfaces,
 * types and namespaces of plain data. Everything else in the files is skipped.
 */
class Declarations {
  readonly types = new Map<string, Type>()
  #tokens: string[] = []
  #at = 0

  read(file: string): void {
    const text = readFileSync(file, 'utf8')
    this.#tokens = text.replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, '').match(TOKEN) ?? []
    this.#at = 0
    while (this.#at < this.#tokens.length) this.#declaration('')
  }

  #next(): string {
    return this.#tokens[this.#at] ?? ''
  }

  #take(wanted?: string): string {
    const token = this.#next()
    if (wanted !== undefined && token !== wanted) {
      throw new Error(`Expected ${wanted}, found ${this.#tokens.slice(this.#at - 3, this.#at + 5).join(' ')}`)
    }
    this.#at++
    return token
  }

  #skip(open: string, close: string): void {
    let depth = 0
    do {
      const token = this.#take()
      if (token === open) depth++
      if (token === close) depth--
    } while (depth > 0)
  }

  #declaration(scope: string): void {
    const word = this.#take()
    if (word === 'interface') {
      const name = scope + this.#take()
      if (this.#next() === '<') this.#skip('<', '>')
      const parents: Type[] = []
      if (this.#next() === 'extends') {
        do {
          this.#take()
          parents.push(this.#type(scope))
        } while (this.#next() === ',')
      }
      const body = this.#object(`${name}.`)
      this.types.set(name, { ...body, extends: parents } as Type)
    } else if (word === 'type' && this.#tokens[this.#at + 1] === '=') {
      const name = scope + this.#take()
      this.#take('=')
      this.types.set(name, this.#type(scope))
    } else if (word === 'namespace') {
      const inner = `${scope}${this.#take()}.`
      this.#take('{')
      while (this.#next() !== '}') this.#declaration(inner)
      this.#take('}')
    } else if (word === 'class') {
      while (this.#next() !== '{') this.#take()
      this.#skip('{', '}')
    } else if (word === '{') {
      this.#at--
      this.#skip('{', '}')
    }
  }

  #object(scope: string): Type {
    const fields = new Map<string, { type: Type; optional: boolean }>()
    let rest: Type | undefined
    this.#take('{')
    while (this.#next() !== '}') {
      if (this.#next() === '[') {
        this.#skip('[', ']')
        this.#take(':')
        rest = this.#type(scope)
      } else {
        const name = this.#take().replace(/^'(.*)'$/, '$1')
        const optional = this.#next() === '?'
        if (optional) this.#take()
        this.#take(':')
        fields.set(name, { type: this.#type(scope), optional })
      }
      if (this.#next() === ';') this.#take()
    }
    this.#take('}')
    return { kind: 'object', fields, ...(rest && { rest }), extends: [] }
  }

  #type(scope: string): Type {
    const of: Type[] = []
    do {
      if (this.#next() === '|') this.#take()
      of.push(this.#postfix(scope))
    } while (this.#next() === '|')
    return of.length === 1 ? of[0]! : { kind: 'union', of }
  }

  #postfix(scope: string): Type {
    let type = this.#primary(scope)
    while (this.#next() === '[' || this.#next() === '&') {
      if (this.#take() === '[') {
        this.#take(']')
        type = { kind: 'array', of: type }
      } else this.#primary(scope)
    }
    return type
  }

  #primary(scope: string): Type {
    const token = this.#take()
    if (token === '(') {
      const inner = this.#type(scope)
      this.#take(')')
      return inner
    }
    if (token === '{') {
      this.#at--
      return this.#object(scope)
    }
    if (/^['"]/.test(token)) return { kind: 'literal', value: token.slice(1, -1) }
    if (/^-?\d/.test(token)) return { kind: 'literal', value: Number(token) }
    if (token === 'true' || token === 'false') return { kind: 'literal', value: token === 'true' }
    if (['string', 'number', 'boolean', 'null', 'undefined'].includes(token)) return { kind: token } as Type
    if (token === 'unknown' || token === 'any') return ANY
    let name = token
    while (this.#next() === '.') name += this.#take() + this.#take()
    if (this.#next() !== '<') return { kind: 'name', name, scope }
    if (name !== 'Array') {
      this.#skip('<', '>')
      return ANY
    }
    this.#take('<')
    const of = this.#type(scope)
    this.#take('>')
    return { kind: 'array', of }
  }
}

const packageFolder = dirname(createRequire(import.meta.url).resolve('openai'))
const declarations = new Declarations()
for (const file of [
  'shared',
  'responses/responses',
  'chat/completions/completions',
  'completions',
  'embeddings',
  'models'
]) {
  declarations.read(join(packageFolder, 'resources', `${file}.d.ts`))
}

function resolve({ name, scope }: { name: string; scope: string }): Type {
  const plain = name.replace(/^(\w+API|Shared)\./, '')
  const parts = scope.split('.')
  for (let length = parts.length; length >= 0; length--) {
    const found = declarations.types.get([...parts.slice(0, length).filter(part => part !== ''), plain].join('.'))
    if (found) return found
  }
  // ChatModel and ReasoningEffort are declared elsewhere, and accept any string.
  if (plain === 'ChatModel' || plain === 'ReasoningEffort') return { kind: 'string' }
  throw new Error(`The client declares no type ${name} in ${scope}`)
}

/** Fields that the client computes. */
const MADE_BY_CLIENT = new Set(['output_text'])

type Fields = Map<string, { type: Type; optional: boolean }>
const knownFields = new WeakMap<Type, Fields>()

function fieldsOf(type: Type & { kind: 'object' }): Fields {
  const known = knownFields.get(type)
  if (known) return known
  const inherited = type.extends.flatMap(parent => {
    const resolved = parent.kind === 'name' ? resolve(parent) : parent
    return resolved.kind === 'object' ? [...fieldsOf(resolved)] : []
  })
  const fields = new Map([...inherited, ...type.fields])
  knownFields.set(type, fields)
  return fields
}

/** Selects the forms that match the value's "type", if the forms differ by it. */
function meantForms(forms: readonly Type[], value: unknown): readonly Type[] {
  const given = (value as { type?: unknown } | null)?.type
  if (given === undefined) return forms
  const meant = forms.filter(form => {
    const resolved = form.kind === 'name' ? resolve(form) : form
    if (resolved.kind !== 'object') return resolved.kind === 'union'
    const declared = fieldsOf(resolved).get('type')
    return declared && faultOf(declared.type, given, '') === undefined
  })
  return meant.length > 0 ? meant : forms
}

function faultOf(type: Type, value: unknown, place: string): string | undefined {
  switch (type.kind) {
    case 'any':
      return undefined
    case 'literal':
      return value === type.value
        ? undefined
        : `${place} is ${JSON.stringify(value)}, not ${JSON.stringify(type.value)}`
    case 'null':
      return value === null ? undefined : `${place} is not null`
    case 'name':
      return faultOf(resolve(type), value, place)
    case 'array':
      if (!Array.isArray(value)) return `${place} is not a list`
      return value.map((item, index) => faultOf(type.of, item, `${place}[${index}]`)).find(fault => fault)
    case 'union': {
      const faults = meantForms(type.of, value).map(form => faultOf(form, value, place))
      return faults.some(fault => fault === undefined) ? undefined : faults.join('; ')
    }
    case 'object': {
      if (typeof value !== 'object' || value === null || Array.isArray(value)) return `${place} is not an object`
      for (const [name, { type: of, optional }] of fieldsOf(type)) {
        const field = (value as Record<string, unknown>)[name]
        if (field === undefined) {
          if (optional || MADE_BY_CLIENT.has(name)) continue
          return `${place}.${name} is missing`
        }
        const fault = faultOf(of, field, `${place}.${name}`)
        if (fault) return fault
      }
      return undefined
    }
    default:
      return typeof value === type.kind ? undefined : `${place} is ${JSON.stringify(value)}, not a ${type.kind}`
  }
}

/**
 * Describes how a value differs from a type that the official client declares, such as `Response`. Returns undefined if
 * it conforms.
 */
export function differs(name: string, value: unknown): string | undefined {
  return faultOf({ kind: 'name', name, scope: '' }, value, name)
}
