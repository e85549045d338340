import { Marked, type Token, type Tokens } from 'marked'
import { displayWidth } from './display-width.ts'
import { type Colors, isClosedCode, Layout, type Piece, TOP } from './markdown-pieces.ts'
import { printable } from './output.ts'

export interface TextOutput {
  write(text: string): unknown
  columns?: number | undefined
  rows?: number | undefined
}

export interface MarkdownOptions {
  colors: Colors
  base?: (text: string) => string
}

// Keeps single line breaks, because models do not fill paragraphs. Dashes below a text are a rule: as an underline they
// would turn printed text into a heading.
const markdown = new Marked({ gfm: true, breaks: true, tokenizer: { lheading: () => undefined } })

/** A line of only these characters can still become many things. */
const MARKERS = /^[\s>]*(?:(?:[-+*]|\d{1,9}[.)])[ \t]+)*(?:[-+*_=#>|`~:]+|\d{1,9}[.)]?)?[ \t]*$/
const MAYBE_DELIMITER_ROW = /^[\s>]*[|:\-\s]*$/
/**
 * A longer unfinished block is parsed again only after it has grown noticeably, because parsing time is proportional to
 * length.
 */
const MAX_ALWAYS_PARSED = 1024
const MIN_GROWTH_PART = 16

/**
 * Prints Markdown while it is generated. Printed text never changes: words appear when they are complete and their
 * markup is unambiguous. Only tables are redrawn with each row, because their column widths depend on all rows. Control
 * characters are removed.
 */
export class MarkdownStream {
  readonly #printer: Printer
  readonly #options: MarkdownOptions
  /** Text of the last block, which may be unfinished. */
  #tail = ''
  /** Pieces of it that have been printed. */
  #printed: Piece[] = []
  /** Whether a blank line comes before it. */
  #gap = false
  #nextReading = 0
  #awaited = /[^!-~]/

  constructor(output: TextOutput, options: MarkdownOptions) {
    this.#printer = new Printer(output)
    this.#options = options
  }

  push(text: string): void {
    this.#tail += printable(text)
    // Nothing can be complete before the next blank, or in code and tables before the next line.
    if (this.#tail.length < this.#nextReading || !this.#awaited.test(text)) return
    const kind = this.#read(held(this.#tail), false)
    this.#awaited = kind === 'code' || kind === 'table' ? /\n/ : /[^!-~]/
    const { length } = this.#tail
    this.#nextReading = length < MAX_ALWAYS_PARSED ? 0 : length + length / MIN_GROWTH_PART
  }

  /** Prints the remaining text, even if unfinished, and ends the line. */
  end(): void {
    this.#read(this.#tail, true)
    this.#tail = ''
    this.#printed = []
    this.#printer.end()
  }

  /** @returns the type of the unfinished block */
  #read(source: string, ended: boolean): string | undefined {
    const tokens = markdown.lexer(source)
    const open = ended ? tokens.length : openBlock(tokens)
    const look = { colors: this.#options.colors, columns: this.#printer.columns }
    const base = this.#options.base ?? (text => text)
    const layout = new Layout(look, base, this.#gap)
    layout.blocks(tokens.slice(0, open), TOP, false)
    const boundary = { pieces: layout.pieces.length, gap: layout.gap, text: joinRaw(tokens.slice(0, open)) }
    const last = tokens[open]
    if (last?.type === 'list') this.#layItems(layout, last as Tokens.List, boundary)
    else if (last) layout.blocks([last], TOP, true)
    const { pieces } = layout
    if (!ended && !layout.held && pieces.length > boundary.pieces) dropUnfinished(pieces, source)
    if (!ended) while (pieces.at(-1)?.kind === 'line') pieces.pop()
    this.#print(pieces)
    if (last?.type === 'table') this.#printer.draw(new Layout(look, base, false).table(last as Tokens.Table))
    // From here on only the last block is parsed again, or only the last item of a list.
    if (!this.#tail.startsWith(boundary.text)) return last?.type
    this.#tail = this.#tail.slice(boundary.text.length)
    this.#printed = this.#printed.slice(boundary.pieces)
    this.#gap = boundary.gap
    if (last?.type === 'code') this.#dropPrintedCode(last as Tokens.Code)
    return last?.type
  }

  #layItems(layout: Layout, { items, ordered, start }: Tokens.List, boundary: Boundary): void {
    for (const [index, item] of items.entries()) {
      const last = index === items.length - 1
      if (last && index > 0) {
        boundary.pieces = layout.pieces.length
        boundary.gap = layout.gap
        boundary.text += items
          .slice(0, index)
          .map(({ raw }) => raw)
          .join('')
      }
      layout.item(item, TOP, ordered ? `${Number(start) + index}. ` : '• ', last)
    }
  }

  /**
   * Removes the printed lines of a long code block, which never change. The first line stays because it identifies the
   * block.
   */
  #dropPrintedCode({ raw }: Tokens.Code): void {
    const begin = /^ {0,3}(?:`{3,}|~{3,})[^\n]*\n/.exec(raw)?.[0]
    const lines = this.#printed.filter(({ kind }) => kind === 'verbatim').length - 1
    if (begin === undefined || lines < 1 || this.#tail.length !== raw.length || isClosedCode(raw)) return
    const code = raw.slice(begin.length).split('\n')
    if (code.length <= lines) return
    this.#tail = begin + code.slice(lines).join('\n')
    this.#printed = this.#printed.slice(0, 2)
  }

  #print(pieces: readonly Piece[]): void {
    const same = (piece: Piece, index: number) => samePiece(piece, pieces[index])
    let from = this.#printed.length
    const known = this.#printed.slice(0, pieces.length)
    if (known.every(same)) {
      // Fewer pieces may be unambiguous now, because a new character can belong to the last word.
      if (pieces.length <= from) return
    } else {
      // The markup has changed, which is rare. The line is printed again.
      from = this.#printed.findIndex((piece, index) => !same(piece, index))
      while (from > 0 && pieces[from]?.kind !== 'line') from--
      this.#printer.breakOff()
    }
    this.#printer.print(pieces.slice(from))
    this.#printed = [...pieces]
  }
}

interface Boundary {
  pieces: number
  gap: boolean
  text: string
}

/** Index of the unfinished block, or `tokens.length` if there is none. */
function openBlock(tokens: readonly Token[]): number {
  const last = tokens.length - 1
  if (tokens[last]?.type !== 'space') return last
  // A list may continue after a blank line.
  return tokens[last - 1]?.type === 'list' ? last - 1 : tokens.length
}

const joinRaw = (tokens: readonly Token[]) => tokens.map(({ raw }) => raw).join('')

/** Leaves out an unfinished line while its meaning depends on the rest. */
function held(text: string): string {
  const at = text.lastIndexOf('\n') + 1
  const line = text.slice(at)
  const before = text.slice(0, Math.max(0, at - 1))
  const previous = before.slice(before.lastIndexOf('\n') + 1)
  // A table is recognized by two lines.
  const begins = previous.includes('|') && !(previous.includes('-') && MAYBE_DELIMITER_ROW.test(previous))
  if (begins && MAYBE_DELIMITER_ROW.test(line)) return text.slice(0, at - 1 - previous.length)
  return line.includes('|') || MARKERS.test(line) ? text.slice(0, at) : text
}

/** Removes a last word or line of code that may be unfinished. */
function dropUnfinished(pieces: Piece[], source: string): void {
  const last = pieces.at(-1)
  if (last?.kind === 'word' && !/\s$/.test(source)) pieces.pop()
  if (last?.kind === 'verbatim' && !source.endsWith('\n')) pieces.pop()
}

function samePiece(one: Piece, other: Piece | undefined): boolean {
  if (one.kind === 'line') return other?.kind === 'line' && one.first === other.first && one.next === other.next
  return one.kind === other?.kind && one.text === other.text
}

/** Arranges words in lines. */
class Printer {
  readonly #output: TextOutput
  #begun = false
  /** The cursor is at the start of an empty line. */
  #atStart = true
  /** Columns used on the current line, and whether it has more than its prefix. */
  #column = 0
  #hasWord = false
  #next = ''
  #width: number
  #drawn: string[] = []

  constructor(output: TextOutput) {
    this.#output = output
    this.#width = this.columns
  }

  get columns(): number {
    return this.#output.columns || 80
  }

  print(pieces: readonly Piece[]): void {
    if (pieces.length === 0) return
    let text = this.#erased()
    // A terminal that became narrower has wrapped the line.
    if (this.columns < this.#width) this.#column %= this.columns
    this.#width = this.columns
    for (const piece of pieces) {
      if (piece.kind === 'line') text += this.#line(piece.first, piece.next, piece.gap)
      else if (piece.kind === 'verbatim') text += this.#verbatim(piece.text)
      else text += this.#word(piece.text, piece.space)
    }
    this.#output.write(text)
  }

  /** Draws lines that the next output replaces, as many as the terminal can show. */
  draw(lines: readonly string[]): void {
    let room = Math.max(1, (this.#output.rows || 24) - 2)
    const hidden = lines.findLastIndex(line => {
      room -= this.#countRows(line)
      return room < 0
    })
    const visible = lines.slice(hidden + 1)
    if (visible.join('\n') === this.#drawn.join('\n')) return
    let text = this.#erased()
    if (!this.#atStart) text += '\n'
    this.#atStart = true
    this.#output.write(text + visible.join('\n'))
    this.#drawn = visible
  }

  breakOff(): void {
    if (this.#atStart) return
    this.#output.write('\n')
    this.#atStart = true
  }

  end(): void {
    const text = this.#erased()
    if (text !== '') this.#output.write(text)
    this.breakOff()
  }

  #erased(): string {
    if (this.#drawn.length === 0) return ''
    // A terminal that became narrower shows more rows than were written.
    const rows = this.#drawn.reduce((sum, line) => sum + this.#countRows(line), 0)
    this.#drawn = []
    return `\r${rows > 1 ? `\x1b[${rows - 1}A` : ''}\x1b[J`
  }

  #countRows(line: string): number {
    return Math.max(1, Math.ceil(displayWidth(line) / this.columns))
  }

  #line(first: string, next: string, gap: string | undefined): string {
    const blank = gap !== undefined && this.#begun ? `${gap}\n` : ''
    const end = this.#atStart ? '' : '\n'
    this.#begin(first, next)
    return end + blank + first
  }

  #begin(first: string, next: string): void {
    this.#begun = true
    this.#atStart = false
    this.#hasWord = false
    this.#column = displayWidth(first)
    this.#next = next
  }

  #verbatim(text: string): string {
    this.#column += displayWidth(text)
    this.#hasWord = true
    return text
  }

  #word(text: string, space: string): string {
    const width = displayWidth(text)
    // The last column stays free, because some terminals wrap when it is written.
    const room = this.columns - 1
    const gap = this.#hasWord ? space : ''
    if (this.#hasWord && this.#column + gap.length + width > room) {
      const next = this.#next
      this.#begin(next, next)
      this.#hasWord = true
      this.#take(width)
      return `\n${next}${text}`
    }
    this.#hasWord = true
    this.#take(gap.length + width)
    return gap + text
  }

  /** The terminal wraps a word wider than itself, so that it can be copied whole. */
  #take(width: number): void {
    this.#column += width
    if (this.#column > this.columns) this.#column %= this.columns
  }
}

/** Prints text as it arrives, without control characters. */
export class PrintableStream {
  readonly #output: TextOutput
  readonly #style: (text: string) => string
  #lineEnded = true

  constructor(output: TextOutput, style: (text: string) => string = text => text) {
    this.#output = output
    this.#style = style
  }

  push(text: string): void {
    const shown = printable(text)
    if (shown === '') return
    this.#lineEnded = shown.endsWith('\n')
    this.#output.write(this.#style(shown))
  }

  end(): void {
    if (!this.#lineEnded) this.#output.write('\n')
  }
}
