import type { Element, Root, RootContent, Text } from 'hast'
import bash from 'highlight.js/lib/languages/bash'
import c from 'highlight.js/lib/languages/c'
import cpp from 'highlight.js/lib/languages/cpp'
import csharp from 'highlight.js/lib/languages/csharp'
import css from 'highlight.js/lib/languages/css'
import diff from 'highlight.js/lib/languages/diff'
import go from 'highlight.js/lib/languages/go'
import java from 'highlight.js/lib/languages/java'
import javascript from 'highlight.js/lib/languages/javascript'
import json from 'highlight.js/lib/languages/json'
import kotlin from 'highlight.js/lib/languages/kotlin'
import markdown from 'highlight.js/lib/languages/markdown'
import php from 'highlight.js/lib/languages/php'
import python from 'highlight.js/lib/languages/python'
import ruby from 'highlight.js/lib/languages/ruby'
import rust from 'highlight.js/lib/languages/rust'
import sql from 'highlight.js/lib/languages/sql'
import swift from 'highlight.js/lib/languages/swift'
import typescript from 'highlight.js/lib/languages/typescript'
import xml from 'highlight.js/lib/languages/xml'
import yaml from 'highlight.js/lib/languages/yaml'
import { createLowlight, type LanguageFn } from 'lowlight'
import { type ComponentChild, h } from 'preact'

/**
 * Highlighted languages. Each is prepared when it first appears, since preparing all of them takes longer than a frame.
 */
const GRAMMARS: Record<string, LanguageFn> = {
  bash,
  c,
  cpp,
  csharp,
  css,
  diff,
  go,
  java,
  javascript,
  json,
  kotlin,
  markdown,
  php,
  python,
  ruby,
  rust,
  sql,
  swift,
  typescript,
  xml,
  yaml
}
/** Other names of these languages in code fences. */
const ALIASES: Record<string, string> = {
  sh: 'bash',
  shell: 'bash',
  zsh: 'bash',
  h: 'c',
  'c++': 'cpp',
  cc: 'cpp',
  cxx: 'cpp',
  hpp: 'cpp',
  cs: 'csharp',
  'c#': 'csharp',
  patch: 'diff',
  golang: 'go',
  cjs: 'javascript',
  js: 'javascript',
  jsx: 'javascript',
  mjs: 'javascript',
  jsonc: 'json',
  kt: 'kotlin',
  kts: 'kotlin',
  md: 'markdown',
  py: 'python',
  python3: 'python',
  rb: 'ruby',
  rs: 'rust',
  ts: 'typescript',
  tsx: 'typescript',
  mts: 'typescript',
  cts: 'typescript',
  html: 'xml',
  xhtml: 'xml',
  svg: 'xml',
  yml: 'yaml'
}
const lowlight = createLowlight()

/** The canonical name of a highlighted language. */
function known(language: string): string | undefined {
  const lower = language.toLowerCase()
  const name = Object.hasOwn(ALIASES, lower) ? ALIASES[lower]! : lower
  if (!Object.hasOwn(GRAMMARS, name)) return undefined
  if (!lowlight.registered(name)) lowlight.register(name, GRAMMARS[name]!)
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

/**
 * Highlights the start of a code block: some lines that end between tokens, or all of a short block.
 * @param isComplete whether the code has ended
 * @returns undefined if the language is unknown
 */
export function colourPiece(code: string, language: string, isComplete: boolean): ColouredPiece | undefined {
  const name = known(language)
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

/**
 * Returns the end of the last line that no token crosses. Empty lines are skipped, since they would be invisible at the
 * end of a piece.
 */
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
