import { commonStart } from '../system/collections.ts'

/** The letters to insert, delete, replace or swap with their neighbour to turn one text into the other. */
function distance(a: string, b: string): number {
  const rows: number[][] = [Array.from({ length: b.length + 1 }, (_, j) => j)]
  for (let i = 1; i <= a.length; i++) {
    const row = [i]
    for (let j = 1; j <= b.length; j++) {
      const replaced = rows[i - 1]![j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)
      let least = Math.min(rows[i - 1]![j]! + 1, row[j - 1]! + 1, replaced)
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        least = Math.min(least, rows[i - 2]![j - 2]! + 1)
      row.push(least)
    }
    rows.push(row)
  }
  return rows[a.length]![b.length]!
}

/**
 * The candidate that was probably meant, or undefined if none is close. Ignores case, "-" and "_". Candidates are
 * ranked by:
 * 1. fewest letters to change, up to a third of the typed text; 2. the same length, since letters are mistyped more
 *    often than forgotten; 3. the longest common prefix. If none is close, the shortest candidate that begins with the
 *    typed text.
 */
export function nearest(typed: string, candidates: readonly string[]): string | undefined {
  if (typed.length > 64) return undefined
  const plain = (text: string) => text.toLowerCase().replaceAll('-', '_')
  const wanted = plain(typed)
  const limit = Math.max(1, Math.floor(typed.length / 3))
  const ranked = candidates
    .map(candidate => ({ candidate, given: plain(candidate) }))
    // With such a difference in length, no candidate is similar, but one may still begin with the typed text.
    .filter(({ given }) => Math.abs(given.length - wanted.length) <= limit || given.startsWith(wanted))
    .map(({ candidate, given }) => {
      const lengthens = Math.abs(given.length - wanted.length)
      return { candidate, lengthens, far: distance(wanted, given), start: commonStart(wanted, given) }
    })
    .sort((a, b) => a.far - b.far || a.lengthens - b.lengthens || b.start - a.start)
  const near = ranked[0]
  // If all letters of a short text changed, it does not resemble the candidate.
  if (near && near.far <= limit && near.far < wanted.length) return near.candidate
  if (wanted.length < 2) return undefined
  return ranked.filter(({ start }) => start === wanted.length).sort((a, b) => a.lengthens - b.lengthens)[0]?.candidate
}
