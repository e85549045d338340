import { displayWidth, pad, withoutColours } from './display-width.ts'

export function printJson(value: unknown): void {
  printText(JSON.stringify(value, undefined, 2))
}

/** Prints the result of a command: as JSON, or as a text for people. */
export function printResult<Result>(json: boolean | undefined, result: Result, format: (result: Result) => string) {
  if (json) printJson(result)
  else printText(format(result))
}

export function printText(text: string): void {
  process.stdout.write(`${text}\n`)
}

/** Prints a line of information to standard error, wrapped to the terminal. */
export function printNote(text: string): void {
  process.stderr.write(`${wrapLines(text, outputWidth(process.stderr))}\n`)
}

/** Removes control characters, which could change the terminal, from untrusted text. Line breaks and tabs stay. */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is looked for
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, '')
}

/** Columns of the terminal. Unlimited for files and pipes, which programs read. */
export function outputWidth(stream: NodeJS.WriteStream = process.stdout): number {
  return stream.isTTY ? stream.columns || 80 : Number.POSITIVE_INFINITY
}

/** Blanks between columns. The smaller gap is used if the larger does not fit. */
const COLUMN_GAPS = [4, 2]
/** Minimum width for wrapping the last column. */
const MIN_LAST_COLUMN = 20

/**
 * Aligns columns under their titles, to the right if the title starts with `>`. If the table is too wide, the last
 * column is wrapped, or else each row becomes a paragraph. Cells are never shortened, so that they can be copied.
 * @param width columns (default: those of the terminal)
 */
export function formatTable(titles: readonly string[], cells: string[][], width = outputWidth()): string {
  const rows = cells.map(row => row.map(printable))
  const columns = titles.map((title, index) => {
    const text = title.replace(/^>/, '')
    const widest = Math.max(displayWidth(text), ...rows.map(row => displayWidth(row[index]!)))
    return { text, widest, side: title.startsWith('>') ? ('left' as const) : ('right' as const) }
  })
  const heads = columns.map(({ text }) => text)
  const line = (cells: string[], gap: number) =>
    cells
      .map((cell, index) => pad(cell, columns[index]!.widest, columns[index]!.side))
      .join(' '.repeat(gap))
      .trimEnd()
  for (const gap of COLUMN_GAPS) {
    const lines = [heads, ...rows].map(cells => line(cells, gap))
    if (lines.every(text => displayWidth(text) <= width)) return lines.join('\n')
  }
  const gap = COLUMN_GAPS.at(-1)!
  const before = columns.slice(0, -1).reduce((sum, { widest }) => sum + widest + gap, 0)
  const last = columns.at(-1)!
  const room = width - before
  const words = rows.flatMap(row => row.at(-1)!.split(' '))
  const fits = words.every(word => displayWidth(word) <= room)
  if (room >= Math.min(MIN_LAST_COLUMN, last.widest) && fits && last.side === 'right') {
    return [heads, ...rows].map(cells => wrapLine(line(cells, gap), width, before)).join('\n')
  }
  return rows.map(row => formatRow(heads, row, width)).join('\n') || heads.join(' ')
}

/** Formats a table row as a paragraph: its first cell, then the others with their titles. */
function formatRow(heads: readonly string[], [name, ...cells]: string[], width: number): string {
  const lines = [name!]
  for (const [index, cell] of cells.entries()) {
    if (cell === '') continue
    const pair = `${heads[index + 1]} ${cell}`
    const longer = `${lines.at(-1)}   ${pair}`
    if (lines.length > 1 && displayWidth(longer) <= width) lines[lines.length - 1] = longer
    else lines.push(`  ${pair}`)
  }
  return lines.map(line => wrapLine(line, width, 4)).join('\n')
}

/** Formats names and values, one pair per line. Pairs without a value are left out. */
export function formatPairs(pairs: [name: string, value: string | undefined][], indent = '  '): string {
  const shown = pairs.filter(([, value]) => value !== undefined)
  const width = Math.max(...shown.map(([name]) => displayWidth(name)))
  return shown.map(([name, value]) => `${indent}${pad(name, width)}  ${value}`).join('\n')
}

/** Prints the result of a command as names and values. */
export function printPairs(pairs: [name: string, value: string | undefined][]): void {
  printText(formatPairs(pairs, ''))
}

/** Continuation lines are indented by this much more if they do not fit below their column. */
const MIN_HANGING = 4

/**
 * Wraps lines at blanks. Continuation lines align with the text, or its second column, or further left if that keeps a
 * word whole.
 * @param width columns (default: those of the terminal)
 * @param usual indentation after a line that starts at the left edge
 */
export function wrapLines(text: string, width = outputWidth(), usual = 0): string {
  if (width === Number.POSITIVE_INFINITY) return text
  return text
    .split('\n')
    .map(line => {
      const plain = withoutColours(line)
      const column = displayWidth(/^ *\S+(?: \S+)*? {2,}(?=\S)/.exec(plain)?.[0] ?? '')
      // Also below the text after a bullet.
      const indent = /^ *(?:[^\w\s"'(<[`/-] )?/.exec(plain)![0].length
      if (column === 0) return wrapLine(line, width, indent || usual)
      return wrapLine(line, width, column <= width / 2 ? column : indent + MIN_HANGING)
    })
    .join('\n')
}

/** @param hanging indentation of continuation lines */
function wrapLine(text: string, width: number, hanging: number): string {
  if (displayWidth(text) <= width) return text
  const lines: string[] = []
  let line = ''
  // A command at the end stays on one line if possible, so that it can be copied.
  const command = /(?<=: )corral [^"]+$/.exec(text)?.[0] ?? ''
  const isWhole = command !== '' && displayWidth(command) <= width - hanging
  // Blanks stay before their word, because they may align it.
  const words: string[] = (isWhole ? text.slice(0, -command.length) : text).match(/ *[^ ]+/g) ?? []
  if (isWhole) words.push(` ${command}`)
  for (const word of words) {
    const needed = displayWidth(word.trimStart())
    const left = needed <= width - hanging ? hanging : Math.min(hanging, MIN_HANGING)
    const isAlone = displayWidth(line) <= hanging
    // A name keeps its value beside it if the value must be broken anyway.
    const isBroken = needed > width - left
    if (line.trim() !== '' && displayWidth(line + word) > width && !(isAlone && isBroken)) {
      lines.push(line)
      line = ' '.repeat(left) + word.trimStart()
    } else line += word
  }
  return [...lines, line].join('\n')
}

const UNITS = [
  ['year', 365 * 86_400],
  ['month', 30 * 86_400],
  ['week', 7 * 86_400],
  ['day', 86_400],
  ['hour', 3600],
  ['minute', 60],
  ['second', 1]
] as const

/** `/api/ps` reports the year 2999 for a model that is never unloaded. */
const FOREVER_YEAR = 2999

/** Formats an ISO 8601 time relative to now: `3 minutes ago`, `in 4 minutes`, `now`, `forever`. */
export function relativeTime(moment: string, now: Date): string {
  const date = new Date(moment)
  if (Number.isNaN(date.getTime())) return moment
  if (date.getUTCFullYear() >= FOREVER_YEAR) return 'forever'
  const seconds = Math.round((date.getTime() - now.getTime()) / 1000)
  const unit = UNITS.find(([, length]) => Math.abs(seconds) >= length)
  if (!unit) return 'now'
  const count = Math.floor(Math.abs(seconds) / unit[1])
  const text = `${count} ${unit[0]}${count === 1 ? '' : 's'}`
  return seconds < 0 ? `${text} ago` : `in ${text}`
}
