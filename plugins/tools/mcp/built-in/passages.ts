import { setImmediate as nextTurn } from 'node:timers/promises'
import { splitPage } from '../../../../core/answers/split-page.ts'

export interface Passage {
  text: string
  page?: number
  /** The first and the last line, from 1. */
  lines?: readonly [number, number]
}

const PASSAGES_PER_SLICE = 50

/** Splits a text into passages. Other requests get their turn in between. @param paged whether `[Page 1]` begins a page */
export async function splitPassages(text: string, paged: boolean, most: number): Promise<Passage[]> {
  const passages: Passage[] = []
  const pages = paged ? splitPages(text) : [text]
  for (const [index, page] of pages.entries()) {
    let line = 1
    let counted = 0
    const lineAt = (at: number) => {
      // Passages overlap, so that the next one may begin before the end of this one.
      for (; counted < at; counted++) if (page[counted] === '\n') line++
      for (; counted > at; counted--) if (page[counted - 1] === '\n') line--
      return line
    }
    for (const { start, end } of splitPage(page)) {
      const lines = [lineAt(start), lineAt(end)] as const
      passages.push({ text: page.slice(start, end), ...(paged ? { page: index + 1 } : { lines }) })
      if (passages.length >= most) return passages
      if (passages.length % PASSAGES_PER_SLICE === 0) await nextTurn()
    }
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
