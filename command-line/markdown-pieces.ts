import type { Token, Tokens } from 'marked'
import type pc from 'picocolors'
import { breakUnits, displayWidth, pad } from './display-width.ts'

export type Colors = ReturnType<typeof pc.createColors>

/** A piece of output. `arrange` breaks it into lines. */
export type Piece =
  /** `space` is printed before the word unless it starts a line. */
  | { kind: 'word'; text: string; space: string }
  /**
   * Starts a new line with the prefix `first`. Wrapped lines get the prefix `next`. `gap` is the prefix of a blank line
   * before it.
   */
  | { kind: 'line'; first: string; next: string; gap?: string | undefined }
  /** A line printed unchanged: code, or part of a table. */
  | { kind: 'verbatim'; text: string }

type Style = (text: string) => string

/** The block around a block, as prefixes of its first and other lines. */
interface Place {
  first: string
  next: string
  /** Prefix of the blank line before it. Defaults to `next`. */
  before?: string
  depth: number
}

export const TOP: Place = { first: '', next: '', depth: 0 }

/** Matches the start of unfinished text that could still become emphasis, code, a link or a tag. */
const OPENER =
  /(?:\*{1,3}(?=[^\s*])|(?<!\w)_{1,3}(?=[^\s_])|`|!?\[(?![^\]]*\][^([:])|~~?(?=[^\s~])|<(?=[a-z/!?][^<>\n]{0,80}$|$)|&(?=#?\w{0,8}$)|[*_~\\]$)(?![\s\S]{400})/i
const ENTITIES: Record<string, string> = {
  ...{ amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", '#39': "'" },
  nbsp: '\u00a0'
}
const ENDS_BLANK = /\n[ \t]*\n[ \t]*$/
const MAX_COLUMNS = 100
const CELL_SEPARATOR = ' │ '

/** Lays out parsed Markdown. Without colours, headings keep their `#` and code its backticks. */
export class Layout {
  readonly #colors: Colors
  readonly #columns: number
  readonly #base: Style
  pieces: Piece[] = []
  /** Whether a blank line comes before the next block. */
  gap: boolean
  /** Whether text was left out because its meaning could still change. */
  held = false

  /** @param base style of all text, such as dim for thinking */
  constructor(colors: Colors, columns: number, base: Style, gap: boolean) {
    this.#colors = colors
    this.#columns = columns
    this.#base = base
    this.gap = gap
  }

  /** @param open whether the last block is unfinished */
  blocks(tokens: readonly Token[], place: Place, open: boolean): void {
    let at = place
    for (const [index, token] of tokens.entries()) {
      if (this.held) return
      if (token.type === 'space') {
        this.gap ||= /\n[ \t]*\n/.test(token.raw)
        continue
      }
      const laid = this.pieces.length
      this.#block(token as Tokens.Generic, at, open && index === tokens.length - 1)
      this.gap = ENDS_BLANK.test(token.raw)
      if (this.pieces.length > laid) at = { first: place.next, next: place.next, depth: place.depth }
    }
  }

  /** Lays out an item of a list. @param index counted from 0 */
  item({ ordered, start, items }: Tokens.List, index: number, place: Place, open: boolean): void {
    const item = items[index]!
    const marker = ordered ? `${Number(start) + index}. ` : `${place.depth % 2 === 0 ? '•' : '◦'} `
    const bullet = item.task ? `${marker}${item.checked ? '[x]' : '[ ]'} ` : marker
    const inside = {
      first: (index === 0 ? place.first : place.next) + this.#base(this.#colors.dim(bullet)),
      next: place.next + ' '.repeat(displayWidth(marker)),
      before: place.before ?? place.next,
      depth: place.depth + 1
    }
    const laid = this.pieces.length
    this.blocks(item.tokens, inside, open)
    // An empty list item still shows its marker.
    if (this.pieces.length === laid && !open) this.#line(inside)
    this.gap ||= ENDS_BLANK.test(item.raw)
  }

  #block(token: Tokens.Generic, place: Place, open: boolean): void {
    const { bold, dim, underline, isColorSupported } = this.#colors
    const text = (raw: string) => this.#text([{ type: 'text', raw: token.raw, text: raw }], place, open)
    switch (token.type) {
      case 'heading': {
        const tokens = token.tokens ?? []
        if (tokens.length === 0 && open) return
        this.gap = true
        const mark = isColorSupported ? '' : `${'#'.repeat(token.depth)} `
        const style: Style = token.depth === 1 ? text => bold(underline(text)) : bold
        this.#text(tokens, { ...place, first: place.first + mark }, open, style)
        return
      }
      case 'code':
        this.#code(token as Tokens.Code, place, open)
        return
      case 'list': {
        const list = token as Tokens.List
        for (let index = 0; index < list.items.length && !this.held; index++) {
          this.item(list, index, place, open && index === list.items.length - 1)
        }
        return
      }
      case 'blockquote': {
        const bar = this.#base(dim('│ '))
        const { first, next, before = next, depth } = place
        this.blocks(token.tokens!, { first: first + bar, next: next + bar, before, depth }, open)
        return
      }
      case 'table':
        if (open) this.held = true
        else for (const line of this.table(token as Tokens.Table, place)) this.#verbatim(place, line)
        return
      case 'hr':
        if (!open) this.#verbatim(place, this.#base(dim('─'.repeat(this.#room(place)))))
        return
      case 'def':
        if (!open) text(token.raw.trim())
        return
      case 'html':
        text(token.raw.trimEnd())
        return
      case 'checkbox':
        return
      default:
        this.#text((token.tokens as Token[] | undefined) ?? [token as Token], place, open)
    }
  }

  #text(tokens: readonly Token[], place: Place, open: boolean, style: Style = text => text): void {
    this.#line(place)
    this.pieces.push(...this.#words(tokens, style, open, place.next))
  }

  #room(place: Place): number {
    return Math.max(4, Math.min(this.#columns - 1, MAX_COLUMNS) - displayWidth(place.next))
  }

  #line({ first, next, before = next }: Place): void {
    this.pieces.push({ kind: 'line', first, next, gap: this.gap ? before.trimEnd() : undefined })
    this.gap = false
  }

  #verbatim(place: Place, text: string): void {
    this.#line(place)
    this.pieces.push({ kind: 'verbatim', text })
  }

  #code({ raw, text, lang = '' }: Tokens.Code, place: Place, open: boolean): void {
    const dim: Style = line => this.#base(this.#colors.dim(line))
    const room = this.#room(place)
    const name = lang.split(/\s/)[0]
    // The language may be incomplete until its line ends.
    if (open && !raw.includes('\n')) return
    const rest = { ...place, first: place.next }
    this.#verbatim(place, dim(name ? `── ${name} `.padEnd(room, '─') : '─'.repeat(room)))
    // The lexer keeps a final line break if blank lines come before it.
    const code = text.replace(/\n$/, '')
    if (code !== '') for (const line of code.split('\n')) this.#verbatim(rest, this.#base(line))
    if (!open || isClosedCode(raw)) this.#verbatim(rest, dim('─'.repeat(room)))
  }

  /** The words of a text, and a line for each line break. @param next prefix of these lines */
  #words(tokens: readonly Token[], style: Style, open: boolean, next: string): Piece[] {
    const words: Piece[] = []
    let word = ''
    let space = ''
    const flush = () => {
      if (word !== '') words.push({ kind: 'word', text: word, space })
      word = ''
      space = ''
    }
    const lineBreak = () => {
      flush()
      words.push({ kind: 'line', first: next, next })
    }
    const add = (text: string, style: Style) => {
      for (const [, broken, blank, part] of text.matchAll(/(\n)|([ \t]+)|([^ \t\n]+)/g)) {
        if (broken) lineBreak()
        else if (blank) {
          flush()
          space = ' '
        } else {
          for (const [index, unit] of breakUnits(part!).entries()) {
            if (index > 0) flush()
            word += this.#base(style(unit))
          }
        }
      }
    }
    const { bold, italic, strikethrough, magenta, underline, dim, isColorSupported } = this.#colors
    const styles: Record<string, Style> = { strong: bold, em: italic, del: strikethrough, link: underline }
    const walk = (tokens: readonly Token[], style: Style, open: boolean) => {
      for (const token of tokens as Tokens.Generic[]) {
        if (this.held) return
        const own = styles[token.type]
        if (own) {
          walk(token.tokens!, text => style(own(text)), false)
          // The address is always shown, so that a link's text cannot hide its target.
          const address = token.href?.replace(/^mailto:/, '')
          if (address !== undefined && token.text !== token.href && token.text !== address) {
            add(` (${address})`, text => style(dim(text)))
          }
        } else if (token.type === 'codespan') {
          add(isColorSupported ? token.text : token.raw, text => style(magenta(text)))
        } else if (token.type === 'image') add(`${token.text || 'image'} (${token.href})`, style)
        else if (token.type === 'br' || (token.type === 'html' && /^\s*<br\s*\/?>\s*$/i.test(token.raw))) lineBreak()
        else if (token.type === 'html') add(token.raw, style)
        // Keeps the backslash of \( and \[, which open formulas.
        else if (token.type === 'escape') add(/[()[\]]/.test(token.text) ? token.raw : token.text, style)
        else if (token.tokens) walk(token.tokens, style, open)
        else {
          const text = token.text.replace(
            /&(amp|lt|gt|quot|apos|#39|nbsp);/g,
            (_: string, name: string) => ENTITIES[name]!
          )
          const opener = open ? OPENER.exec(text) : null
          add(opener ? text.slice(0, opener.index) : text, style)
          if (opener) this.held = true
        }
      }
    }
    walk(tokens, style, open)
    // The text left out may belong to the last word.
    if (this.held) word = ''
    flush()
    return words
  }

  /** Renders a table at most as wide as the terminal. If its columns do not fit, its rows are printed one below another. */
  table({ header, align, rows }: Tokens.Table, place: Place = TOP): string[] {
    const { bold, dim } = this.#colors
    const room = this.#columns - 1 - displayWidth(place.next)
    const toCells = (row: Tokens.TableCell[], style: Style) =>
      header.map((_, index) => this.#words(row[index]?.tokens ?? [], style, false, ''))
    const titles = toCells(header, bold)
    const body = rows.map(row => toCells(row, text => text))
    const columns = header.map((_, index) => [titles, ...body].map(row => row[index]!))
    const widest = (texts: string[]) => Math.max(1, ...texts.map(displayWidth))
    const widths = shareColumns(
      columns.map(cells => widest(cells.flatMap(cell => arrange(cell, Number.POSITIVE_INFINITY).split('\n')))),
      columns.map(cells => widest(cells.flat().map(piece => (piece.kind === 'word' ? piece.text : '')))),
      room - CELL_SEPARATOR.length * (header.length - 1)
    )
    if (!widths) return this.#stacked(titles, body, room)
    const formatRow = (row: Piece[][]) => {
      const cells = row.map((words, index) => arrange(words, widths[index]!).split('\n'))
      const height = Math.max(1, ...cells.map(lines => lines.length))
      return Array.from({ length: height }, (_, line) =>
        cells
          .map((lines, index) => alignCell(lines[line] ?? '', widths[index]!, align[index] ?? null))
          .join(this.#base(dim(CELL_SEPARATOR)))
          .trimEnd()
      )
    }
    const rule = this.#base(dim(widths.map(width => '─'.repeat(width)).join('─┼─')))
    const lines = body.map(formatRow)
    const tall = lines.some(row => row.length > 1)
    // A rule separates rows that take several lines.
    return [...formatRow(titles), rule, ...lines.flatMap((row, index) => (tall && index > 0 ? [rule, ...row] : row))]
  }

  #stacked(titles: Piece[][], body: Piece[][][], room: number): string[] {
    const rule = this.#base(this.#colors.dim('─'.repeat(Math.max(4, Math.min(room, 20)))))
    const rows = body.length > 0 ? body : [titles.map(() => [])]
    return rows.flatMap((row, index) => [
      ...(index > 0 ? [rule] : []),
      ...row.flatMap((cell, column) => {
        const title = arrange(titles[column]!, Number.POSITIVE_INFINITY).replaceAll('\n', ' ')
        const [first, ...others] = cell
        const pieces: Piece[] = [
          { kind: 'line', first: `${title}:`, next: '  ' },
          { kind: 'word', text: '', space: '' },
          ...(first?.kind === 'word' ? [{ ...first, space: ' ' }, ...others] : cell)
        ]
        return arrange(pieces, room).split('\n')
      })
    ])
  }
}

/**
 * Arranges pieces in lines of at most `room` columns. A wider word gets its own line, so that it can be copied whole.
 * @param begun whether there are lines before
 */
export function arrange(pieces: readonly Piece[], room: number, begun = false): string {
  let text = ''
  let column = 0
  let hasWord = false
  let next = ''
  for (const piece of pieces) {
    if (piece.kind === 'line') {
      if (begun || text !== '') text += piece.gap === undefined ? '\n' : `\n${piece.gap}\n`
      text += piece.first
      column = displayWidth(piece.first)
      hasWord = false
      next = piece.next
      continue
    }
    const width = displayWidth(piece.text)
    const space = piece.kind === 'word' && hasWord ? piece.space : ''
    if (piece.kind === 'word' && hasWord && column + space.length + width > room) {
      text += `\n${next}${piece.text}`
      column = displayWidth(next) + width
    } else {
      text += space + piece.text
      column += space.length + width
    }
    hasWord = true
    if (column > room + 1) column %= room + 1
  }
  return text
}

export function isClosedCode(raw: string): boolean {
  return /^ {0,3}(`{3,}|~{3,})[^\n]*\n(?:[\s\S]*\n)? {0,3}\1[`~]*[ \t]*\n*$/.test(raw)
}

/** Column widths that fill `available`. Undefined if the longest words do not fit side by side. */
function shareColumns(natural: number[], least: number[], available: number): number[] | undefined {
  const sum = (widths: number[]) => widths.reduce((all, width) => all + width, 0)
  if (sum(natural) <= available) return natural
  if (sum(least) > available) return undefined
  // The widest columns shrink first.
  const capped = (cap: number) => natural.map((width, index) => Math.max(least[index]!, Math.min(width, cap)))
  let cap = Math.max(...natural)
  while (cap > 1 && sum(capped(cap)) > available) cap--
  return capped(cap)
}

function alignCell(text: string, width: number, align: 'left' | 'right' | 'center' | null): string {
  if (align === 'right') return pad(text, width, 'left')
  if (align === 'center') return pad(pad(text, Math.ceil((width + displayWidth(text)) / 2), 'left'), width)
  return pad(text, width)
}
