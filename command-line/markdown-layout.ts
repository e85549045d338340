import type { Token, Tokens } from 'marked'
import type pc from 'picocolors'
import { breakable, displayWidth, pad, wrapWords } from './display-width.ts'

export type Colors = ReturnType<typeof pc.createColors>
type Style = (text: string) => string

const ENTITIES: Record<string, string> = {
  ...{ amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", '#39': "'" },
  nbsp: '\u00a0'
}
const ENDS_BLANK = /\n[ \t]*\n[ \t]*$/
const CLOSING_FENCE = /\n {0,3}(`{3,}|~{3,})[ \t]*\n*$/
const MAX_RULE_COLUMNS = 100
const CELL_SEPARATOR = ' │ '

/** Lays out parsed Markdown as lines. Without colours, headings keep their `#` and code its backticks. */
export class MarkdownLayout {
  readonly #colors: Colors
  readonly #base: Style

  /** @param base style of all text, such as dim for thinking */
  constructor(colors: Colors, base: Style) {
    this.#colors = colors
    this.#base = base
  }

  /**
   * Lays out blocks, separated by blank lines as in the text.
   * @param begun whether there are lines above, and `gap` whether a blank line separates them
   * @returns the lines, and whether a blank line follows them
   */
  blocks(tokens: readonly Token[], width: number, { depth = 0, begun = false, gap = false } = {}) {
    const lines: string[] = []
    let isApart = gap
    for (const token of tokens) {
      const own = this.#block(token as Tokens.Generic, width, depth)
      if (own.length > 0) {
        if ((isApart || token.type === 'heading') && (begun || lines.length > 0)) lines.push('')
        lines.push(...own)
        isApart = false
      }
      isApart ||= ENDS_BLANK.test(token.raw)
    }
    return { lines, gap: isApart }
  }

  #block(token: Tokens.Generic, width: number, depth: number): string[] {
    const { bold, dim, underline, isColorSupported } = this.#colors
    switch (token.type) {
      case 'space':
      case 'checkbox':
        return []
      case 'heading': {
        const mark = isColorSupported ? '' : `${'#'.repeat(token.depth)} `
        const style: Style = token.depth === 1 ? text => bold(underline(text)) : bold
        return wrapWords(mark + this.#inline(token.tokens ?? [], style), width)
      }
      case 'code':
        return this.#code(token as Tokens.Code, width)
      case 'list':
        return this.#list(token as Tokens.List, width, depth)
      case 'blockquote': {
        const bar = this.#base(dim('│ '))
        return indented(this.blocks(token.tokens!, width - 2, { depth }).lines, bar, bar)
      }
      case 'table':
        return this.#table(token as Tokens.Table, width)
      case 'hr':
        return [this.#rule(width)]
      case 'def':
        return wrapWords(this.#inline([{ ...token, type: 'html' } as Token]).trimEnd(), width)
      default:
        return wrapWords(this.#inline(token.tokens ?? [token as Token]).trimEnd(), width)
    }
  }

  #rule(width: number, title = ''): string {
    return this.#base(this.#colors.dim(title.padEnd(Math.max(4, Math.min(width, MAX_RULE_COLUMNS)), '─')))
  }

  /** An unfinished block has no rule below it. */
  #code({ raw, text, lang = '', codeBlockStyle }: Tokens.Code, width: number): string[] {
    const name = lang.split(/\s/)[0]
    // The lexer keeps a final line break if blank lines come before it.
    const code = text.replace(/\n$/, '')
    return [
      this.#rule(width, name && `── ${name} `),
      ...(code === '' ? [] : code.split('\n').map(this.#base)),
      ...(codeBlockStyle === 'indented' || CLOSING_FENCE.test(raw) ? [this.#rule(width)] : [])
    ]
  }

  #list({ ordered, start, items }: Tokens.List, width: number, depth: number): string[] {
    return items.flatMap((item, index) => {
      const marker = ordered ? `${Number(start) + index}. ` : `${depth % 2 === 0 ? '•' : '◦'} `
      const bullet = item.task ? `${marker}${item.checked ? '[x]' : '[ ]'} ` : marker
      const { lines } = this.blocks(item.tokens, width - bullet.length, { depth: depth + 1 })
      const own = indented(
        lines.length > 0 ? lines : [''],
        this.#base(this.#colors.dim(bullet)),
        ' '.repeat(marker.length)
      )
      return index > 0 && ENDS_BLANK.test(items[index - 1]!.raw) ? ['', ...own] : own
    })
  }

  /** A text for `wrapWords`. Each word has its own styles, so that lines may break anywhere. */
  #inline(tokens: readonly Token[], style: Style = text => text): string {
    const { bold, italic, strikethrough, magenta, underline, dim, isColorSupported } = this.#colors
    const styles: Record<string, Style> = { strong: bold, em: italic, del: strikethrough, link: underline }
    const styled = (text: string, own: Style = text => text) => breakable(text, unit => this.#base(style(own(unit))))
    const parts = (tokens as Tokens.Generic[]).map(({ type, raw, text, href, tokens }) => {
      const own = styles[type]
      if (own) {
        // The address is always shown, so that a link's text cannot hide its target.
        const address = href?.replace(/^mailto:/, '')
        const isShown = address === undefined || text === href || text === address
        return this.#inline(tokens!, text => style(own(text))) + (isShown ? '' : styled(` (${address})`, dim))
      }
      if (type === 'codespan') return styled(isColorSupported ? text : raw, magenta)
      if (type === 'image') return styled(`${text || 'image'} (${href})`)
      if (type === 'br' || (type === 'html' && /^\s*<br\s*\/?>\s*$/i.test(raw))) return '\n'
      if (type === 'html') return styled(raw)
      // Keeps the backslash of \( and \[, which open formulas.
      if (type === 'escape') return styled(/^[()[\]]$/.test(text) ? raw : text)
      if (tokens) return this.#inline(tokens, style)
      return styled(text.replace(/&(amp|lt|gt|quot|apos|#39|nbsp);/g, (_: string, name: string) => ENTITIES[name]!))
    })
    return parts.join('')
  }

  /** If its columns do not fit, the rows of a table are printed one below another. */
  #table({ header, align, rows }: Tokens.Table, width: number): string[] {
    const titles = header.map(cell => this.#inline(cell.tokens, this.#colors.bold))
    const body = rows.map(row => header.map((_, column) => this.#inline(row[column]?.tokens ?? [])))
    const widest = (texts: string[]) => Math.max(1, ...texts.map(displayWidth))
    const columns = titles.map((title, column) => [title, ...body.map(row => row[column]!)])
    const widths = shareColumns(
      columns.map(cells => widest(cells.flatMap(cell => wrapWords(cell, Number.POSITIVE_INFINITY)))),
      columns.map(cells => widest(cells.flatMap(cell => wrapWords(cell, 1)))),
      width - CELL_SEPARATOR.length * (header.length - 1)
    )
    if (!widths) {
      return (body.length > 0 ? body : [titles.map(() => '')]).flatMap((row, index) => [
        ...(index > 0 ? [this.#rule(Math.min(width, 20))] : []),
        ...row.flatMap((cell, column) =>
          indented(wrapWords(`${titles[column]!.replaceAll('\n', ' ')}: ${cell}`, width - 2), '', '  ')
        )
      ])
    }
    const formatRow = (row: string[]) => {
      const cells = row.map((cell, column) => wrapWords(cell, widths[column]!))
      return Array.from({ length: Math.max(...cells.map(lines => lines.length)) }, (_, line) =>
        cells
          .map((lines, column) => alignCell(lines[line] ?? '', widths[column]!, align[column] ?? null))
          .join(this.#base(this.#colors.dim(CELL_SEPARATOR)))
          .trimEnd()
      )
    }
    const rule = this.#base(this.#colors.dim(widths.map(width => '─'.repeat(width)).join('─┼─')))
    const lines = body.map(formatRow)
    // A rule separates rows that take several lines.
    const isTall = lines.some(row => row.length > 1)
    return [...formatRow(titles), rule, ...lines.flatMap((row, index) => (isTall && index > 0 ? [rule, ...row] : row))]
  }
}

const indented = (lines: readonly string[], first: string, others: string) =>
  lines.map((line, index) => (index === 0 ? first : others) + line).map(line => line.trimEnd())

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
