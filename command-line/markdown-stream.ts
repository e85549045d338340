import { Marked, type Token, type Tokens } from 'marked'
import { countRows, eraseLines } from './display-width.ts'
import { arrange, type Colors, isClosedCode, Layout, type Piece, TOP } from './markdown-pieces.ts'
import { printable } from './output.ts'

export interface TextOutput {
  write(text: string): unknown
  columns?: number | undefined
  rows?: number | undefined
}

// Keeps single line breaks, because models do not fill paragraphs. Dashes below a text are a rule: as an underline they
// would turn printed text into a heading.
const markdown = new Marked({ gfm: true, breaks: true, tokenizer: { lheading: () => undefined } })

/** A line of only these characters can still become many things. */
const MARKERS = /^[\s>]*(?:(?:[-+*]|\d{1,9}[.)])[ \t]+)*(?:[-+*_=#>|`~:]+|\d{1,9}[.)]?)?[ \t]*$/
const MAYBE_DELIMITER_ROW = /^[\s>]*[|:\-\s]*$/
/** A longer unfinished block is parsed again only after it has grown by a part, because parsing takes time. */
const MAX_ALWAYS_PARSED = 1024
const MIN_GROWTH_PART = 16

/**
 * Prints Markdown while it is generated. Printed text never changes: words appear when they are complete and their
 * markup is unambiguous. Only tables are redrawn with each row, because all rows decide their column widths.
 */
export class MarkdownStream {
  readonly #output: TextOutput
  readonly #colors: Colors
  readonly #base: (text: string) => string
  /** Text of the last block, which may be unfinished. */
  #tail = ''
  /** The part of its arranged text that has been printed. */
  #printed = ''
  #columns = 80
  /** Whether something was printed before it, and whether a blank line comes before it. */
  #begun = false
  #gap = false
  /** Lines of an unfinished table, below the printed text. */
  #drawn: string[] = []
  #nextReading = 0
  #awaited = /[^!-~]/

  constructor(output: TextOutput, colors: Colors, base = (text: string) => text) {
    this.#output = output
    this.#colors = colors
    this.#base = base
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
    if (this.#hasOutput) this.#output.write('\n')
    this.#begun = false
    this.#printed = ''
  }

  get #hasOutput(): boolean {
    return this.#begun || this.#printed !== ''
  }

  /** @returns the type of the unfinished block */
  #read(source: string, ended: boolean): string | undefined {
    if (this.#printed === '') this.#columns = this.#output.columns || 80
    const tokens = markdown.lexer(source)
    const open = ended ? tokens.length : openBlock(tokens)
    const layout = new Layout(this.#colors, this.#columns, this.#base, this.#gap)
    layout.blocks(tokens.slice(0, open), TOP, false)
    /** The end of everything that is finished: blocks, and items of a list. */
    const finished = { pieces: layout.pieces.length, gap: layout.gap, text: joinRaw(tokens.slice(0, open)) }
    const last = tokens[open]
    if (last?.type === 'list') {
      const list = last as Tokens.List
      for (const index of list.items.keys()) {
        const isLast = index === list.items.length - 1
        if (isLast && index > 0) {
          finished.pieces = layout.pieces.length
          finished.gap = layout.gap
          finished.text += joinRaw(list.items.slice(0, index))
        }
        layout.item(list, index, TOP, isLast)
      }
    } else if (last) layout.blocks([last], TOP, true)
    const { pieces } = layout
    if (!ended && !layout.held && pieces.length > finished.pieces) dropUnfinished(pieces, source)
    if (!ended) while (pieces.at(-1)?.kind === 'line') pieces.pop()
    this.#print(this.#arrange(pieces))
    if (last?.type === 'table') {
      this.#draw(new Layout(this.#colors, this.#columns, this.#base, false).table(last as Tokens.Table))
    }
    // From here on only the last block is parsed again, or only the last item of a list.
    if (!this.#tail.startsWith(finished.text)) return last?.type
    this.#tail = this.#tail.slice(finished.text.length)
    const done = this.#arrange(pieces.slice(0, finished.pieces))
    this.#printed = this.#printed.slice(done.length)
    this.#begun ||= done !== ''
    this.#gap = finished.gap
    if (last?.type === 'code') this.#dropPrintedCode(last as Tokens.Code, pieces.slice(finished.pieces))
    return last?.type
  }

  /** The last column stays free, because some terminals wrap when it is written. */
  #arrange(pieces: readonly Piece[]): string {
    return arrange(pieces, this.#columns - 1, this.#begun)
  }

  /** Removes the printed lines of a long code block, which never change. The first one identifies the block. */
  #dropPrintedCode({ raw }: Tokens.Code, pieces: readonly Piece[]): void {
    const begin = /^ {0,3}(?:`{3,}|~{3,})[^\n]*\n/.exec(raw)?.[0]
    const lines = pieces.filter(({ kind }) => kind === 'verbatim').length - 1
    if (begin === undefined || lines < 1 || this.#tail.length !== raw.length || isClosedCode(raw)) return
    if (this.#printed !== this.#arrange(pieces)) return
    const code = raw.slice(begin.length).split('\n')
    if (code.length <= lines) return
    this.#tail = begin + code.slice(lines).join('\n')
    this.#printed = this.#arrange(pieces.slice(0, 2))
  }

  #print(text: string): void {
    // Less may be unambiguous now, because a new character can belong to the last word.
    if (this.#printed.startsWith(text)) return
    let added = text.slice(this.#printed.length)
    if (!text.startsWith(this.#printed)) {
      // The markup has changed, which is rare. The changed lines are printed again.
      const lines = this.#printed.split('\n')
      const changed = text.split('\n').findIndex((line, index) => line !== lines[index])
      added = `\n${text.split('\n').slice(changed).join('\n')}`
    }
    this.#output.write(this.#erased() + added)
    this.#printed = text
  }

  /** Draws lines that the next output replaces, as many as the terminal can show. */
  #draw(lines: readonly string[]): void {
    let room = Math.max(1, (this.#output.rows || 24) - 2)
    const hidden = lines.findLastIndex(line => {
      room -= countRows(line, this.#output.columns || 80)
      return room < 0
    })
    const visible = lines.slice(hidden + 1)
    if (visible.join('\n') === this.#drawn.join('\n')) return
    this.#output.write(this.#erased() + (this.#hasOutput ? '\n' : '') + visible.join('\n'))
    this.#drawn = visible
  }

  #erased(): string {
    if (this.#drawn.length === 0) return ''
    const erased = eraseLines(this.#drawn, this.#output.columns || 80)
    this.#drawn = []
    // The next output begins with a line break.
    return this.#hasOutput ? `${erased}\x1b[A` : erased
  }
}

/** Index of the unfinished block, or `tokens.length` if there is none. */
function openBlock(tokens: readonly Token[]): number {
  const last = tokens.length - 1
  if (tokens[last]?.type !== 'space') return last
  // A list may continue after a blank line.
  return tokens[last - 1]?.type === 'list' ? last - 1 : tokens.length
}

const joinRaw = (tokens: readonly { raw: string }[]) => tokens.map(({ raw }) => raw).join('')

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
