import { setImmediate as nextTurn } from 'node:timers/promises'
import type { EngineFields } from '../../core/contracts/engines.ts'
import { CorralError } from '../../core/errors.ts'
import { isObject } from '../../core/system/json-object.ts'
import { costOf, TooCostly } from './grammar-cost.ts'
import { engineSchema } from './grammar-schemas.ts'
import { NotReadable, readGrammar } from './grammar-text.ts'
import { isBranching, MOST_COPIES, schemaGrammar } from './schema-grammar.ts'

export interface GrammarLimits {
  /** Bytes of one grammar or schema (`limits.grammar_size`). */
  size: number
  /** Ways in which a token can be read (`limits.grammar_repetition`). */
  ways: number
}

/** The schemas of all tools together may be so many times as large as one. */
const TOOLS = 16
/** Costs that are kept: programs send the same schemas with every request. */
const MOST_KNOWN = 256

interface Cost {
  /** Ways in which the costliest token can be read; NaN where the text itself cannot be read. */
  ways: number
  /** See `SchemaGrammar`; 0 for a grammar. */
  copies: number
}

/**
 * Refuses grammars and JSON schemas that would keep llama.cpp busy for minutes with a single token, or that are too large.
 * @returns checks a request, in the words of the hosted-chat API. @throws CorralError `over_limit`, `invalid_request`
 */
export function grammarCheck({ size, ways }: GrammarLimits): (request: EngineFields) => Promise<void> {
  /** By the text, the one used last at the end. */
  const known = new Map<string, Cost>()
  let counted = 0

  function costOfText(text: string, count: () => Cost): Cost {
    let found = known.get(text)
    if (found === undefined) {
      found = count()
      counted++
    }
    known.delete(text)
    known.set(text, found)
    if (known.size > MOST_KNOWN) known.delete(known.keys().next().value!)
    return found
  }

  function requireSize(param: string, what: string, bytes: number, most: number): void {
    if (bytes <= most) return
    throw new CorralError(
      'over_limit',
      `${what} in "${param}" has ${bytes} bytes, and "limits.grammar_size" allows ${most} at most. Send a smaller one, or have the admin raise the limit.`,
      { param, details: { limit: 'limits.grammar_size', value: most, given: bytes } }
    )
  }

  function requireWays(param: string, what: string, given: number): void {
    if (given <= ways) return
    const many = Number.isFinite(given) ? `in at least ${given} ways` : 'in too many ways to be counted'
    throw new CorralError(
      'over_limit',
      `${what} in "${param}" lets the same text be read ${many}, and "limits.grammar_repetition" allows ${ways} at most: repetitions that are nested, or that follow each other and take the same characters, multiply them, and so do hundreds of properties that are not required. Put fixed characters between repetitions, or have the admin raise the limit.`,
      { param, details: { limit: 'limits.grammar_repetition', value: ways } }
    )
  }

  /** @returns its bytes, and what llama.cpp copies for it */
  function checkSchema(param: string, schema: unknown): { bytes: number; copies: number } {
    if (!isObject(schema)) return { bytes: 0, copies: 0 }
    const text = JSON.stringify(schema)
    const what = 'The JSON schema'
    const bytes = Buffer.byteLength(text)
    requireSize(param, what, bytes, size)
    const { ways: given, copies } = costOfText(text, () => schemaCost(schema, ways))
    // What cannot be read here, such as a repetition of nothing, some llama.cpp may read, and take for ever over.
    requireReadable(param, given, 'is no JSON schema that can be read, or has a pattern that cannot. Correct it.')
    requireWays(param, what, given)
    return { bytes, copies }
  }

  return async ({ grammar, json_schema, response_format: format, tools }) => {
    if (typeof grammar === 'string' && grammar !== '') {
      requireSize('grammar', 'The grammar', Buffer.byteLength(grammar), size)
      const { ways: found } = costOfText(grammar, () => ({
        ways: waysOf(grammar, () => true, ways) ?? Number.NaN,
        copies: 0
      }))
      requireReadable('grammar', found, 'is no grammar in GBNF that can be read. Correct its syntax.')
      requireWays('grammar', 'The grammar', found)
    }
    checkSchema('json_schema', json_schema)
    if (isObject(format)) {
      checkSchema('response_format', format.schema)
      if (isObject(format.json_schema)) checkSchema('response_format', format.json_schema.schema)
    }
    if (!Array.isArray(tools)) return
    let bytes = 0
    let copies = 0
    for (const [index, tool] of tools.entries()) {
      if (!isObject(tool) || !isObject(tool.function)) continue
      const before = counted
      const checked = checkSchema(`tools[${index}]`, tool.function.parameters)
      bytes += checked.bytes
      copies += checked.copies
      requireSize('tools', 'All JSON schemas together', bytes, size * TOOLS)
      if (copies > MOST_COPIES) {
        throw new CorralError(
          'over_limit',
          'The objects in the JSON schemas of "tools" have too many properties that are not required. Send fewer tools, or list more properties under "required".',
          { param: 'tools' }
        )
      }
      // To count takes milliseconds for each, and a request may have hundreds of them.
      if (counted > before) await nextTurn()
    }
  }
}

function requireReadable(param: string, ways: number, fault: string): void {
  if (Number.isNaN(ways)) throw new CorralError('invalid_request', `"${param}" ${fault}`, { param })
}

function schemaCost(schema: Record<string, unknown>, enough: number): Cost {
  try {
    const { text, copies } = schemaGrammar(engineSchema(schema))
    return { ways: waysOf(text, isBranching, enough) ?? Number.NaN, copies }
  } catch (error) {
    if (error instanceof TooCostly) return { ways: Number.POSITIVE_INFINITY, copies: 0 }
    throw error
  }
}

/** The ways of a grammar; undefined where its text cannot be read. */
function waysOf(text: string, isStart: (name: string) => boolean, enough: number): number | undefined {
  try {
    const { rules, starts } = readGrammar(text, isStart)
    return costOf(rules, starts, enough)
  } catch (error) {
    if (error instanceof TooCostly) return Number.POSITIVE_INFINITY
    if (error instanceof NotReadable) return undefined
    throw error
  }
}
