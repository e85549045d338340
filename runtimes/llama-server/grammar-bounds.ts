import { setImmediate as nextTurn } from 'node:timers/promises'
import type { EngineFields } from '../../core/contracts/engines.ts'
import { CorralError } from '../../core/errors.ts'
import { setNewest } from '../../core/system/collections.ts'
import { isObject } from '../../core/system/json-object.ts'
import { engineSchema } from './engine-schema.ts'
import { countWays, TooCostly } from './grammar-cost.ts'
import { NotReadable, readGrammar } from './grammar-text.ts'
import { isBranching, MAX_COPIES, schemaGrammar } from './schema-grammar.ts'

export interface GrammarLimits {
  /** Bytes of one grammar or schema (`limits.grammar_size`). */
  size: number
  /** Ways to read one token (`limits.grammar_repetition`). */
  ways: number
}

/** The schemas of all tools together may be this many times as large as one. */
const TOOLS = 16
/** Elements of the grammars of all tools together. */
const MAX_ELEMENTS_OF_TOOLS = 1_200_000
/** Elements of a character or item that may be absent. */
const ELEMENTS_WRITTEN_OUT = 4
/** Ways that are known to be harmless: llama.cpp takes about ten milliseconds per token. The default of the limit. */
const HARMLESS_WAYS = 20_000
/** Number of cached costs. Programs send the same schemas with every request. */
const MAX_KNOWN = 256

interface Cost {
  /** Ways to read the costliest token. NaN if the text itself cannot be parsed. */
  ways: number
  /** See `schemaGrammar`. 0 for a grammar. */
  copies: number
  /** Characters and references with repetitions written out. llama.cpp uses up to 100 bytes for each. */
  elements: number
}

/**
 * Rejects grammars and JSON schemas that are too large or would keep llama.cpp busy for minutes with one token.
 * @returns checks a request, and resolves with whether its grammar may harm an engine because the limit was raised
 */
export function grammarCheck({ size, ways: mostWays }: GrammarLimits): (request: EngineFields) => Promise<boolean> {
  /** By the text. The most recently used entry is last. */
  const known = new Map<string, Cost>()
  let counted = 0

  function getCost(text: string, count: () => Cost): Cost {
    let found = known.get(text)
    if (found === undefined) {
      found = counting(count)
      counted++
    }
    setNewest(known, text, found, MAX_KNOWN)
    return found
  }

  function requireSize(param: string, what: string, bytes: number, most: number): void {
    if (bytes <= most) return
    throw new CorralError(
      'over_limit',
      `${what} in "${param}" has ${bytes} bytes, but "limits.grammar_size" allows at most ${most}. Send a smaller one, or ask the admin to raise the limit.`,
      { param, details: { limit: 'limits.grammar_size', value: most, given: bytes } }
    )
  }

  /** @param key the text, unless different texts of this kind can be equal @returns the cost and the size in bytes */
  function check(param: string, what: string, text: string, count: () => Cost, key = text) {
    const bytes = Buffer.byteLength(text)
    requireSize(param, what, bytes, size)
    const { ways, copies, elements } = getCost(key, count)
    if (Number.isNaN(ways)) {
      throw new CorralError('invalid_request', `"${param}" is not a grammar in GBNF. Correct its syntax.`, { param })
    }
    if (ways <= mostWays) return { bytes, ways, copies, elements }
    const many = Number.isFinite(ways) ? `in at least ${ways} ways` : 'in too many ways to be counted'
    throw new CorralError(
      'over_limit',
      `${what} in "${param}" lets the same text be read ${many}, but "limits.grammar_repetition" allows at most ${mostWays}. Ways multiply in nested repetitions, in consecutive repetitions of the same characters, with hundreds of optional properties, with thousands of values in an enum, and in nested references and alternatives. Put fixed characters between repetitions, or ask the admin to raise the limit.`,
      { param, details: { limit: 'limits.grammar_repetition', value: mostWays } }
    )
  }

  /** @param tool the name of the tool whose parameters it describes */
  function checkSchema(param: string, schema: unknown, tool?: unknown): Cost & { bytes: number } {
    if (!isObject(schema)) return { bytes: 0, ways: 0, copies: 0, elements: 0 }
    const text = JSON.stringify(schema)
    const isFormat = tool === undefined
    const count = () => {
      const { schema: made, writtenOut } = engineSchema(schema, isFormat)
      const { text, copies } = schemaGrammar(made)
      const cost = grammarCost(text, isBranching)
      return { ...cost, copies, elements: cost.elements + ELEMENTS_WRITTEN_OUT * writtenOut }
    }
    try {
      return check(param, 'The JSON schema', text, count, `${isFormat} ${text}`)
    } catch (error) {
      if (!(error instanceof CorralError) || error.code !== 'invalid_request') throw error
      const place = typeof tool === 'string' ? `"${param}" (${JSON.stringify(tool.slice(0, 60))})` : `"${param}"`
      throw new CorralError(error.code, `${place}: ${error.message}`, { param, details: { ...error.details } })
    }
  }

  function grammarCost(text: string, isStart?: (name: string) => boolean): Cost {
    const grammar = readGrammar(text, isStart)
    return { ways: countWays(grammar, mostWays), copies: 0, elements: grammar.rules.elements }
  }

  return async ({ grammar, json_schema, response_format: format, tools }) => {
    const ways: number[] = []
    if (typeof grammar === 'string' && grammar !== '') {
      ways.push(check('grammar', 'The grammar', grammar, () => grammarCost(grammar)).ways)
    }
    ways.push(checkSchema('json_schema', json_schema).ways)
    if (isObject(format)) {
      ways.push(checkSchema('response_format', format.schema).ways)
      if (isObject(format.json_schema)) ways.push(checkSchema('response_format', format.json_schema.schema).ways)
    }
    let bytes = 0
    let copies = 0
    let elements = 0
    for (const [index, tool] of Array.isArray(tools) ? tools.entries() : []) {
      if (!isObject(tool) || !isObject(tool.function)) continue
      const before = counted
      const checked = checkSchema(`tools[${index}]`, tool.function.parameters, tool.function.name ?? '')
      bytes += checked.bytes
      copies += checked.copies
      elements += checked.elements
      ways.push(checked.ways)
      requireSize('tools', 'All JSON schemas together', bytes, size * TOOLS)
      if (copies > MAX_COPIES || elements > MAX_ELEMENTS_OF_TOOLS) {
        const [what, advice] =
          copies > MAX_COPIES
            ? ['objects with too many optional properties', 'list more properties under "required"']
            : ['too many repetitions that are written out', 'use smaller length limits']
        const message = `The JSON schemas of "tools" have ${what}. Send fewer tools, or ${advice}.`
        throw new CorralError('over_limit', message, { param: 'tools' })
      }
      // Each count takes milliseconds, and a request may have hundreds of schemas.
      if (counted > before) await nextTurn()
    }
    return ways.some(each => each > HARMLESS_WAYS)
  }
}

function counting(count: () => Cost): Cost {
  try {
    return count()
  } catch (error) {
    if (error instanceof TooCostly) return { ways: Number.POSITIVE_INFINITY, copies: 0, elements: 0 }
    if (error instanceof NotReadable) return { ways: Number.NaN, copies: 0, elements: 0 }
    throw error
  }
}
