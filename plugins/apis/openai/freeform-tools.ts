import { FREEFORM_INPUT } from '../../../core/answers/tool-choice.ts'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import { larkPattern, MAX_PATTERN_LENGTH } from './lark-pattern.ts'

/*
 * Freeform tools (`type: "custom"`) are called with any text instead of JSON. Engines only know functions, so each
 * becomes a function with one parameter, and the text is taken out of the arguments of its calls.
 */

type Fields = Record<string, unknown>

const INPUT = 'input'
/** The beginning of arguments whose first parameter is the text. */
const BEGINNING = /^\s*\{\s*"input"\s*:\s*"/
/** A beginning that is not complete, because the answer was truncated. */
const TRUNCATED = /^\s*(\{\s*("\w*"?\s*:?\s*)?)?$/
/** Characters of a longer beginning, such as blanks, after which the text is not streamed. */
const MAX_BEGINNING = 200

/** Returns the function for a freeform tool. Its grammar is described, and also enforced if it is regular. */
export function freeformFunction(name: string, description: unknown, format: unknown) {
  const { type, grammar = format } = isObject(format) ? format : {}
  const { syntax, definition } = type === 'grammar' && isObject(grammar) ? grammar : {}
  const rule =
    typeof definition === 'string' ? `The input must match this grammar (${String(syntax)}):\n${definition}` : ''
  const expression = syntax === 'lark' && typeof definition === 'string' ? larkPattern(definition) : definition
  const pattern =
    (syntax === 'regex' || syntax === 'lark') && isPattern(expression) ? { pattern: `^(?:${expression})$` } : {}
  const about = [description, rule].filter(text => typeof text === 'string' && text !== '').join('\n\n')
  return {
    name,
    ...(about !== '' && { description: about }),
    parameters: {
      type: 'object',
      properties: {
        [INPUT]: { type: 'string', description: FREEFORM_INPUT, ...pattern }
      },
      required: [INPUT],
      additionalProperties: false
    }
  }
}

/** Whether schemas can contain it. Other dialects of regular expressions are only described. */
function isPattern(definition: unknown): definition is string {
  if (typeof definition !== 'string' || definition.length > MAX_PATTERN_LENGTH) return false
  try {
    return Boolean(new RegExp(definition, 'u'))
  } catch {
    return false
  }
}

export function freeformArguments(input: unknown): Fields {
  return { [INPUT]: input }
}

/** Takes the text out of the arguments of a call, which arrive in pieces. */
export class FreeformInput {
  /** JSON text that is not decoded yet. */
  #json = ''
  #state: 'beginning' | 'text' | 'ended' = 'beginning'
  /** The first half of a character that is written as two escapes. */
  #half = ''

  /** Adds a piece of the JSON text. @returns the next piece of the input */
  add(piece: string): string {
    this.#json += piece
    if (this.#state === 'beginning') {
      const beginning = this.#json.length - piece.length <= MAX_BEGINNING ? BEGINNING.exec(this.#json) : null
      if (!beginning) return ''
      this.#json = this.#json.slice(beginning[0].length)
      this.#state = 'text'
    }
    return this.#state === 'text' ? this.#decode() : ''
  }

  /** Returns the rest of the input. Models without a grammar may have written other arguments, which it then is. */
  end(): string {
    if (this.#state !== 'beginning') return this.#half
    if (TRUNCATED.test(this.#json)) return ''
    const value = parseAnyJson(this.#json)
    const text = isObject(value) ? value[INPUT] : value
    return typeof text === 'string' ? text : this.#json
  }

  /** Decodes up to the quote that ends the text, or an escape that the next piece completes. */
  #decode(): string {
    const json = this.#json
    let at = 0
    while (at < json.length && json[at] !== '"') {
      const length = json[at] !== '\\' ? 1 : json[at + 1] === 'u' ? 6 : 2
      if (at + length > json.length) break
      at += length
    }
    if (json[at] === '"') this.#state = 'ended'
    this.#json = this.#state === 'ended' ? '' : json.slice(at)
    const text = this.#half + decode(json.slice(0, at))
    this.#half = /[\ud800-\udbff]$/.test(text) ? text.slice(-1) : ''
    return this.#half === '' ? text : text.slice(0, -1)
  }
}

export function freeformInput(json: string): string {
  const input = new FreeformInput()
  return input.add(json) + input.end()
}

/** Decodes the inside of a JSON string. Models without a grammar may write line breaks and wrong escapes. */
function decode(text: string): string {
  const escaped = text.replace(/\p{Cc}/gu, char => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)
  const value = parseAnyJson(`"${escaped}"`)
  return typeof value === 'string' ? value : text
}
