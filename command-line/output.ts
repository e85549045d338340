export function printJson(value: unknown): void {
  printText(JSON.stringify(value, undefined, 2))
}

/** Writes a line to standard output. */
export function printText(text: string): void {
  process.stdout.write(`${text}\n`)
}

/** Writes a line of information to standard error. */
export function printNote(text: string): void {
  process.stderr.write(`${text}\n`)
}

/**
 * Text from outside without the control characters that could move a terminal's cursor or change its settings; line
 * breaks and tabs stay.
 */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is looked for
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, '')
}

/** Columns that help texts are written for: a line with room left for the next word ends its paragraph. */
const WRITTEN_FOR = 118

/**
 * Breaks lines at blanks where they are wider than the terminal, and fills paragraphs anew; the second column of a list
 * stays below itself.
 * @param width columns
 */
export function fitText(text: string, width: number): string {
  const fitted: string[] = []
  // What a line left over, while the next one may go on with it.
  let rest = ''
  let before = ''
  for (const line of text.split('\n')) {
    const [, indent = '', firstWord = ''] = /^( *)(\S*)/.exec(line)!
    const goesOn =
      rest !== '' &&
      line.trim() !== '' &&
      indent === /^ */.exec(before)![0] &&
      before.length + 1 + firstWord.length > WRITTEN_FOR
    if (rest !== '' && !goesOn) fitted.push(rest)
    let left = goesOn ? `${rest} ${line.trimStart()}` : line
    const column = /^ *\S.*? {2,}(?=\S)/.exec(line)?.[0].length
    const hanging = ' '.repeat(column ?? indent.length)
    rest = ''
    before = line
    const whole = left
    for (let at: number; left.length > width; left = hanging + left.slice(at + 1)) {
      at = left.lastIndexOf(' ', width)
      if (at <= hanging.length) break
      fitted.push(left.slice(0, at))
    }
    if (left !== whole && column === undefined) rest = left
    else fitted.push(left)
  }
  if (rest !== '') fitted.push(rest)
  return fitted.join('\n')
}

/** Aligned columns under their titles, without trailing blanks. Titles that begin with `>` align to the right. */
export function formatTable(titles: readonly string[], rows: string[][]): string {
  const columns = titles.map((title, index) => {
    const text = title.replace(/^>/, '')
    const width = Math.max(text.length, ...rows.map(row => row[index]!.length))
    return { text, pad: (cell: string) => (title.startsWith('>') ? cell.padStart(width) : cell.padEnd(width)) }
  })
  const line = (cells: string[]) =>
    cells
      .map((cell, index) => columns[index]!.pad(cell))
      .join('    ')
      .trimEnd()
  return [line(columns.map(({ text }) => text)), ...rows.map(line)].join('\n')
}

/** Names and values, one pair per line; pairs without a value are left out. */
export function formatPairs(pairs: [name: string, value: string | undefined][], indent = '  '): string {
  const shown = pairs.filter(([, value]) => value !== undefined)
  const width = Math.max(...shown.map(([name]) => name.length))
  return shown.map(([name, value]) => `${indent}${name.padEnd(width)}  ${value}`).join('\n')
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

/** `/api/ps` gives the year 2999 for a model that is never unloaded. */
const FOREVER_YEAR = 2999

/** A moment (ISO 8601) relative to now: `3 minutes ago`, `in 4 minutes`, `now`, `forever`. */
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
