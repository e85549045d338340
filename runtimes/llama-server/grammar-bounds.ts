import { setImmediate as nextTurn } from 'node:timers/promises'
import type { EngineFields } from '../../core/contracts/engines.ts'
import { CorralError } from '../../core/errors.ts'
import { isObject } from '../../core/system/json-object.ts'
import { setNewest } from '../../core/system/newest-entries.ts'
import { TooCostly, waysOf } from './grammar-cost.ts'
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
export function grammarCheck({ size, ways: mostWays }: GrammarLimits): (request: EngineFields) => Promise<void> {
  /** By the text, the one used last at the end. */
  const known = new Map<string, Cost>()
  let counted = 0

  function costOf(text: string, count: () => Cost): Cost {
    let found = known.get(text)
    if (found === undefined) {
      found = counting(count)
      counted++
    }
    setNewest(known, text, found, MOST_KNOWN)
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

  /** @param fault what is said where the text cannot be read @returns its bytes, and what llama.cpp copies for it */
  function check(param: string, what: string, text: string, fault: string, count: () => Cost) {
    const bytes = Buffer.byteLength(text)
    requireSize(param, what, bytes, size)
    const { ways, copies } = costOf(text, count)
    if (Number.isNaN(ways)) throw new CorralError('invalid_request', `"${param}" ${fault}`, { param })
    if (ways <= mostWays) return { bytes, copies }
    const many = Number.isFinite(ways) ? `in at least ${ways} ways` : 'in too many ways to be counted'
    throw new CorralError(
      'over_limit',
      `${what} in "${param}" lets the same text be read ${many}, and "limits.grammar_repetition" allows ${mostWays} at most: repetitions that are nested, or that follow each other and take the same characters, multiply them, and so do hundreds of properties that are not required, or thousands of values of an enum. Put fixed characters between repetitions, or have the admin raise the limit.`,
      { param, details: { limit: 'limits.grammar_repetition', value: mostWays } }
    )
  }

  function checkSchema(param: string, schema: unknown): { bytes: number; copies: number } {
    if (!isObject(schema)) return { bytes: 0, copies: 0 }
    // What cannot be read here, such as a repetition of nothing, some llama.cpp may read, and take for ever over.
    const fault = 'is no JSON schema that can be read, or has a pattern that cannot. Correct it.'
    return check(param, 'The JSON schema', JSON.stringify(schema), fault, () => {
      const { text, copies } = schemaGrammar(engineSchema(schema))
      return { ways: waysOf(readGrammar(text, isBranching), mostWays), copies }
    })
  }

  return async ({ grammar, json_schema, response_format: format, tools }) => {
    if (typeof grammar === 'string' && grammar !== '') {
      const fault = 'is no grammar in GBNF that can be read. Correct its syntax.'
      check('grammar', 'The grammar', grammar, fault, () => ({
        ways: waysOf(readGrammar(grammar), mostWays),
        copies: 0
      }))
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

function counting(count: () => Cost): Cost {
  try {
    return count()
  } catch (error) {
    if (error instanceof TooCostly) return { ways: Number.POSITIVE_INFINITY, copies: 0 }
    if (error instanceof NotReadable) return { ways: Number.NaN, copies: 0 }
    throw error
  }
}
