import type { Element, Root, RootContent, Text } from 'hast'
import { common, createLowlight } from 'lowlight'
import { type ComponentChild, h } from 'preact'
import languages from './code-aliases.json'

/** Other names of languages in code fences. */
const aliases = new Map<string, string>(Object.entries(languages))
const lowlight = createLowlight()

/** Returns the canonical name of a highlighted language, which is prepared when it first appears. */
function knownLanguage(language: string): string | undefined {
  const lower = language.toLowerCase()
  const name = aliases.get(lower) ?? lower
  if (!Object.hasOwn(common, name)) return undefined
  if (!lowlight.registered(name)) lowlight.register(name, common[name]!)
  return name
}

/** Characters highlighted at a time, far less than a frame allows. */
const PIECE = 2000
/** Text without a break between tokens, such as a long comment, is split after this many characters. */
const MAX_PIECE_LENGTH = 4 * PIECE

/** Highlighted lines of code. */
export interface ColouredPiece {
  /** Number of characters covered, including the last line break. */
  length: number
  nodes: ComponentChild[]
  /** Whether it stays the same when more code follows. */
  isSettled: boolean
}

/** Highlights some lines of a code block, or all of a short block. Returns undefined for unknown languages. */
export function colourPiece(code: string, language: string, isComplete: boolean): ColouredPiece | undefined {
  const name = knownLanguage(language)
  if (name === undefined) return undefined
  const coloured = (text: string) => lowlight.highlight(name, text)
  for (let size = PIECE; code.length > size; size *= 2) {
    const lines = code.slice(0, size)
    const end = lastFreeEnd(coloured(lines), lines)
    if (end !== undefined) {
      return { length: end + 1, nodes: nodesOf(coloured(lines.slice(0, end))), isSettled: true }
    }
    if (size < MAX_PIECE_LENGTH) continue
    // A single token covers everything, or there is only one line: show it without colours.
    const cut = lines.lastIndexOf('\n') > 0 ? lines.lastIndexOf('\n') : code.indexOf('\n', size)
    if (cut > 0) return { length: cut + 1, nodes: [code.slice(0, cut)], isSettled: true }
    return { length: code.length, nodes: [code], isSettled: isComplete }
  }
  return { length: code.length, nodes: nodesOf(coloured(code)), isSettled: isComplete }
}

/** Returns the end of the last line that no token crosses. An empty line at the end of a piece would be invisible. */
function lastFreeEnd({ children }: Root, lines: string): number | undefined {
  let at = lines.length
  for (const child of children.toReversed()) {
    const text = textOf(child)
    at -= text.length
    if (child.type !== 'text') continue
    for (let end = text.lastIndexOf('\n'); end >= 0; end = text.lastIndexOf('\n', end - 1)) {
      if (at + end > 0 && lines[at + end - 1] !== '\n') return at + end
      if (end === 0) break
    }
  }
  return undefined
}

const textOf = (node: RootContent): string =>
  node.type === 'text' ? node.value : node.type === 'element' ? node.children.map(textOf).join('') : ''

function nodesOf({ children }: Root | Element): ComponentChild[] {
  return (children as RootContent[]).map(child => {
    if (child.type === 'text') return (child as Text).value
    if (child.type !== 'element') return null
    const names = child.properties.className
    return h('span', { class: Array.isArray(names) ? names.join(' ') : '' }, nodesOf(child))
  })
}
