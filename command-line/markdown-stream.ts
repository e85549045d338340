import { Marked, type Token } from 'marked'
import { countRows, eraseLines } from './display-width.ts'
import { type Colors, MarkdownLayout } from './markdown-layout.ts'
import { printable } from './output.ts'

export interface TextOutput {
  write(text: string): unknown
  columns?: number | undefined
  rows?: number | undefined
}

// Keeps single line breaks, because models do not fill paragraphs. Dashes below a text are a rule, not an underline.
const markdown = new Marked({ gfm: true, breaks: true, tokenizer: { lheading: () => undefined } })

/** A longer unfinished block rests after parsing for this many times as long, because it is parsed again and again. */
const REST = 2
const MAX_ALWAYS_PARSED = 2048
/** The marks of a new block, which mean nothing before its text. */
const MARKS = /(^|\n)[\s>*+#|:\d.)[\]=~_-]*$/

/**
 * Prints Markdown while it is generated. Finished blocks never change. The last one is drawn again from its first
 * changed line, which is usually only the last line with another word.
 */
export class MarkdownStream {
  readonly #output: TextOutput
  readonly #layout: MarkdownLayout
  /** Text of the unfinished block, and its lines on the terminal. The cursor is behind them. */
  #tail = ''
  #lines: readonly string[] = []
  /** Whether there are lines above it, and whether a blank line separates them. */
  #begun = false
  #gap = false
  #restsUntil = 0

  constructor(output: TextOutput, colors: Colors, base = (text: string) => text) {
    this.#output = output
    this.#layout = new MarkdownLayout(colors, base)
  }

  push(text: string): void {
    this.#tail += printable(text)
    const began = performance.now()
    // No word is complete before the next blank. Some scripts have no blanks.
    if (!/[^!-~]/.test(text)) return
    if (this.#tail.length > MAX_ALWAYS_PARSED && began < this.#restsUntil) return
    this.#show(complete(this.#tail), false)
    const ended = performance.now()
    this.#restsUntil = ended + REST * (ended - began)
  }

  /** Prints the remaining text, even if unfinished, and ends the line. */
  end(): void {
    this.#show(this.#tail, true)
    if (this.#begun) this.#output.write('\n')
    this.#begun = false
    this.#tail = ''
  }

  #show(source: string, ended: boolean): void {
    const tokens = ended ? markdown.lexer(source) : parseUnfinished(source)
    const open = ended ? tokens.length : openBlock(tokens)
    // The last column stays free, because some terminals wrap when it is written.
    const width = this.#columns - 1
    const above = { begun: this.#begun, gap: this.#gap }
    const done = this.#layout.blocks(tokens.slice(0, open), width, above)
    const begun = this.#begun || done.lines.length > 0
    const { lines } = this.#layout.blocks(tokens.slice(open), width, { begun, gap: done.gap })
    // Each row of a table may change the width of its columns, so only rows that can be drawn again are shown.
    const rest = tokens[open]?.type === 'table' ? this.#fitting(lines) : lines
    this.#draw([...done.lines, ...rest])
    this.#lines = rest
    const finished = tokens.slice(0, open).reduce((length, { raw }) => length + raw.length, 0)
    this.#tail = this.#tail.slice(finished)
    this.#begun = begun
    this.#gap = done.gap
  }

  get #columns(): number {
    return this.#output.columns || 80
  }

  /** The last lines, as many as the terminal can show. */
  #fitting(lines: readonly string[]): readonly string[] {
    let room = (this.#output.rows || 24) - 1
    const hidden = lines.findLastIndex(line => {
      room -= countRows(line, this.#columns)
      return room < 0
    })
    return lines.slice(hidden + 1)
  }

  /** Replaces the lines of the unfinished block. Lines that have scrolled away stay. */
  #draw(next: readonly string[]): void {
    const old = this.#lines
    const changed = old.findIndex((line, index) => line !== next[index])
    const same = changed === -1 ? old.length : changed
    const [last, now] = [old[same] ?? '', next[same] ?? '']
    if (same === old.length) {
      if (next.length === same) return
      this.#output.write((this.#begun || same > 0 ? '\n' : '') + next.slice(same).join('\n'))
    } else if (same === old.length - 1 && now.startsWith(last)) {
      this.#output.write([now.slice(last.length), ...next.slice(same + 1)].join('\n'))
    } else {
      const hidden = old.length - this.#fitting(old).length
      const from = Math.min(Math.max(same, hidden), Math.max(0, next.length - 1))
      const lines = next.slice(from)
      // Without any line left, the next output begins with a line break.
      const up = lines.length === 0 && this.#begun ? '\x1b[A' : ''
      this.#output.write(eraseLines(old.slice(from), this.#columns) + up + lines.join('\n'))
    }
  }
}

/** Index of the unfinished block, or `tokens.length` if there is none. */
function openBlock(tokens: readonly Token[]): number {
  const last = tokens.length - 1
  if (tokens[last]?.type !== 'space') return last
  // A list may continue after a blank line.
  return tokens[last - 1]?.type === 'list' ? last - 1 : tokens.length
}

/** Leaves out a last word, and the marks of a last block. */
function complete(text: string): string {
  let end = text.length
  while (end > 0 && text[end - 1]! > ' ' && text[end - 1]! <= '~') end--
  return text.slice(0, end).replace(MARKS, '$1')
}

/** Parses a text as if bold text and code that are not closed yet were, so that their marks are not shown. */
function parseUnfinished(text: string): Token[] {
  const tokens = markdown.lexer(text)
  if (tokens.at(-1)?.type === 'code') return tokens
  const paragraph = text.slice(text.lastIndexOf('\n\n') + 1).replace(/`[^`\n]*`/g, '')
  const open = [/(?<!`)`(?!`)/, /\*\*/, /~~/].filter(mark => paragraph.split(mark).length % 2 === 0)
  const marks = open.map(mark => mark.exec(paragraph)![0]).join('')
  return marks === '' ? tokens : markdown.lexer(text.trimEnd() + marks)
}
