import { Marked, type Token, type Tokens } from 'marked'

/** A formula between `$` or `$$`, or between `\\(` and `\\)` or `\\[` and `\\]`. */
export interface FormulaToken extends Tokens.Generic {
  type: 'formula'
  text: string
  /** On a line of its own. */
  isDisplayed: boolean
}

const BLOCK = /^(?:\$\$([^$]+?)\$\$|\\\[([\s\S]+?)\\\]) *(?:\n+|$)/
// What stands between two amounts of money is no formula: no space inside of the signs, no digit behind.
const INLINE = /^(?:\$\$([^$\n]+?)\$\$|\\\[([^\n]+?)\\\]|\\\(([^\n]+?)\\\)|\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d))/

const markdown = new Marked({
  extensions: [
    {
      name: 'formula',
      level: 'block',
      start: source => /\$\$|\\\[/.exec(source)?.index,
      tokenizer(source): FormulaToken | undefined {
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
        const [raw, dollars, brackets, parentheses, dollar] = found
        const text = (dollars ?? brackets ?? parentheses ?? dollar)!.trim()
        return { type: 'formula', raw, text, isDisplayed: (dollars ?? brackets) !== undefined }
      }
    }
  ]
})

/** Text is shown as it was written where it cannot be read. */
function lexer(text: string): Token[] {
  try {
    return markdown.lexer(text)
  } catch {
    return [{ type: 'paragraph', raw: text, text, tokens: [{ type: 'text', raw: text, text }] }]
  }
}

/** Quotes and lists in each other that are read as such; a reader would run out of stack on a line of 10,000 `>`. */
const DEEPEST = 24
const TOO_DEEP = new RegExp(
  `^((?:[ \\t]*(?:>|[-*+][ \\t]|\\d{1,9}[.)][ \\t])){${DEEPEST}})(?=[ \\t]*(?:>|[-*+\\d]))`,
  'gm'
)
/** A space without width, behind which nothing begins. */
const tame = (text: string) => text.replace(TOO_DEEP, '$1\u200b')

/** Tokens that a text's end may still change: the last one, and the one before it. */
const UNFINISHED = 2

/**
 * The blocks of a Markdown text that grows: only its end is read again. Blocks that are done stay the same objects, so
 * that what shows them need not be made anew.
 */
export class MarkdownBlocks {
  #text = ''
  #blocks: Token[] = []
  /** Characters that the blocks which cannot change any more cover. */
  #settled = 0

  /**
   * The blocks of a text.
   * @param isComplete whether nothing follows; it is read once more as a whole then, since a link may be defined at its end
   */
  update(written: string, isComplete: boolean): readonly Token[] {
    const text = tame(written)
    if (isComplete) {
      if (text !== this.#text || this.#settled !== text.length) this.#blocks = merge(this.#blocks, lexer(text))
      this.#settled = text.length
    } else {
      if (!text.startsWith(this.#text)) {
        this.#settled = 0
        this.#blocks = []
      }
      const kept: Token[] = []
      let length = 0
      for (const block of this.#blocks) {
        if (length + block.raw.length > this.#settled) break
        kept.push(block)
        length += block.raw.length
      }
      const tail = lexer(text.slice(length))
      const blocks = [...kept, ...merge(this.#blocks.slice(kept.length), tail)]
      this.#blocks = blocks
      this.#settled = blocks.slice(0, -UNFINISHED).reduce((sum, { raw }) => sum + raw.length, 0)
    }
    this.#text = text
    return this.#blocks
  }
}

/** The new blocks, with those of before where they are the same. */
function merge(before: readonly Token[], now: readonly Token[]): Token[] {
  return now.map((block, index) => {
    const known = before[index]
    return known && known.raw === block.raw && known.type === block.type ? known : block
  })
}
