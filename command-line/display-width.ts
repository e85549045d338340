import { eastAsianWidth } from 'get-east-asian-width'

// biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences of corral's own colours begin so
const COLOURS = /\x1b\[[\d;]*m/g
/** ASCII, Latin and the lines of tables: one column each. */
const NARROW = /^[\x20-\x7e\xa1-\xac\xae-\u02ff\u2500-\u257f]*$/
const EMOJI = /\p{Emoji_Presentation}|\ufe0f/u
const INVISIBLE = /^[\p{Mark}\p{Cc}\p{Default_Ignorable_Code_Point}]/u
let segmenter: Intl.Segmenter | undefined

/** What people take for one character each. */
function characters(text: string): string[] {
  segmenter ??= new Intl.Segmenter()
  return Array.from(segmenter.segment(text), ({ segment }) => segment)
}

/** A text without corral's own colours. */
export function withoutColours(text: string): string {
  return text.includes('\x1b') ? text.replace(COLOURS, '') : text
}

/** How many columns a terminal gives a text: two to most Chinese, Japanese and Korean characters and to emoji. */
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

/** Fills up with blanks, as `padEnd` and `padStart` do. @param width columns */
export function pad(text: string, width: number, side: 'left' | 'right' = 'right'): string {
  const blanks = ' '.repeat(Math.max(0, width - displayWidth(text)))
  return side === 'left' ? blanks + text : text + blanks
}

/** Shortens a text in its middle: the ends of names that begin alike differ. @param width columns */
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

/** Scripts that are written without blanks: a line may end after each of their characters. */
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Bopomofo}\u3000-\u303f\uff01-\uff60]/u
/** What begins no line: closing brackets, marks that end a phrase, small kana. */
const ENDS = /^[\p{Pe}\p{Pf}、。，．・：；？！ー々…‥ぁぃぅぇぉっゃゅょァィゥェォッャュョ,.:;?!)%\]}\p{Mark}]/u
/** What ends no line. */
const BEGINS = /[\p{Ps}\p{Pi}]$/u

/**
 * The pieces of a text without blanks between which a line may end: a word as a whole, but Chinese and Japanese
 * character by character, as their rules of punctuation allow.
 */
export function breakUnits(text: string): string[] {
  if (!UNSPACED.test(text)) return [text]
  const units: string[] = []
  for (const segment of characters(text)) {
    const before = units.at(-1)
    const apart =
      before !== undefined &&
      (UNSPACED.test(segment) || UNSPACED.test(before)) &&
      !ENDS.test(segment) &&
      !BEGINS.test(before)
    if (before === undefined || apart) units.push(segment)
    else units[units.length - 1] = before + segment
  }
  return units
}
