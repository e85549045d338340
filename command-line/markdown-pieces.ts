import type { Token, Tokens } from 'marked'
import type pc from 'picocolors'
import { breakUnits, displayWidth, pad } from './display-width.ts'

export type Colors = ReturnType<typeof pc.createColors>

/** A piece of output. The printer decides where lines end, because it knows the terminal's width. */
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

export interface Look {
  colors: Colors
  /** Read for each layout, because a terminal may be resized. */
  columns: number
}

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
  amp: '&',
  lt: '<',
  gt: '>',
  quot: '"',
  '#39': "'",
  apos: "'",
  nbsp: '\u00a0'
}

/** Lays out parsed Markdown. Without colours, headings keep their `#` and code its backticks. */
export class Layout {
  readonly #look: Look
  readonly #base: Style
  pieces: Piece[] = []
  #gap: boolean
  #held = false

  /** Whether text was left out because its meaning could still change. */
  get held(): boolean {
    return this.#held
  }

  /** @param base style of all text, such as dim for thinking */
  constructor(look: Look, base: Style, gap: boolean) {
    this.#look = look
    this.#base = base
    this.#gap = gap
  }

  get #colors(): Colors {
    return this.#look.colors
  }

  get #columns(): number {
    return this.#look.columns
  }

  get gap(): boolean {
    return this.#gap
  }

  /** @param open whether the last block is unfinished */
  blocks(tokens: readonly Token[], place: Place, open: boolean): void {
    let at = place
    for (const [index, token] of tokens.entries()) {
      if (this.#held) return
      if (token.type === 'space') {
        this.#gap ||= /\n[ \t]*\n/.test(token.raw)
        continue
      }
      const laid = this.pieces.length
      this.#block(token as Tokens.Generic, at, open && index === tokens.length - 1)
      this.#gap = /\n[ \t]*\n[ \t]*$/.test(token.raw)
      if (this.pieces.length > laid) at = { first: place.next, next: place.next, depth: place.depth }
    }
  }

  item(item: Tokens.ListItem, place: Place, marker: string, open: boolean): void {
    const bullet = item.task ? `${marker}${item.checked ? '[x]' : '[ ]'} ` : marker
    const inside = {
      first: place.first + this.#base(this.#colors.dim(bullet)),
      next: place.next + ' '.repeat(displayWidth(marker)),
      before: place.before ?? place.next,
      depth: place.depth + 1
    }
    const laid = this.pieces.length
    this.blocks(item.tokens, inside, open)
    // An empty list item still shows its marker.
    if (this.pieces.length === laid && !open) this.#line(inside)
    this.#gap ||= /\n[ \t]*\n[ \t]*$/.test(item.raw)
  }

  #block(token: Tokens.Generic, place: Place, open: boolean): void {
    const { bold, dim, underline } = this.#colors
    switch (token.type) {
      case 'heading': {
        const tokens = token.tokens ?? []
        if (tokens.length === 0 && open) return
        const style: Style = token.depth === 1 ? text => bold(underline(text)) : bold
        this.#gap = true
        const mark = this.#look.colors.isColorSupported ? '' : `${'#'.repeat(token.depth)} `
        this.#line({ ...place, first: place.first + mark })
        this.#inline(tokens, place, style, open)
        return
      }
      case 'code':
        this.#code(token as Tokens.Code, place, open)
        return
      case 'list': {
        const { items, ordered, start } = token as Tokens.List
        for (const [index, item] of items.entries()) {
          if (this.#held) return
          const marker = ordered ? `${Number(start) + index}. ` : `${place.depth % 2 === 0 ? '•' : '◦'} `
          const at = index === 0 ? place : { ...place, first: place.next }
          this.item(item, at, marker, open && index === items.length - 1)
        }
        return
      }
      case 'blockquote': {
        const bar = this.#base(dim('│ '))
        this.blocks(
          (token as Tokens.Blockquote).tokens,
          {
            first: place.first + bar,
            next: place.next + bar,
            before: place.before ?? place.next,
            depth: place.depth
          },
          open
        )
        return
      }
      case 'table': {
        if (open) this.#held = true
        else for (const line of this.table(token as Tokens.Table, place)) this.#verbatim(place, line)
        return
      }
      case 'hr':
        if (!open) this.#verbatim(place, this.#base(dim('─'.repeat(this.#room(place)))))
        return
      case 'def':
        if (!open) this.#text([{ type: 'text', raw: token.raw, text: token.raw.trim() }], place, open)
        return
      case 'html':
        this.#text([{ type: 'text', raw: token.raw, text: token.raw.trimEnd() }], place, open)
        return
      case 'checkbox':
        return
      default:
        this.#text((token.tokens as Token[] | undefined) ?? [token as Token], place, open)
    }
  }

  #text(tokens: readonly Token[], place: Place, open: boolean): void {
    this.#line(place)
    this.#inline(tokens, place, text => text, open)
  }

  #room(place: Place): number {
    return Math.max(4, Math.min(this.#columns - 1, 100) - displayWidth(place.next))
  }

  #line({ first, next, before = next }: Place): void {
    this.pieces.push({ kind: 'line', first, next, gap: this.#gap ? before.trimEnd() : undefined })
    this.#gap = false
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

  #inline(tokens: readonly Token[], place: Place, style: Style, open: boolean): void {
    const words = this.#words(tokens, style, open)
    for (const word of words) {
      if (word === 'break') this.#line({ ...place, first: place.next })
      else this.pieces.push(word)
    }
  }

  #words(tokens: readonly Token[], style: Style, open: boolean): (Extract<Piece, { kind: 'word' }> | 'break')[] {
    const words: (Extract<Piece, { kind: 'word' }> | 'break')[] = []
    let word = ''
    let space = ''
    const flush = () => {
      if (word !== '') words.push({ kind: 'word', text: word, space })
      word = ''
      space = ''
    }
    const lineBreak = () => {
      flush()
      words.push('break')
    }
    const add = (text: string, style: Style) => {
      for (const [index, line] of text.split('\n').entries()) {
        if (index > 0) lineBreak()
        for (const part of line.split(/([ \t]+)/)) {
          if (part === '') continue
          if (/^[ \t]/.test(part)) {
            flush()
            space = ' '
            continue
          }
          for (const [index, unit] of breakUnits(part).entries()) {
            if (index > 0) flush()
            word += this.#base(style(unit))
          }
        }
      }
    }
    const { bold, italic, strikethrough, magenta, underline, dim, isColorSupported } = this.#colors
    const walk = (tokens: readonly Token[], style: Style, open: boolean) => {
      for (const token of tokens as Tokens.Generic[]) {
        if (this.#held) return
        switch (token.type) {
          case 'strong':
            walk(token.tokens!, text => style(bold(text)), false)
            break
          case 'em':
            walk(token.tokens!, text => style(italic(text)), false)
            break
          case 'del':
            walk(token.tokens!, text => style(strikethrough(text)), false)
            break
          case 'codespan':
            add(isColorSupported ? token.text : token.raw, text => style(magenta(text)))
            break
          case 'br':
            lineBreak()
            break
          case 'link': {
            const shown = token.href.replace(/^mailto:/, '')
            walk(token.tokens!, text => style(underline(text)), false)
            // The address is always shown, so that a link's text cannot hide its target.
            if (token.text !== token.href && token.text !== shown) add(` (${shown})`, text => style(dim(text)))
            break
          }
          case 'image':
            add(`${token.text || 'image'} (${token.href})`, style)
            break
          case 'html':
            if (/^<br\s*\/?>$/i.test(token.raw.trim())) lineBreak()
            else add(token.raw, style)
            break
          // Keeps the backslash of \( and \[, which open formulas.
          case 'escape':
            add(/[()[\]]/.test(token.text) ? token.raw : token.text, style)
            break
          default: {
            if (token.tokens) {
              walk(token.tokens, style, open)
              break
            }
            const text = token.text.replace(
              /&(amp|lt|gt|quot|apos|#39|nbsp);/g,
              (_: string, name: string) => ENTITIES[name]!
            )
            const opener = open ? OPENER.exec(text) : null
            add(opener ? text.slice(0, opener.index) : text, style)
            if (opener) this.#held = true
          }
        }
      }
    }
    walk(tokens, style, open)
    // The text left out may belong to the last word.
    if (this.#held) word = ''
    flush()
    return words
  }

  /**
   * Renders a table at most as wide as the terminal. If its columns do not fit, its rows are printed one below the
   * other.
   */
  table({ header, align, rows }: Tokens.Table, place: Place = TOP): string[] {
    const { bold, dim } = this.#colors
    const room = this.#columns - 1 - displayWidth(place.next)
    const toCells = (row: Tokens.TableCell[], style: Style) =>
      header.map((_, index) => this.#words(row[index]?.tokens ?? [], style, false))
    const titles = toCells(header, bold)
    const body = rows.map(row => toCells(row, text => text))
    const SEPARATOR = 3
    const available = room - SEPARATOR * (header.length - 1)
    const columns = header.map((_, index) => [titles, ...body].map(row => row[index]!))
    const natural = columns.map(cells =>
      Math.max(1, ...cells.flatMap(cell => wrapWords(cell, Infinity)).map(displayWidth))
    )
    const least = columns.map(cells =>
      Math.max(1, ...cells.flat().map(word => (word === 'break' ? 0 : displayWidth(word.text))))
    )
    const widths = shareColumns(natural, least, available)
    if (!widths) return this.#stacked(titles, body, room)
    const formatRow = (row: (typeof titles)[number][]) => {
      const cells = row.map((words, index) => wrapWords(words, widths[index]!))
      const height = Math.max(1, ...cells.map(lines => lines.length))
      return Array.from({ length: height }, (_, line) =>
        cells
          .map((lines, index) => alignCell(lines[line] ?? '', widths[index]!, align[index] ?? null))
          .join(this.#base(dim(' │ ')))
          .trimEnd()
      )
    }
    const rule = this.#base(dim(widths.map(width => '─'.repeat(width)).join('─┼─')))
    const lines = body.map(formatRow)
    const tall = lines.some(row => row.length > 1)
    return [
      ...formatRow(titles),
      rule,
      // A rule separates rows that take several lines.
      ...lines.flatMap((row, index) => (tall && index > 0 ? [rule, ...row] : row))
    ]
  }

  #stacked(
    titles: (Extract<Piece, { kind: 'word' }> | 'break')[][],
    body: (Extract<Piece, { kind: 'word' }> | 'break')[][][],
    room: number
  ): string[] {
    const rule = this.#base(this.#colors.dim('─'.repeat(Math.max(4, Math.min(room, 20)))))
    const rows = body.length > 0 ? body : [titles.map(() => [])]
    return rows.flatMap((row, index) => [
      ...(index > 0 ? [rule] : []),
      ...row.flatMap((cell, column) => {
        const title = wrapWords(titles[column]!, Infinity).join(' ')
        const label = { kind: 'word', text: `${title}:`, space: '' } as const
        const first = cell.map((word, index) => (index === 0 && word !== 'break' ? { ...word, space: ' ' } : word))
        return wrapWords([label, ...first], room, '  ')
      })
    ])
  }
}

export function isClosedCode(raw: string): boolean {
  return /^ {0,3}(`{3,}|~{3,})[^\n]*\n(?:[\s\S]*\n)? {0,3}\1[`~]*[ \t]*\n*$/.test(raw)
}

/** Wraps words into lines of at most `width` columns. A wider word gets its own line. */
function wrapWords(words: readonly (Extract<Piece, { kind: 'word' }> | 'break')[], width: number, next = ''): string[] {
  const lines: string[] = []
  let line = ''
  let used = 0
  for (const word of words) {
    if (word === 'break') {
      lines.push(line)
      line = next
      used = next.length
      continue
    }
    const size = displayWidth(word.text)
    const begins = used <= (lines.length > 0 ? next.length : 0)
    if (!begins && used + word.space.length + size > width) {
      lines.push(line)
      line = next + word.text
      used = next.length + size
    } else {
      line += (begins ? '' : word.space) + word.text
      used += (begins ? 0 : word.space.length) + size
    }
  }
  return [...lines, line]
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
