/** Count of single letters to insert, delete, replace or swap with their neighbour to make one text of the other. */
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

/** The candidate that was probably meant, or undefined when none is near. Case, "-" and "_" do not matter. */
export function nearest(typed: string, candidates: readonly string[]): string | undefined {
  if (typed.length > 64) return undefined
  const plain = (text: string) => text.toLowerCase().replaceAll('-', '_')
  const limit = Math.max(1, Math.floor(typed.length / 3))
  const ranked = candidates
    // So much longer or shorter, no candidate is near.
    .filter(candidate => Math.abs(candidate.length - typed.length) <= limit)
    .map(candidate => ({ candidate, far: distance(plain(typed), plain(candidate)) }))
    .sort((a, b) => a.far - b.far)
  return ranked[0] && ranked[0].far <= limit ? ranked[0].candidate : undefined
}
