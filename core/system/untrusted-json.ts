import { setImmediate as nextTurn } from 'node:timers/promises'
import { errorMessage } from '../errors.ts'
import type { ParsedJson } from './json-file.ts'
import { printable } from './printable.ts'

/** Why a text is not parsed: a clause about "it". */
class Fault extends Error {}

/** Files that describe models need about ten. */
const MAX_DEPTH = 64
const MAX_VALUES = 4_000_000
/** A listing of 100,000 files has 900,000 of them. They take about 100 MB of memory. */
const MAX_MEMBERS = 1_000_000
/** Maximum characters of a string, which cannot be parsed in slices. */
const MAX_STRING_LENGTH = 4 * 2 ** 20
/** Characters that are parsed before other work gets its turn: some milliseconds. */
const SLICE_LENGTH = 128 * 1024

const BLANK = /[ \t\n\r]*/y
/** A number, a name such as `true`, or anything else that is not JSON. */
const WORD = /[^\s"[\]{},:]+/y
const PYTHON_CONSTANTS = new Map<string, unknown>([
  ['NaN', null],
  ['Infinity', Number.POSITIVE_INFINITY],
  ['-Infinity', Number.NEGATIVE_INFINITY]
])

/**
 * Parses untrusted JSON of limited depth and size, in slices between which other requests are answered. Objects lose
 * the key `__proto__`.
 * @param options.python accepts `NaN` (as null), `Infinity` and `-Infinity`, which Python writes
 * @returns the value, or a clause about "it" that says why there is none, such as "it is not JSON (…)"
 */
export async function parseUntrustedJson(text: string, { python = false } = {}): Promise<ParsedJson<unknown>> {
  try {
    return { value: await parse(text, python) }
  } catch (error) {
    if (error instanceof Fault) return { fault: error.message }
    if (!(error instanceof SyntaxError)) throw error
    return { fault: `it is not JSON${text.length <= SLICE_LENGTH ? describeMistake(text) : ''}` }
  }
}

function describeMistake(text: string): string {
  try {
    JSON.parse(text)
    return ''
  } catch (error) {
    return ` (${printable(errorMessage(error), 200)})`
  }
}

/** @throws SyntaxError, or a Fault beyond a limit */
async function parse(text: string, python: boolean): Promise<unknown> {
  /** The open lists and objects, with the current key of an object. */
  const open: { value: unknown[] | Record<string, unknown>; key: string }[] = []
  /** What must come next: `start` and `key` follow an opening bracket and a comma, `end` follows a value. */
  let expected = 'value' as 'value' | 'start' | 'key' | 'colon' | 'end'
  let values = 0
  let members = 0
  let root: unknown
  let at = 0
  const take = (pattern: RegExp) => {
    pattern.lastIndex = at
    const [found = ''] = pattern.exec(text) ?? []
    at += found.length
    return found
  }
  const put = (value: unknown) => {
    const around = open.at(-1)
    if (!around) root = value
    else if (Array.isArray(around.value)) around.value.push(value)
    // An assignment to `__proto__` would change the object's prototype.
    else if (around.key !== '__proto__') around.value[around.key] = value
    expected = 'end'
  }
  const countMember = () => {
    if (++members > MAX_MEMBERS) {
      throw new Fault(`it has more than ${MAX_MEMBERS.toLocaleString('en')} lists, objects and keys`)
    }
  }

  for (let pause = SLICE_LENGTH; ; ) {
    take(BLANK)
    if (at >= text.length) break
    if (at >= pause) {
      await nextTurn()
      pause = at + SLICE_LENGTH
    }
    const character = text[at]!
    const around = open.at(-1)
    const isList = Array.isArray(around?.value)
    const mayBeValue = expected === 'value' || (expected === 'start' && isList)
    const mayBeKey = expected === 'key' || (expected === 'start' && !isList)
    if (character === '"' && (mayBeValue || mayBeKey)) {
      const end = stringEnd(text, at)
      const string = JSON.parse(text.slice(at, end)) as string
      at = end
      if (mayBeValue) put(string)
      else {
        around!.key = string
        expected = 'colon'
      }
    } else if ((character === '[' || character === '{') && mayBeValue) {
      if (open.length === MAX_DEPTH) throw new Fault(`it nests lists and objects more than ${MAX_DEPTH} levels deep`)
      countMember()
      open.push({ value: character === '[' ? [] : {}, key: '' })
      expected = 'start'
      at++
    } else if (around && character === (isList ? ']' : '}') && (expected === 'start' || expected === 'end')) {
      open.pop()
      put(around.value)
      at++
    } else if (around && character === ',' && expected === 'end') {
      if (++values > MAX_VALUES) throw new Fault(`it has more than ${MAX_VALUES.toLocaleString('en')} values`)
      expected = isList ? 'value' : 'key'
      at++
    } else if (character === ':' && expected === 'colon') {
      countMember()
      expected = 'value'
      at++
    } else {
      const word = mayBeValue ? take(WORD) : ''
      put(python && PYTHON_CONSTANTS.has(word) ? PYTHON_CONSTANTS.get(word) : JSON.parse(word))
    }
  }
  if (open.length > 0 || expected !== 'end') throw new SyntaxError('it ends too early')
  return root
}

function stringEnd(text: string, start: number): number {
  for (let at = text.indexOf('"', start + 1); at !== -1; at = text.indexOf('"', at + 1)) {
    let before = at - 1
    while (text[before] === '\\') before--
    const isEscaped = (at - before) % 2 === 0
    if (at - start > MAX_STRING_LENGTH)
      throw new Fault(`it has a string of more than ${MAX_STRING_LENGTH / 2 ** 20} MiB`)
    if (!isEscaped) return at + 1
  }
  return text.length
}
