import { setImmediate as nextTurn } from 'node:timers/promises'

export interface Passage {
  text: string
  page?: number
  /** The first and the last line, from 1. */
  lines?: readonly [number, number]
}

/** Words of a passage: as many as the smallest common context of embedding models, 512 tokens, can hold. */
const MAX_WORDS = 220
/** Words that a passage repeats from the one before, so that a sentence is whole in one of them. */
const OVERLAP = 40
const PASSAGES_PER_SLICE = 50
/** A word. Scripts without spaces count by character, and long tokens such as addresses by part. */
const WORD =
  /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Script=Thai}]|[^\s\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Script=Thai}]{1,16}/gu

/** Splits a text into passages. Other requests get their turn in between. @param paged whether `[Page 1]` begins a page */
export async function splitPassages(text: string, paged: boolean, most: number): Promise<Passage[]> {
  const passages: Passage[] = []
  const pages = paged ? splitPages(text) : [text]
  for (const [index, page] of pages.entries()) {
    let starts: number[] = []
    let end = 0
    let line = 1
    let counted = 0
    const lineAt = (at: number) => {
      // Passages overlap, so that the next one may begin before the end of this one.
      for (; counted < at; counted++) if (page[counted] === '\n') line++
      for (; counted > at; counted--) if (page[counted - 1] === '\n') line--
      return line
    }
    const finish = () => {
      const lines = [lineAt(starts[0]!), lineAt(end)] as const
      passages.push({ text: page.slice(starts[0], end), ...(paged ? { page: index + 1 } : { lines }) })
    }
    let isNew = false
    for (const { 0: word, index: at } of page.matchAll(WORD)) {
      starts.push(at)
      end = at + word.length
      isNew = true
      if (starts.length < MAX_WORDS) continue
      finish()
      if (passages.length >= most) return passages
      if (passages.length % PASSAGES_PER_SLICE === 0) await nextTurn()
      starts = starts.slice(-OVERLAP)
      isNew = false
    }
    if (isNew) finish()
  }
  return passages
}

/** A page may contain what looks like the beginning of another one, but not of the next one in order. */
function splitPages(text: string): string[] {
  const pages: string[] = []
  for (const part of text.split(/^(?=\[Page \d)/m)) {
    const [mark = '', number] = /^\[Page (\d+)(?:: no text)?\](?:\n|$)/.exec(part) ?? []
    if (Number(number) === pages.length + 1) pages.push(part.slice(mark.length))
    else if (pages.length > 0) pages[pages.length - 1] += part
  }
  return pages
}
