import { CorralError } from '../../core/errors.ts'
import { setNewest } from '../../core/system/collections.ts'
import { isObject } from '../../core/system/json-object.ts'
import { TooCostly } from './grammar-cost.ts'
import { textMatcher } from './schema-grammar.ts'
import {
  areApart,
  BOUNDS,
  contradict,
  DEFINITIONS,
  type Fields,
  fits,
  getLimit,
  getRange,
  getTypes,
  getValues,
  given,
  hasType,
  listConstraints,
  located,
  type Made,
  malformed,
  Never,
  type Part,
  pointerToken,
  pointerTokens,
  propertiesOf,
  schemasIn,
  shown,
  UNCHECKED,
  UNENFORCED,
  unfit,
  withoutWrapping,
  written
} from './schema-keywords.ts'
import { compilePattern, MAX_REPETITIONS, textsPattern } from './schema-pattern.ts'

/*
 * llama.cpp translates a subset of JSON Schema into grammars and silently ignores the rest. On some contradictions,
 * such as `minLength` above `maxLength`, it never finishes. So corral rewrites schemas for it, in three steps:
 *
 * 1. A schema becomes a list of schemas that all apply. `$ref` beside other keywords and `allOf` add to that list.
 * 2. `anyOf`, `oneOf` and lists of types become one schema for each alternative, combined with everything beside them.
 * 3. Each remaining list has one type. Its keywords are merged and written in the form that llama.cpp enforces.
 *
 * Schemas that no value fits are left out if they are optional or an alternative. Every value that fits the result fits
 * the given schema, except for the constraints that are reported as unenforced.
 */

export interface EngineSchema {
  schema: Fields
  /** JSON pointers, as URI fragments, to the constraints that the grammar does not enforce. */
  unenforced: readonly string[]
  /** Characters and items that llama.cpp writes out one by one for length limits. */
  writtenOut: number
}

/** Maximum number of schemas that one schema may become. Alternatives multiply the keywords beside them. */
const MAX_NODES = 20_000
/** Values of an enum that cost as much as one schema. */
const VALUES_PER_NODE = 2
const MAX_LENGTH = 4 * 2 ** 20
const MAX_WRITTEN_OUT = 200_000
/** llama.cpp counts a few more rules for a list than the list has items. */
const MAX_ITEMS = MAX_REPETITIONS - 20
/** Alternatives of a `oneOf` that are compared with each other, at most. */
const MAX_COMPARED = 50
/** Array items that may be written out to reach `minItems` beyond the listed places. */
const MAX_FILLED = 16
/** An enum with more texts becomes one pattern, because llama.cpp tries each text for every token. */
const MANY_TEXTS = 100
/** llama.cpp writes wrong grammars for multi-digit integers with one limit, so both limits are set. */
const FAR = 999_999_999_999_999
/** Integers up to this size fit into 64 bits. */
const MAX_INTEGER = 9e18
const KNOWN_FORMAT = /^(date|time|date-time|uuid[1-5]?)$/

/** Results by the text of the schema, because programs send the same schemas with every request. */
const known = new Map<string, EngineSchema | CorralError | TooCostly>()
const MAX_KNOWN = 256
/** Maximum length in characters of a cached schema and its result. */
const MAX_KNOWN_LENGTH = 100_000

/**
 * Rewrites a JSON schema in the form that llama.cpp enforces.
 * @param forFormat whether the result is only for a grammar. Otherwise the model also reads it, as a tool's parameters
 * @throws CorralError `invalid_request` for a schema that is malformed or that no value can fit; TooCostly
 */
export function engineSchema(schema: Fields, forFormat = true): EngineSchema {
  const key = `${forFormat} ${JSON.stringify(schema)}`
  const found = known.get(key)
  const result = found ?? compile(schema, forFormat)
  const isShort = () => key.length <= MAX_KNOWN_LENGTH && JSON.stringify(result).length <= MAX_KNOWN_LENGTH
  if (found || isShort()) setNewest(known, key, result, MAX_KNOWN)
  if (result instanceof Error) throw result
  return result
}

function compile(schema: Fields, forFormat: boolean): EngineSchema | CorralError | TooCostly {
  try {
    let compiler = new Compiler(schema, forFormat, new Map())
    let made = compiler.run()
    const endless = compiler.endless()
    if (endless.size > 0) {
      compiler = new Compiler(schema, forFormat, endless)
      made = compiler.run()
    }
    if (made instanceof Never) throw made
    requireLength(made, MAX_LENGTH)
    return { schema: made, unenforced: [...compiler.unenforced], writtenOut: compiler.writtenOut }
  } catch (error) {
    if (error instanceof Never) return unfit(error)
    if (error instanceof CorralError || error instanceof TooCostly) return error
    throw error
  }
}

/** @throws TooCostly if the JSON text of a value is longer than about `left` characters */
function requireLength(value: unknown, left: number): number {
  let rest = left - (typeof value === 'string' ? value.length : 8)
  if (rest < 0) throw new TooCostly()
  if (typeof value !== 'object' || value === null) return rest
  for (const [name, each] of Object.entries(value)) rest = requireLength(each, rest - name.length)
  return rest
}

/** Returns the reason if no value fits. */
function attempt(make: () => Fields): Made {
  try {
    return make()
  } catch (error) {
    if (error instanceof Never) return error
    throw error
  }
}

/** @throws Never if no value fits any of the alternatives */
function requireUsable(made: readonly Made[]): Fields[] {
  const usable = made.filter((each): each is Fields => !(each instanceof Never))
  if (usable.length === 0) throw made[0]
  return usable
}

class Compiler {
  readonly unenforced = new Set<string>()
  writtenOut = 0
  readonly #root: Fields
  readonly #forFormat: boolean
  /** Pointers to schemas that no finite value fits. */
  readonly #endless: ReadonlyMap<string, Never | undefined>
  readonly #names = new Set<string>()
  /** Definitions by the pointer that refers to them. */
  readonly #definitions = new Map<string, { name: string; made?: Made }>()
  readonly #todo: string[] = []
  readonly #unions: { at: string; alternatives: readonly Fields[] }[] = []
  #nodes = 0

  constructor(root: Fields, forFormat: boolean, endless: ReadonlyMap<string, Never | undefined>) {
    this.#root = root
    this.#forFormat = forFormat
    this.#endless = endless
  }

  run(): Made {
    const made = attempt(() => this.#visit([located(this.#root, '#')]))
    for (let pointer = this.#todo.pop(); pointer !== undefined; pointer = this.#todo.pop()) {
      const target = this.#target(pointer, pointer)
      this.#definitions.get(pointer)!.made = attempt(() => this.#visit([located(target, pointer)]))
    }
    const definitions: Fields = {}
    for (const { name, made } of this.#definitions.values()) if (!(made instanceof Never)) definitions[name] = made
    const resolve = (reference: string) => definitions[reference.slice('#/$defs/'.length)]
    for (const { at, alternatives } of this.#unions) {
      const isExclusive =
        alternatives.length <= MAX_COMPARED &&
        alternatives.every((a, index) =>
          alternatives.slice(index + 1).every(b => areApart(a, b, resolve, () => this.#step()))
        )
      if (!isExclusive) this.unenforced.add(`${at}/oneOf`)
    }
    return made instanceof Never || this.#definitions.size === 0 ? made : { ...made, $defs: definitions }
  }

  /** Returns pointers to definitions that no finite value fits, such as an object that requires one of its kind. */
  endless(): Map<string, Never | undefined> {
    const finite = new Set<string>()
    const ends = (made: unknown): boolean => {
      if (made instanceof Never) return false
      if (!isObject(made)) return true
      if (typeof made.$ref === 'string') return finite.has(made.$ref)
      const choices = made.anyOf ?? made.oneOf
      if (Array.isArray(choices)) return choices.some(ends)
      if (Array.isArray(made.prefixItems)) return made.prefixItems.every(ends)
      const { properties, required } = made
      if (isObject(properties)) return !Array.isArray(required) || required.every(name => ends(properties[name]))
      return !(Number(made.minItems) > 0) || ends(made.items)
    }
    // In chains, the last definition is the finite one.
    const definitions = [...this.#definitions].reverse()
    for (let size = -1; size < finite.size; ) {
      size = finite.size
      for (const [, { name, made }] of definitions) if (ends(made)) finite.add(`#/$defs/${name}`)
    }
    const endless = definitions.filter(([, { name }]) => !finite.has(`#/$defs/${name}`))
    return new Map(endless.map(([pointer, { made }]) => [pointer, made instanceof Never ? made : undefined]))
  }

  /** Reports these keywords as unenforced in each part that has them. */
  #report(parts: readonly Part[], ...keywords: string[]): void {
    for (const word of keywords) for (const { at } of given(parts, word)) this.unenforced.add(at)
  }

  #step(nodes = 1): void {
    this.#nodes += nodes
    if (this.#nodes > MAX_NODES) throw new TooCostly()
  }

  // ---- references --------------------------------------------------------------------------------------------------

  #target(reference: string, at: string): unknown {
    if (!reference.startsWith('#')) {
      throw malformed(at, 'refers to another document. Put the schema that it refers to into "$defs"')
    }
    let target: unknown = this.#root
    for (const token of pointerTokens(reference)) {
      const isThere = typeof target === 'object' && target !== null && Object.hasOwn(target, token)
      if (!isThere) throw malformed(at, `refers to "${shown(reference)}", which is not in the schema`)
      target = (target as Fields)[token]
    }
    return target
  }

  /** Returns a reference to a definition, which is compiled later. */
  #reference(reference: string, at: string): Fields {
    if (this.#target(reference, `${at}/$ref`) === false) throw new Never(reference, 'is false')
    this.#requireEnd(reference, at)
    let definition = this.#definitions.get(reference)
    if (!definition) {
      // llama.cpp supports no escapes in references, and confuses names that differ only in characters other than
      // letters and digits.
      const [word, name = '', ...more] = pointerTokens(reference)
      const isPlain = DEFINITIONS.includes(word!) && more.length === 0 && /^(?!d\d)[a-zA-Z0-9]+$/.test(name)
      definition = { name: isPlain && !this.#names.has(name) ? name : `d${this.#definitions.size}` }
      this.#names.add(definition.name)
      this.#definitions.set(reference, definition)
      this.#todo.push(reference)
    }
    return { $ref: `#/$defs/${definition.name}` }
  }

  #requireEnd(reference: string, at: string): void {
    if (this.#endless.has(reference))
      throw this.#endless.get(reference) ?? new Never(at, 'refers to a schema whose values would never end')
  }

  /** Adds the parts from `$ref` and `allOf`, and removes these keywords. */
  #expand(given: readonly Part[]): Part[] {
    const parts: Part[] = []
    const seen = new Set<string>()
    const todo = given.toReversed()
    for (let part = todo.pop(); part; part = todo.pop()) {
      this.#step()
      const { at } = part
      const { $ref: reference, allOf, ...schema } = part.schema
      parts.push({ schema, at })
      const more = schemasIn(allOf, `${at}/allOf`)
      if (reference !== undefined) {
        if (typeof reference !== 'string') throw malformed(`${at}/$ref`, 'must be text')
        this.#requireEnd(reference, at)
        if (!seen.has(reference)) more.push([this.#target(reference, `${at}/$ref`), reference])
        seen.add(reference)
      }
      for (const [each, place] of more.toReversed()) todo.push(located(each, place))
    }
    return parts
  }

  // ---- schemas -----------------------------------------------------------------------------------------------------

  /** Compiles schemas that all apply. Absent ones (undefined) allow anything. @throws Never */
  #all(schemas: readonly (readonly [schema: unknown, at: string])[]): Fields {
    const parts = schemas.flatMap(([schema, at]) => (schema === undefined ? [] : [located(schema, at)]))
    return parts.length === 0 ? {} : this.#visit(parts)
  }

  /** @throws Never */
  #visit(given: readonly Part[]): Fields {
    this.#step()
    const single = given.length === 1 ? withoutWrapping(given[0]!) : undefined
    if (single && typeof single.schema.$ref === 'string' && listConstraints(single.schema).length === 1) {
      return written([single], this.#reference(single.schema.$ref, single.at))
    }
    const parts = this.#expand(single ? [single] : given)
    const excluding = parts.find(
      ({ schema: { not } }) => not === true || (isObject(not) && listConstraints(not).length === 0)
    )
    if (excluding) throw new Never(`${excluding.at}/not`, 'excludes every value')
    const choice = parts.findIndex(({ schema }) => 'anyOf' in schema || 'oneOf' in schema)
    if (choice !== -1) return this.#choices(parts, choice)
    const types = getTypes(parts)
    this.#report(parts, ...UNENFORCED)
    const values = getValues(parts)
    if (values) return this.#values(parts, values, types)
    if (types.length === 0) return written(parts, {})
    const made = types.map(type => attempt(() => this.#typed(parts, type)))
    const usable = requireUsable(made)
    if (usable.length === 1) return usable[0]!
    // A list of types stays unless a type takes another form.
    const [{ schema }] = parts as [Part]
    const isSame = (each: Made, index: number) =>
      JSON.stringify(each) === JSON.stringify(written(parts, { ...schema, type: types[index] }))
    return parts.length === 1 && made.every(isSame) ? written(parts, schema) : { anyOf: usable }
  }

  #choices(parts: readonly Part[], index: number): Fields {
    const { schema, at } = parts[index]!
    const word = 'anyOf' in schema ? 'anyOf' : 'oneOf'
    const { [word]: list, ...rest } = schema
    const alternatives = schemasIn(list, `${at}/${word}`)
    if (alternatives.length === 0) throw malformed(`${at}/${word}`, 'must be a non-empty list of schemas')
    const beside = parts.toSpliced(index, 1, { schema: rest, at }).flatMap(({ schema, at }): Part[] => {
      const words = listConstraints(schema)
      return words.length === 0 ? [] : [{ schema: Object.fromEntries(words.map(word => [word, schema[word]])), at }]
    })
    const made = alternatives.map(([each, place]) => attempt(() => this.#visit([...beside, located(each, place)])))
    const usable = requireUsable(made)
    if (word === 'oneOf' && usable.length > 1) this.#unions.push({ at, alternatives: usable })
    return written(parts, { [word]: usable })
  }

  #values(parts: readonly Part[], values: readonly unknown[], types: readonly string[]): Fields {
    const isTyped = parts.some(({ schema }) => 'type' in schema) && types.length > 0
    this.#step(values.length / VALUES_PER_NODE)
    let fitting = values.filter(value => (!isTyped || types.some(type => hasType(value, type))) && fits(value, parts))
    for (const part of parts.filter(hasPattern)) {
      const compiled = this.#pattern(part, pattern => compilePattern(pattern))
      const matches = compiled && textMatcher(compiled.pattern)
      fitting = fitting.filter(value => {
        const found = isText(value) ? matches?.(value) : false
        if (found === undefined || (found && compiled?.loose)) this.#report([part], 'pattern')
        return found !== false || !isText(value)
      })
    }
    const [first] = parts as [Part]
    if (fitting.length === 0) {
      const { at } = parts.find(({ schema }) => 'enum' in schema || 'const' in schema)!
      throw new Never(at, 'has no value that fits all of its keywords')
    }
    for (const [type, words] of Object.entries(UNCHECKED)) {
      if (fitting.some(value => hasType(value, type))) this.#report(parts, ...words)
    }
    const texts = fitting.filter(isText)
    const isMany = this.#forFormat && texts.length > MANY_TEXTS && texts.length === fitting.length
    const pattern = isMany ? textsPattern(texts) : undefined
    if (pattern !== undefined) return { type: 'string', pattern }
    return written(parts, {
      ...(parts.length === 1 && 'type' in first.schema && { type: first.schema.type }),
      ...(fitting.length === 1 && 'const' in first.schema ? { const: fitting[0] } : { enum: fitting })
    })
  }

  /** Uses the regular expression of a part. */
  #pattern<Result>({ schema: { pattern }, at }: Part, use: (pattern: string) => Result): Result {
    try {
      if (isText(pattern)) return use(pattern)
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error
    }
    throw malformed(`${at}/pattern`, 'must be a regular expression')
  }

  #typed(parts: readonly Part[], type: string): Fields {
    if (type === 'object') return this.#object(parts)
    if (type === 'array') return this.#array(parts)
    if (type === 'string') return this.#string(parts)
    return type === 'integer' || type === 'number' ? this.#number(parts, type) : written(parts, { type })
  }

  // ---- objects -----------------------------------------------------------------------------------------------------

  #object(parts: readonly Part[]): Fields {
    this.#report(parts, 'propertyNames', 'patternProperties', 'dependentRequired', 'dependentSchemas', 'dependencies')
    const lists = given(parts, 'required').filter(({ value }) => Array.isArray(value))
    const required = [...new Set(lists.flatMap(({ value }) => value).filter(isText))]
    const names = new Set([...parts.flatMap(part => Object.keys(propertiesOf(part))), ...required])
    const others = this.#additional(parts)
    const closed = given(parts, 'additionalProperties').find(({ value }) => value === false)
    let isOpen =
      others !== undefined || [...given(parts, 'properties'), ...given(parts, 'additionalProperties')].length === 0

    const properties: Fields = {}
    for (const name of names) {
      const made = attempt(() => this.#property(parts, name))
      if (!(made instanceof Never)) properties[name] = made
      else if (required.includes(name)) throw made
      else if (isOpen) {
        for (const part of parts.filter(part => Object.hasOwn(propertiesOf(part), name)))
          this.unenforced.add(`${part.at}/properties/${pointerToken(name)}`)
      }
    }

    const { min, max } = getRange(parts, 'minProperties', 'maxProperties')
    if (required.length > max) contradict(parts, 'maxProperties', 'required')
    if (closed && Object.keys(properties).length < min && given(parts, 'patternProperties').length === 0) {
      contradict(parts, 'minProperties', 'additionalProperties')
    }
    if (max === required.length) {
      for (const name of Object.keys(properties)) if (!required.includes(name)) delete properties[name]
      isOpen = false
    }
    const count = Object.keys(properties).length
    if (isOpen || count > max) this.#report(parts, 'maxProperties')
    if (required.length < min) {
      if (!isOpen && count === min) required.splice(0, count, ...Object.keys(properties))
      else this.#report(parts, 'minProperties')
    }
    // llama.cpp copies these characters into its grammar unescaped.
    if (Object.keys(properties).some(name => name === '*' || /[\]\\^"\p{Cc}]/u.test(name))) isOpen = false

    const isPlain = isOpen && others === undefined && count === 0
    return written(parts, {
      type: 'object',
      ...(!isPlain && { properties }),
      ...((lists.length > 0 || required.length > 0) && { required }),
      ...(isOpen && !isPlain && { additionalProperties: others ?? true }),
      ...(!isOpen && closed && { additionalProperties: false })
    })
  }

  /** Compiles the schema for properties without a schema of their own. Returns undefined if they are forbidden. */
  #additional(parts: readonly Part[]): Fields | true | undefined {
    const all = given(parts, 'additionalProperties')
    if (all.length === 0) return undefined
    if (all.every(({ value }) => value === true)) return true
    const made = attempt(() => this.#all(all.map(({ value, at }) => [value, at])))
    return made instanceof Never ? undefined : made
  }

  #property(parts: readonly Part[], name: string): Fields {
    return this.#all(
      parts.map(part => {
        const properties = propertiesOf(part)
        if (Object.hasOwn(properties, name)) return [properties[name], `${part.at}/properties/${pointerToken(name)}`]
        // Patterns of names are not checked here.
        const more = 'patternProperties' in part.schema ? undefined : part.schema.additionalProperties
        const at = `${part.at}/additionalProperties`
        if (more === false) throw new Never(at, `forbids "${shown(name)}"`)
        return [more, at]
      })
    )
  }

  // ---- arrays ------------------------------------------------------------------------------------------------------

  #array(parts: readonly Part[]): Fields {
    this.#report(parts, 'contains', 'minContains', 'maxContains')
    const lists = parts.map(({ schema: { prefixItems, items, additionalItems }, at }) => {
      const isOlder = Array.isArray(items)
      const places = Array.isArray(prefixItems)
        ? schemasIn(prefixItems, `${at}/prefixItems`)
        : schemasIn(isOlder ? items : [], `${at}/items`)
      const rest = isOlder ? ([additionalItems, `${at}/additionalItems`] as const) : ([items, `${at}/items`] as const)
      return { places, rest }
    })
    const itemAt = (place: number) => attempt(() => this.#all(lists.map(({ places, rest }) => places[place] ?? rest)))
    const { min, ...range } = getRange(parts, 'minItems', 'maxItems')
    let { max } = range
    const count = Math.max(...lists.map(({ places }) => places.length))
    const places: Fields[] = []
    while (places.length < Math.min(count, max)) {
      const made = itemAt(places.length)
      if (!(made instanceof Never)) places.push(made)
      else if (places.length < min) throw made
      else max = places.length
    }
    const rest = max > count ? itemAt(count) : {}
    if (rest instanceof Never) {
      if (min > count) throw rest
      max = count
    }
    if (given(parts, 'uniqueItems').some(({ value }) => value === true) && max > 1) {
      const values = count === 0 && !(rest instanceof Never) ? rest.enum : undefined
      if (Array.isArray(values) && min > values.length) contradict(parts, 'minItems', 'uniqueItems')
      this.#report(parts, 'uniqueItems')
    }
    if (count > 0 && max > 0) {
      // llama.cpp supports either places or a schema for all items, and no count of items together with places.
      if (min > count + MAX_FILLED) this.#report(parts, 'minItems')
      const missing = Math.min(min, count + MAX_FILLED) - places.length
      const filler = missing > 1 ? this.#define(rest as Fields) : (rest as Fields)
      while (places.length < Math.min(min, count + MAX_FILLED)) places.push(filler)
      return written(parts, { type: 'array', prefixItems: places })
    }
    const items = max === 0 ? { items: {} } : given(parts, 'items').length > 0 ? { items: rest } : {}
    return written(parts, {
      type: 'array',
      ...items,
      ...this.#bounds(parts, 'minItems', 'maxItems', min, max, MAX_ITEMS)
    })
  }

  /** Defines this schema, so that several places do not multiply it. */
  #define(made: Fields): Fields {
    const name = `d${this.#definitions.size}`
    this.#definitions.set(`${name} `, { name, made })
    return { $ref: `#/$defs/${name}` }
  }

  /** Returns limits that llama.cpp can write out, at most this many characters or items. */
  #bounds(parts: readonly Part[], least: string, most: string, min: number, max: number, limit: number): Fields {
    if (min > limit) {
      const { at } = given(parts, least).find(({ value }) => value === min)!
      throw new Never(at, `is ${min}, but grammars can require at most ${limit}`)
    }
    const isBound = max <= limit
    if (!isBound) this.#report(parts, most)
    this.writtenOut += isBound ? max : min
    if (this.writtenOut > MAX_WRITTEN_OUT) throw new TooCostly()
    return { ...(min > 0 && { [least]: min }), ...(isBound && { [most]: max }) }
  }

  // ---- texts and numbers -------------------------------------------------------------------------------------------

  #string(parts: readonly Part[]): Fields {
    const range = getRange(parts, 'minLength', 'maxLength')
    const { min, max } = range
    const [first, ...others] = parts.filter(hasPattern)
    const compiled = first && this.#pattern(first, pattern => compilePattern(pattern, range))
    if (first) {
      const different = others.filter(({ schema }) => schema.pattern !== first.schema.pattern)
      this.#report(!compiled || compiled.loose ? [first, ...different] : different, 'pattern')
    }
    if (compiled) {
      if (compiled.max < min) contradict(parts, 'minLength', 'pattern')
      if (compiled.min > max) contradict(parts, 'maxLength', 'pattern')
      if (compiled.min < min) this.#report(parts, 'minLength')
      if (compiled.max > max) this.#report(parts, 'maxLength')
      this.#report(parts, 'format')
      return written(parts, { type: 'string', pattern: compiled.pattern })
    }
    const format = given(parts, 'format').find(({ value }) => KNOWN_FORMAT.test(String(value)))?.value
    this.#report(
      parts.filter(({ schema }) => schema.format !== format),
      'format'
    )
    if (format !== undefined) {
      this.#report(parts, 'minLength', 'maxLength')
      return written(parts, { type: 'string', format })
    }
    const bounds = this.#bounds(parts, 'minLength', 'maxLength', min, max, MAX_REPETITIONS)
    return written(parts, { type: 'string', ...bounds })
  }

  #number(parts: readonly Part[], type: 'integer' | 'number'): Fields {
    const [low, high] = [getLimit(parts, 1), getLimit(parts, -1)]
    if (low.value > high.value || (low.value === high.value && (low.excluded || high.excluded))) {
      throw new Never(low.at, `contradicts ${shown(high.at)}`)
    }
    const steps = given(parts, 'multipleOf').map(({ value, at }) => {
      if (typeof value !== 'number' || !(value > 0)) throw malformed(at, 'must be a number above 0')
      if (!(type === 'integer' && Number.isInteger(1 / value))) this.unenforced.add(at)
      return value
    })
    if (type === 'number') {
      this.#report(parts, ...BOUNDS)
      return written(parts, { type })
    }
    let min = low.excluded && Number.isInteger(low.value) ? low.value + 1 : Math.ceil(low.value)
    let max = high.excluded && Number.isInteger(high.value) ? high.value - 1 : Math.floor(high.value)
    /** The schema that has the limits. */
    const at = (low.at || high.at).replace(/\/[^/]*$/, '')
    if (min > max || steps.some(step => Math.ceil(min / step) * step > max)) throw new Never(at, 'allows no integer')
    if (min > MAX_INTEGER || max < -MAX_INTEGER) throw new Never(at, 'allows only numbers of more than 64 bits')
    if (min >= 10 && max === Number.POSITIVE_INFINITY) max = min < FAR ? FAR : MAX_INTEGER
    if (max < 0 && min === Number.NEGATIVE_INFINITY) min = max > -FAR ? -FAR : -MAX_INTEGER
    return written(parts, {
      type,
      ...(min !== Number.NEGATIVE_INFINITY && { minimum: Math.max(min, -MAX_INTEGER) }),
      ...(max !== Number.POSITIVE_INFINITY && { maximum: Math.min(max, MAX_INTEGER) })
    })
  }
}

const isText = (value: unknown) => typeof value === 'string'
const hasPattern = ({ schema }: Part) => 'pattern' in schema && schema.pattern !== ''
