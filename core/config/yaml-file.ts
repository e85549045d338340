import { type Document, isAlias, isMap, isScalar, LineCounter, type Node, type Pair, parseDocument, visit } from 'yaml'
import { errorMessage } from '../errors.ts'

export interface Place {
  line: number
  column: number
}

export interface YamlText {
  /** The values as plain data; undefined if the text is empty or malformed. */
  value: unknown
  mistakes: { place: Place; message: string }[]
  /** The place of a key, or of the nearest group around it that exists. */
  keyPlace(path: readonly string[]): Place
  /** The place of a key's value, or of the nearest value around it. */
  valuePlace(path: readonly string[]): Place
}

const SENTENCES: Record<string, string> = {
  DUPLICATE_KEY: 'This name is set twice in the same group; keep one of them.',
  TAB_AS_INDENT: 'A tab indents this line; YAML allows spaces only.',
  MULTIPLE_DOCS: 'A second document begins here ("---"); the file may contain only one.',
  BLOCK_AS_IMPLICIT_KEY:
    'Two settings share a line or the next line is indented too far; put each on its own line, or the value in quotes.',
  MULTILINE_IMPLICIT_KEY: 'A name must be followed by ":" on its own line.',
  TAG_RESOLVE_FAILED: 'Tags ("!name") have no meaning here; remove it, or put the value in quotes.',
  BAD_ALIAS: 'This alias ("*name") is malformed; write "&name" before its first use, or put the value in quotes.'
}

/** The parser's message without quotes from the text, which may be a secret. */
function sentence(code: string, message: string): string {
  return (
    SENTENCES[code] ??
    `This is not valid YAML: ${message
      .split(/: |; |"/)[0]!
      .trim()
      .replace(/\.$/, '')}.`
  )
}

function mapPair(node: unknown, key: string, document: Document, depth = 0): Pair | undefined {
  const map = isAlias(node) ? node.resolve(document) : node
  if (!isMap(map) || depth > 20) return undefined
  // A merge key's value is a symbol with the spelling as its description.
  const spelled = (value: unknown) => (typeof value === 'symbol' ? value.description : String(value))
  const named = (pair: Pair, name: string) => isScalar(pair.key) && spelled(pair.key.value) === name
  const own = map.items.find(pair => named(pair as Pair, key))
  if (own) return own as Pair
  for (const merged of map.items.filter(pair => named(pair as Pair, '<<'))) {
    const source = isAlias(merged.value) ? merged.value.resolve(document) : merged.value
    const maps = isMap(source) ? [source] : ((source as { items?: unknown[] } | null)?.items ?? [])
    for (const inner of maps) {
      const pair = mapPair(inner, key, document, depth + 1)
      if (pair) return pair
    }
  }
  return undefined
}

/** The last text that was read: a start looks for plugins and then for settings in the same text. */
let kept: { text: string; read: YamlText } | undefined

/**
 * Reads a YAML text. Never throws: malformed text is a mistake with its place.
 * @param keep whether the next reader is likely to read the same text; the caller must not change the result
 */
export function readYaml(text: string, { keep = false } = {}): YamlText {
  const read = kept?.text === text ? kept.read : parseYaml(text)
  kept = keep ? { text, read } : undefined
  return read
}

function parseYaml(text: string): YamlText {
  const lines = new LineCounter()
  const placeOf = (offset: number): Place => {
    const { line, col } = lines.linePos(offset)
    return { line: Math.max(1, line), column: Math.max(1, col) }
  }
  const start: Place = { line: 1, column: 1 }
  const broken = (message: string, place = start): YamlText => {
    return { value: undefined, mistakes: [{ place, message }], keyPlace: () => start, valuePlace: () => start }
  }

  let document: Document.Parsed
  try {
    document = parseDocument(text, { lineCounter: lines, prettyErrors: false, merge: true })
  } catch (error) {
    return broken(
      `This cannot be read as YAML (${error instanceof RangeError ? 'nested too deeply' : errorMessage(error)}).`
    )
  }
  const mistakes = [...document.errors, ...document.warnings].map(({ code, message, pos }) => ({
    place: placeOf(pos[0]),
    message: sentence(code, message)
  }))
  if (document.errors.some(({ code }) => code !== 'DUPLICATE_KEY')) return { ...broken(''), mistakes }

  visit(document, {
    Alias(_, alias) {
      if (alias.resolve(document)) return
      mistakes.push({
        place: placeOf(alias.range?.[0] ?? 0),
        message: 'This alias ("*name") is undefined; write "&name" before its first use, or put the value in quotes.'
      })
    }
  })
  if (mistakes.some(({ message }) => message.startsWith('This alias'))) return { ...broken(''), mistakes }

  let value: unknown
  try {
    value = document.toJS()
    JSON.stringify(value)
  } catch {
    // Only two failures are left: aliases that expand without limit or refer to themselves.
    return broken('The aliases ("*name") of this file multiply too often or contain themselves.')
  }

  const walk = (path: readonly string[], last: 'key' | 'value'): Place => {
    let node: Node | null = document.contents
    let place = node?.range ? placeOf(node.range[0]) : start
    for (const [index, key] of path.entries()) {
      const resolved: unknown = isAlias(node) ? node.resolve(document) : node
      const pair = mapPair(resolved, key, document)
      const item = pair ? undefined : (resolved as { items?: unknown[] } | null)?.items?.[Number(key)]
      const target = pair && last === 'key' && index === path.length - 1 ? pair.key : (pair?.value ?? item)
      const found = (target ?? pair?.key) as Node | undefined
      if (!found?.range) return place
      place = placeOf(found.range[0])
      node = (pair ? pair.value : item) as Node | null
    }
    return place
  }
  return { value, mistakes, keyPlace: path => walk(path, 'key'), valuePlace: path => walk(path, 'value') }
}
