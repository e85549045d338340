import { Lexer, Marked, type Token, type Tokens, type TokensList } from 'marked'

/** A formula between `$` or `$$`, `\\(` and `\\)`, or `\\[` and `\\]`. */
export interface FormulaToken extends Tokens.Generic {
  type: 'formula'
  text: string
  /** On a line of its own. */
  isDisplayed: boolean
}

const BLOCK = /^(?:\$\$([^$]{1,4000}?)\$\$|\\\[([\s\S]{1,4000}?)\\\]) *(?:\n+|$)/
// Text between two amounts of money is not a formula: no space just inside the signs, and no digit after the last one.
const INLINE = /^(?:\$\$([^$\n]+?)\$\$|\\\[([^\n]+?)\\\]|\\\(([^\n]+?)\\\)|\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d))/

/** Maximum characters between the signs of a formula that spans lines. */
const MAX_FORMULA_DISTANCE = 4000

const markdown = new Marked({
  extensions: [
    {
      name: 'formula',
      level: 'block',
      start(source) {
        const found = /\n {0,3}(?=\$\$|\\\[)/.exec(source.slice(0, MAX_FORMULA_DISTANCE))
        const index = found ? found.index + found[0].length : -1
        return index >= 0 && BLOCK.test(source.slice(index)) ? index : undefined
      },
      tokenizer(source): FormulaToken | Token | undefined {
        if ((this.lexer as unknown as LimitedLexer).isTooMuch(source)) return plain(source)
        const found = BLOCK.exec(source)
        return found
          ? { type: 'formula', raw: found[0], text: (found[1] ?? found[2])!.trim(), isDisplayed: true }
          : undefined
      }
    },
    {
      name: 'formula',
      level: 'inline',
      start: source => /\$|\\[([]/.exec(source)?.index,
      tokenizer(source): FormulaToken | undefined {
        const found = INLINE.exec(source)
        if (!found) return undefined
        const text = found.slice(1).find(part => part !== undefined)!
        return { type: 'formula', raw: found[0], text: text.trim(), isDisplayed: false }
      }
    }
  ]
})

/** Text that is shown as written. */
const plain = (text: string): Token => ({ type: 'plain', raw: text, text })

/** Limit for the special characters in a paragraph times its length, which determines the time for parsing. */
const MAX_INLINE_WORK = 1e7
const SIGN = /[\\[\]*_`~<$!&@]| {2,}\n/g
/** Characters before an `@` that are searched for an address. */
const MAX_ADDRESS = 100
const LONG_ADDRESS = new RegExp(`[^\\s@]{${MAX_ADDRESS}}$`)
/** Limit for the number of blocks times the characters up to the next blank line, for any text and per character. */
const MAX_BLOCK_WORK = 4e6
const MAX_BLOCK_WORK_A_CHARACTER = 50
/** Maximum depth of nested quotes and lists. Each level is parsed once more by the level around it. */
const MAX_DEPTH = 16

/** A lexer that leaves text unparsed if parsing would take too long. Many special characters take quadratic time. */
class LimitedLexer extends Lexer {
  #work = 0
  #maxWork = 0
  #depth = 0
  /** Remaining characters at the next blank line. */
  #leftAfterBlank = Infinity

  override lex(source: string) {
    this.#maxWork = MAX_BLOCK_WORK + MAX_BLOCK_WORK_A_CHARACTER * source.length
    return super.lex(source)
  }

  override blockTokens(source: string, tokens: Token[] = [], isClipped?: boolean): TokensList {
    const before = this.#leftAfterBlank
    this.#leftAfterBlank = Infinity
    this.#depth += 1
    if (this.#depth > MAX_DEPTH) tokens.push(plain(source))
    else super.blockTokens(source, tokens, isClipped)
    this.#depth -= 1
    this.#leftAfterBlank = before
    return tokens as TokensList
  }

  override inlineTokens(source: string, tokens: Token[] = []) {
    if (!isCostly(source)) return super.inlineTokens(source, tokens)
    tokens.push(plain(source))
    return tokens
  }

  /** Counts the work for a block at the start of the rest of the text. Returns whether it exceeds the limit. */
  isTooMuch(source: string): boolean {
    if (source.length <= this.#leftAfterBlank) {
      const blank = source.indexOf('\n\n')
      this.#leftAfterBlank = blank < 0 ? -1 : source.length - blank - 2
    }
    this.#work += source.length - Math.max(0, this.#leftAfterBlank)
    return this.#work > this.#maxWork
  }
}

function isCostly(text: string): boolean {
  const maxSigns = MAX_INLINE_WORK / text.length
  if (text.length <= maxSigns) return false
  let signs = 0
  SIGN.lastIndex = 0
  for (let found = SIGN.exec(text); found; found = SIGN.exec(text)) {
    signs += 1
    if (signs > maxSigns) return true
    if (found[0] === '@' && LONG_ADDRESS.test(text.slice(Math.max(0, found.index - MAX_ADDRESS), found.index)))
      return true
  }
  return false
}

/** Tokenizes a text. Text that cannot be parsed is shown as written. */
function lexer(text: string): Token[] {
  try {
    return new LimitedLexer(markdown.defaults).lex(text)
  } catch {
    return [{ type: 'paragraph', raw: text, text, tokens: [plain(text)] }]
  }
}

/** Maximum nesting that is passed to the lexer, which would overflow its stack on a line of 10,000 `>`. */
const DEEPEST = 24
const TOO_DEEP = new RegExp(
  `^((?:[ \\t]*(?:>|[-*+][ \\t]|\\d{1,9}[.)][ \\t])){${DEEPEST}})(?=[ \\t]*(?:>|[-*+\\d]))`,
  'gm'
)
/** Inserts a zero-width space, after which no block can start. */
const tame = (text: string) => text.replace(TOO_DEEP, '$1\u200b')

/**
 * Number of last blocks that further text may still change. Blank lines do not count: the `4` after a list is a
 * paragraph until `4. ` turns it into the next item.
 */
const UNFINISHED = 2
const isBlank = ({ type }: Token) => type === 'space'
/** Characters after which a part is full, about one screen. */
const PART_SIZE = 1500
/** A line that may define the targets of `[links]` in other lines. */
const LINK_DEFINITION = /^[ \t>]*\[[^\]\n]+\]:/m

/** Longer lists, tables and paragraphs are parsed only after they have grown by a share of their length. */
const MAX_READ_OFTEN = 8000
const GROWTH = 1.15

/** Consecutive blocks, about one screen of them. */
export type Part = readonly Token[]

/**
 * Parses a growing Markdown text into parts. Only the end of the text is parsed again. Finished parts stay the same
 * objects, so that their views need not be rendered again.
 */
export class MarkdownBlocks {
  #text = ''
  #isComplete = false
  /** Parts that are final. */
  #done: Part[] = []
  /** Blocks after the final parts that are final too, and blocks that may still change. */
  #settled: Token[] = []
  #tail: Token[] = []
  /** Length of the text before the tail, and of the tail when it was last parsed. */
  #length = 0
  #readLength = 0
  #parts: Part[] = []
  /** Changes when the parts replace all earlier ones. */
  generation = 0

  /** Parses a text. @param isComplete whether the text has ended */
  update(written: string, isComplete: boolean): readonly Part[] {
    const text = written.replace(/\r\n?/g, '\n')
    if (text === this.#text && isComplete === this.#isComplete) return this.#parts
    // The last line may define the targets of links.
    if (!text.startsWith(this.#text) || (isComplete && LINK_DEFINITION.test(text))) {
      this.#done = []
      this.#settled = []
      this.#tail = []
      this.#length = 0
      this.#readLength = 0
      this.generation += 1
    }
    this.#text = text
    this.#isComplete = isComplete
    const tail = text.slice(this.#length)
    const isLate = !isComplete && this.#isLong() && tail.length < GROWTH * this.#readLength
    if (!isLate) {
      this.#tail = lexer(tame(tail))
      this.#readLength = tail.length
      this.#settle()
    }
    const unread = isLate ? [plain(tail.slice(this.#readLength))] : []
    const open = cut([...this.#settled, ...this.#tail, ...unread])
    while (open.length > 1 && open[0]!.length <= this.#settled.length) {
      const part = open.shift()!
      this.#done.push(part)
      this.#settled.splice(0, part.length)
    }
    this.#parts = [...this.#done, ...open]
    return this.#parts
  }

  /** Whether parsing the tail takes long. Code does not. */
  #isLong(): boolean {
    const last = this.#tail.at(-1)
    return this.#readLength - (last?.type === 'code' ? last.raw.length : 0) > MAX_READ_OFTEN
  }

  #settle(): void {
    let count = 0
    let at = this.#length
    const unfinished = this.#tail.filter(block => !isBlank(block)).at(-UNFINISHED)
    // If the source of a block differs from the text, the start of the next block is unknown.
    for (const block of unfinished ? this.#tail : []) {
      const { raw } = block
      if (block === unfinished) break
      if (!this.#text.startsWith(raw, at)) break
      at += raw.length
      count += 1
    }
    this.#settled.push(...this.#tail.splice(0, count))
    this.#readLength -= at - this.#length
    this.#length = at
  }
}

/** Splits blocks into parts. Blocks that may still change stay in the part in which they are shown. */
function cut(blocks: readonly Token[]): Token[][] {
  const parts: Token[][] = [[]]
  let size = 0
  let more = UNFINISHED
  for (const block of blocks) {
    if (size >= PART_SIZE && !isBlank(block) && more-- === 0) {
      parts.push([])
      size = 0
      more = UNFINISHED
    }
    parts.at(-1)!.push(block)
    size += block.raw.length
  }
  return parts
}
