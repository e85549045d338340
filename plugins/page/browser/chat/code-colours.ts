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

/** What there are colours for; each is made ready when it is first met, since all of them take longer than a frame. */
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
/** Other names that they go by behind the signs of code. */
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

/** The name of a language that has colours. */
function known(language: string): string | undefined {
  const lower = language.toLowerCase()
  const name = Object.hasOwn(ALIASES, lower) ? ALIASES[lower]! : lower
  if (!Object.hasOwn(GRAMMARS, name)) return undefined
  if (!lowlight.registered(name)) lowlight.register(name, GRAMMARS[name]!)
  return name
}

/** Characters that are coloured at once: far less work than a frame has room for. */
const PIECE = 2000
/** Characters after which lines that are all within one colour, such as a long comment, are cut all the same. */
const MAX_PIECE_LENGTH = 4 * PIECE

/** Lines of code as nodes with classes. */
export interface ColouredPiece {
  /** Characters that it covers, with the end of its last line. */
  length: number
  nodes: ComponentChild[]
  /** Whether it stays as it is when more code follows. */
  isSettled: boolean
}

/**
 * Colours the beginning of a code: some lines behind which no colour goes on, or all of it where it is short.
 * @param isComplete whether nothing will follow it
 * @returns undefined where its language is not known
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
    // One colour over all of it, or one line: that is shown without.
    const cut = lines.lastIndexOf('\n') > 0 ? lines.lastIndexOf('\n') : code.indexOf('\n', size)
    if (cut > 0) return { length: cut + 1, nodes: [code.slice(0, cut)], isSettled: true }
    return { length: code.length, nodes: [code], isSettled: isComplete }
  }
  return { length: code.length, nodes: nodesOf(coloured(code)), isSettled: isComplete }
}

/** Where the last line ends that has no colour over its end; no empty one, which would not be seen at the end of a piece. */
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
