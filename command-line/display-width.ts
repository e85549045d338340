import { eastAsianWidth } from 'get-east-asian-width'

// biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences of corral's own colours begin so
const COLOURS = /\x1b\[[\d;]*m/g
/** ASCII, Latin and table borders take one column each. */
const NARROW = /^[\x20-\x7e\xa1-\xac\xae-\u02ff\u2500-\u257f]*$/
const EMOJI = /\p{Emoji_Presentation}|\ufe0f/u
const INVISIBLE = /^[\p{Mark}\p{Cc}\p{Default_Ignorable_Code_Point}]/u
let segmenter: Intl.Segmenter | undefined

/** Splits a text into grapheme clusters. */
function characters(text: string): string[] {
  segmenter ??= new Intl.Segmenter()
  return Array.from(segmenter.segment(text), ({ segment }) => segment)
}

export function withoutColours(text: string): string {
  return text.includes('\x1b') ? text.replace(COLOURS, '') : text
}

/** Columns that a text takes on a terminal. Most Chinese, Japanese and Korean characters and emoji take two. */
export function displayWidth(text: string): number {
  const visible = withoutColours(text)
  if (NARROW.test(visible)) return visible.length
  let width = 0
  for (const character of characters(visible)) {
    if (character >= ' ' && character <= '~') width++
    else if (!INVISIBLE.test(character)) width += EMOJI.test(character) ? 2 : eastAsianWidth(character.codePointAt(0)!)
  }
  return width
}

/** Erases the last lines on the terminal, which shows more rows than were written if it became narrower. */
export function eraseLines(lines: readonly string[], columns: number): string {
  const rows = lines.reduce((sum, line) => sum + countRows(line, columns), 0)
  return `\r${rows > 1 ? `\x1b[${rows - 1}A` : ''}\x1b[J`
}

export const countRows = (line: string, columns: number) => Math.max(1, Math.ceil(displayWidth(line) / columns))

/** Pads a text like `padEnd` and `padStart`. @param width columns */
export function pad(text: string, width: number, side: 'left' | 'right' = 'right'): string {
  const blanks = ' '.repeat(Math.max(0, width - displayWidth(text)))
  return side === 'left' ? blanks + text : text + blanks
}

/** Shortens a text in the middle, because similar names differ at their ends. @param width columns */
export function shorten(text: string, width: number): string {
  if (displayWidth(text) <= width) return text
  const all = characters(text)
  if (width < 2) return take(all, width).join('')
  const tail = take(all.toReversed(), Math.ceil(((width - 1) * 2) / 3)).reverse()
  const room = width - 1 - displayWidth(tail.join(''))
  return `${take(all, room).join('')}…${tail.join('')}`
}

function take(characters: readonly string[], width: number): string[] {
  const taken: string[] = []
  let room = width
  for (const character of characters) {
    room -= displayWidth(character)
    if (room < 0) break
    taken.push(character)
  }
  return taken
}

/** Scripts written without blanks, where a line may break after each character. */
const UNSPACED =
  '[\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\p{Script=Bopomofo}\\u3000-\\u303f\\uff01-\\uff60]'
/** Characters that must not start a line: closing brackets, marks that end a phrase, small kana. */
const ENDS = '[\\p{Pe}\\p{Pf}、。，．・：；？！ー々…‥ぁぃぅぇぉっゃゅょァィゥェォッャュョ,.:;?!)%\\]}\\p{Mark}]'
/** Lines may break between characters of these scripts, except after opening brackets. */
const BREAK_POINT = new RegExp(`(?<![\\p{Ps}\\p{Pi}])(?!${ENDS})(?:(?<=${UNSPACED})|(?=${UNSPACED}))`, 'u')
/** Marks these points. */
const ZERO_WIDTH_SPACE = '\u200b'

/** Applies a style to each word of a text for `wrapWords`. Chinese and Japanese also break between characters. */
export const breakable = (text: string, style: (word: string) => string): string =>
  text.replace(/[^ \t\n]+/g, word => word.split(BREAK_POINT).map(style).join(ZERO_WIDTH_SPACE))

/** Wraps the words of a `breakable` text. A wider word gets its own line, so that it can be copied whole. */
export function wrapWords(text: string, width: number): string[] {
  return text.split('\n').flatMap(line => {
    const lines = ['']
    let column = 0
    for (const [, before = '', word = ''] of line.matchAll(/([ \t\u200b]*)([^ \t\u200b]+)/g)) {
      const blank = column > 0 && /[ \t]/.test(before) ? ' ' : ''
      const columns = displayWidth(word)
      const isFull = column > 0 && column + blank.length + columns > width
      if (isFull) lines.push(word)
      else lines.push(lines.pop()! + blank + word)
      column = isFull ? columns : column + blank.length + columns
    }
    return lines
  })
}
