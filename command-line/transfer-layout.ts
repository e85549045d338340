import { formatBytes } from '../core/system/bytes.ts'
import { formatTimeLeft } from './transfer-speed.ts'
import type { Transfer, Transfers } from './transfers.ts'

export interface ScreenSize {
  columns: number
  rows: number
}

/** What a display shows beside the transfers themselves. */
export interface Shown {
  /** `parts` are counted, but say nothing to people: only their share is shown. */
  unit: 'bytes' | 'parts'
  /** What is done once all is moved, such as `storing`; it stands where the speed stood. */
  status?: string
}

const MOST_LINES = 12
/** Longer lines are no easier to read. */
const MOST_COLUMNS = 110
const PERCENT_WIDTH = 4
const AMOUNT_WIDTH = 15
/** The longest that speed and time left get: `999 MB/s  59 min 59 s left`. */
const PACE_WIDTH = 26
const GAP = 2
const BAR = { least: 8, most: 30 }

/**
 * Bars for a terminal: one a file and one in total, with speed and time left. Of more files than fit, those that move
 * are shown, and how many are done. No line is as wide as the terminal.
 */
export function transferLines(transfers: Transfers, shown: Shown, size: ScreenSize, now: number): string[] {
  const { items } = transfers
  const width = Math.min(size.columns - 1, MOST_COLUMNS)
  const most = Math.max(3, Math.min(size.rows - 1, MOST_LINES))
  const pace = shown.status ?? paceText(transfers, shown.unit, '  ', now)
  if (items.length === 1) {
    const single = columnsFor(items, shown.unit, width - GAP - PACE_WIDTH)
    const line = single.bar > 0 ? transferLine(items[0]!, single) : undefined
    if (line) return [cut(`${line}  ${pace}`.trimEnd(), width)]
    return [transferLine(items[0]!, columnsFor(items, shown.unit, width)), pace]
      .filter(text => text !== '')
      .map(text => cut(text, width))
  }
  const all = items.length < most
  const visible = all ? items : moving(items, most - 2)
  const done = items.filter(({ completed, total }) => completed >= total).length
  const last = { name: pace || 'total', completed: transfers.completed, total: transfers.total }
  // Its width must not change with the speed: all bars would jump.
  const columns = columnsFor([...visible, { name: last.name.padEnd(PACE_WIDTH) }], shown.unit, width)
  return [
    ...visible.map(item => transferLine(item, columns)),
    ...(all ? [] : [`${done} of ${items.length} files done`]),
    transferLine(last, columns)
  ].map(text => cut(text, width))
}

/** One line for a log: `45%, 288 MB of 639 MB, 45 MB/s, 8 s left`. */
export function transferText(transfers: Transfers, { unit, status }: Shown, now: number): string {
  const { completed, total } = transfers
  return [
    percentOf(completed, total),
    unit === 'bytes' ? `${formatBytes(completed)} of ${formatBytes(total)}` : '',
    status ?? paceText(transfers, unit, ', ', now)
  ]
    .filter(text => text !== '')
    .join(', ')
}

/** Whole percent, and 100 only when nothing is missing; nothing where the end is not known. */
export function percentOf(completed: number, total: number): string {
  if (total <= 0) return completed > 0 ? '' : '100%'
  return `${Math.min(100, Math.floor((completed / total) * 100))}%`
}

/** Text shortened in its middle: where parts of a model are numbered, its end tells them apart. */
export function shorten(text: string, width: number): string {
  if (text.length <= width) return text
  if (width < 2) return text.slice(0, Math.max(0, width))
  const tail = Math.ceil(((width - 1) * 2) / 3)
  return `${text.slice(0, width - 1 - tail)}…${text.slice(text.length - tail)}`
}

function paceText(transfers: Transfers, unit: Shown['unit'], separator: string, now: number): string {
  const remaining = transfers.total - transfers.completed
  const speed = transfers.speed(now)
  if (speed === undefined || remaining <= 0) return ''
  if (speed === 0) return unit === 'bytes' ? 'nothing arrives at the moment' : ''
  const left = formatTimeLeft(remaining, speed)
  const pace = unit === 'bytes' ? [`${formatBytes(Math.round(speed))}/s`] : []
  return [...pace, `${left} left`].join(separator)
}

/** The unfinished ones that moved last, in the order in which they appeared. */
function moving(items: Transfer[], most: number): Transfer[] {
  const chosen = new Set(
    items
      .filter(({ completed, total, movedAt }) => completed < total && movedAt > 0)
      .toSorted((a, b) => b.movedAt - a.movedAt)
      .slice(0, most)
  )
  return items.filter(item => chosen.has(item))
}

interface Columns {
  name: number
  /** 0 where there is no room for one. */
  bar: number
  amount: boolean
}

function columnsFor(items: Pick<Transfer, 'name'>[], unit: Shown['unit'], width: number): Columns {
  const longest = Math.max(...items.map(({ name }) => name.length))
  const bytes = unit === 'bytes' ? GAP + AMOUNT_WIDTH : 0
  const room = width - GAP - PERCENT_WIDTH - bytes
  const least = Math.min(longest, 20)
  if (room - GAP - BAR.least >= least) {
    const name = Math.min(longest, room - GAP - BAR.least)
    return { name, bar: Math.min(BAR.most, room - GAP - name), amount: unit === 'bytes' }
  }
  const amount = unit === 'bytes' && room >= Math.min(longest, 10)
  return { name: Math.max(1, Math.min(longest, amount ? room : width - GAP - PERCENT_WIDTH)), bar: 0, amount }
}

function transferLine({ name, completed, total }: Omit<Transfer, 'movedAt'>, columns: Columns): string {
  const full = total > 0 ? Math.min(columns.bar, Math.floor((completed / total) * columns.bar)) : columns.bar
  return [
    shorten(name, columns.name).padEnd(columns.name),
    ...(columns.bar > 0 ? ['█'.repeat(full) + '░'.repeat(columns.bar - full)] : []),
    percentOf(completed, total).padStart(PERCENT_WIDTH),
    ...(columns.amount ? [`${formatBytes(completed).padStart(6)} / ${formatBytes(total).padStart(6)}`] : [])
  ].join('  ')
}

function cut(text: string, width: number): string {
  return text.slice(0, Math.max(1, width))
}
