/** Words of a passage: as many as the smallest common context of embedding models, 512 tokens, can hold. */
const MAX_WORDS = 220
/** Words that a passage repeats from the one before, so that a sentence is whole in one of them. */
const OVERLAP = 40
/** Words after which a heading begins another passage. */
const MIN_SECTION_WORDS = 20
/** A word. Scripts without spaces count by character, and long tokens such as addresses by part. */
const WORD =
  /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Script=Thai}]|[^\s\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Script=Thai}]{1,16}/gu

const MAX_HEADING_LENGTH = 100
/** A line that looks like a heading: in Markdown, or with a number such as `3.2`. */
const HEADING =
  /^(?:#{1,6} +(?<title>\S.*)|(?:\d{1,3}(?:\.\d{1,3}){0,4}\.?|(?:[Cc]hapter|[Ss]ection|[Pp]art|[Aa]ppendix) \w{1,5}[.:]?) +\p{Lu}.*|第.{1,9}[章节].*)(?<![.,;:。，；])$/u

/** A part of a page, from one offset to another, and the heading above it. */
export interface PagePart {
  start: number
  end: number
  heading?: string
}

/** Splits a page into passages for searches, before headings and between paragraphs if possible. */
export function* splitPage(page: string): Generator<PagePart, void> {
  const starts: number[] = []
  const ends: number[] = []
  /** Words that no passage has yet, and the place of the last paragraph among the words. */
  let fresh = 0
  let paragraph = 0
  let latest: string | undefined
  let heading: string | undefined
  const take = (count: number, repeated: number): PagePart => {
    const part = { start: starts[0]!, end: ends[count - 1]!, ...(heading !== undefined && { heading }) }
    for (const places of [starts, ends]) places.splice(0, count - repeated)
    fresh = starts.length - repeated
    paragraph = 0
    heading = latest
    return part
  }
  for (const { 0: word, index: at } of page.matchAll(WORD)) {
    const gap = page.slice(ends.at(-1) ?? 0, at)
    const title = starts.length === 0 || gap.includes('\n') ? headingAt(page, at) : undefined
    if (title !== undefined) {
      latest = title
      if (fresh >= MIN_SECTION_WORDS) yield take(starts.length, 0)
      heading = title
    }
    if (/\n\s*\n/.test(gap)) paragraph = starts.length
    starts.push(at)
    ends.push(at + word.length)
    fresh += 1
    if (starts.length < MAX_WORDS) continue
    yield paragraph < MAX_WORDS / 2 ? take(MAX_WORDS, OVERLAP) : take(paragraph, 0)
  }
  if (fresh > 0) yield take(starts.length, 0)
}

function headingAt(page: string, at: number): string | undefined {
  const line = page
    .slice(at, at + MAX_HEADING_LENGTH + 1)
    .split('\n', 1)[0]!
    .trimEnd()
  const found = line.length > MAX_HEADING_LENGTH ? null : HEADING.exec(line)
  return found ? (found.groups!.title ?? line) : undefined
}
