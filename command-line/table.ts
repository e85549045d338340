export interface Column {
  title: string
  /** Numbers read better when they end at the same column. */
  align?: 'right'
}

/** Aligned columns under their titles, without trailing blanks. */
export function formatTable(columns: Column[], rows: string[][]): string {
  const widths = columns.map(({ title }, index) => Math.max(title.length, ...rows.map(row => row[index]!.length)))
  const line = (cells: string[]) =>
    cells
      .map((cell, index) => (columns[index]!.align ? cell.padStart(widths[index]!) : cell.padEnd(widths[index]!)))
      .join('    ')
      .trimEnd()
  return [line(columns.map(({ title }) => title)), ...rows.map(line)].join('\n')
}

/** Names and values below each other; pairs without a value are left out. */
export function formatPairs(pairs: [name: string, value: string | undefined][], indent = '  '): string {
  const shown = pairs.filter(([, value]) => value !== undefined)
  const width = Math.max(...shown.map(([name]) => name.length))
  return shown.map(([name, value]) => `${indent}${name.padEnd(width)}  ${value}`).join('\n')
}
