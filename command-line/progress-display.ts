import { clearScreenDown, moveCursor } from 'node:readline'
import type { WorkStep } from '../core/contracts/native-records.ts'
import { formatBytes } from '../core/system/bytes.ts'
import { formatDuration } from '../core/system/duration.ts'
import { CommandFailure, EXIT } from './command-failure.ts'
import type { ServerClient } from './server-client.ts'
import { formatTimeLeft, percentOf, type Transfer, Transfers } from './transfer-state.ts'

/** Progress on standard error. */
export interface Progress {
  readonly transfers: Transfers
  /** What is being done: shown alone while nothing is counted, else in the place of the speed. */
  status(text: string): void
  /** As `Transfers.update`; it takes the place of the status. */
  update(key: string, completed: number, total: number, name?: string): void
  /** Removes it from the terminal. */
  clear(): void
}

export interface ProgressOptions {
  /** What is written where standard error is no terminal: a line every few seconds, or nothing. */
  plain?: 'lines' | 'nothing'
  /** Begins each plain line that has amounts. */
  subject?: string
  /** `parts` are counted, but mean nothing to people: only their percentage is shown. */
  unit?: 'bytes' | 'parts'
  /** The total, as far as it is known beforehand. */
  expected?: number | undefined
}

export interface ScreenSize {
  columns: number
  rows: number
}

const REFRESH_MS = 100
const PLAIN_MS = 5000
const SPINNER = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏']

/** Shows a spinner until there is something to count, then bars; without a terminal, plain lines now and then. */
export async function showProgress(first: string, options: ProgressOptions = {}): Promise<Progress> {
  const { plain = 'lines', subject = '', unit = 'bytes', expected } = options
  const transfers = new Transfers(expected)
  const began = Date.now()
  let status: string | undefined = first
  const counting = () => transfers.items.length > 0
  const spinner = (now: number) => {
    const time = now - began < 2000 ? '' : ` (${formatDuration(now - began)})`
    return `${SPINNER[Math.floor((now - began) / REFRESH_MS) % SPINNER.length]} ${status ?? ''}${time}`
  }
  const bars = (size: ScreenSize, now: number) =>
    counting() ? transferLines(transfers, { unit, status }, size, now) : [spinner(now).slice(0, size.columns - 1)]
  const line = (now: number) =>
    counting() ? `${subject}: ${transferText(transfers, { unit, status }, now)}` : (status ?? '')
  let stop = () => {}
  if (process.stderr.isTTY) stop = await drawLive(bars)
  else if (plain === 'lines') stop = writeNowAndThen(line)
  return {
    transfers,
    status(text) {
      status = text
    },
    update(key, completed, total, name) {
      status = undefined
      transfers.update(key, completed, total, Date.now(), name)
    },
    clear() {
      stop()
      stop = () => {}
    }
  }
}

/** Redraws lines at the end of the terminal until the returned function removes them. They must not wrap. */
async function drawLive(render: (size: ScreenSize, now: number) => string[]): Promise<() => void> {
  const { stderr } = process
  const { createLogUpdate } = await import('log-update')
  const update = createLogUpdate(stderr)
  let drawn: string[] = []
  const draw = () => {
    drawn = render({ columns: stderr.columns || 80, rows: stderr.rows || 24 }, Date.now())
    update(drawn.join('\n'))
  }
  // A terminal that became narrower has wrapped what it shows: that takes more rows now than lines were written.
  const resized = () => {
    const rows = drawn.reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / (stderr.columns || 80))), 0)
    moveCursor(stderr, 0, -rows)
    clearScreenDown(stderr)
    update.done()
    draw()
  }
  draw()
  const timer = setInterval(draw, REFRESH_MS)
  stderr.on('resize', resized)
  return () => {
    clearInterval(timer)
    stderr.off('resize', resized)
    update.clear()
    update.done()
  }
}

function writeNowAndThen(line: (now: number) => string): () => void {
  let last = 0
  let written = ''
  const write = () => {
    const now = Date.now()
    const text = line(now)
    if (text === written || now - last < PLAIN_MS) return
    last = now
    written = text
    process.stderr.write(`${text}\n`)
  }
  write()
  const timer = setInterval(write, 1000)
  return () => clearInterval(timer)
}

/** What is shown beside the transfers themselves. */
interface Shown {
  unit: 'bytes' | 'parts'
  status?: string | undefined
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
 * Bars for a terminal: one per file and one in total, with speed and time left. When there are more files than lines,
 * those that make progress are shown, and how many are done. Every line is narrower than the terminal.
 */
export function transferLines(transfers: Transfers, shown: Shown, size: ScreenSize, now: number): string[] {
  const { items } = transfers
  const width = Math.min(size.columns - 1, MOST_COLUMNS)
  const most = Math.max(3, Math.min(size.rows - 1, MOST_LINES))
  const pace = shown.status ?? paceText(transfers, shown.unit, '  ', now)
  const cut = (lines: string[]) => lines.map(line => line.slice(0, Math.max(1, width)))
  if (items.length === 1) {
    const beside = columnsFor(items, shown.unit, width - GAP - PACE_WIDTH)
    if (beside.bar > 0) return cut([`${transferLine(items[0]!, beside)}  ${pace}`.trimEnd()])
    return cut([transferLine(items[0]!, columnsFor(items, shown.unit, width)), pace].filter(line => line !== ''))
  }
  const all = items.length < most
  const visible = all ? items : moving(items, most - 2)
  const done = items.filter(({ completed, total }) => completed >= total).length
  const last = { name: pace || 'total', completed: transfers.completed, total: transfers.total }
  // The column's width must not change with the speed, or all bars would jump.
  const columns = columnsFor([...visible, { name: last.name.padEnd(PACE_WIDTH) }], shown.unit, width)
  return cut([
    ...visible.map(item => transferLine(item, columns)),
    ...(all ? [] : [`${done} of ${items.length} files done`]),
    transferLine(last, columns)
  ])
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

/** Shortens a text in its middle: the ends of numbered parts of a model differ. */
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
  if (speed === 0) return unit === 'bytes' ? 'no data is arriving' : ''
  const pace = unit === 'bytes' ? [`${formatBytes(Math.round(speed))}/s`] : []
  return [...pace, `${formatTimeLeft(remaining, speed)} left`].join(separator)
}

/** The unfinished ones that made progress last, in the order in which they appeared. */
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

/**
 * Requests long work from the server and shows its progress.
 * @param options.what names the work in messages: `import of me/model`
 * @returns the last event
 */
export async function streamWork<Result extends { status: 'success' }>(
  client: ServerClient,
  path: string,
  body: object,
  { first, what, unit = 'bytes' }: { first: string; what: string; unit?: Shown['unit'] }
): Promise<Result> {
  const progress = await showProgress(first, { subject: what, unit })
  let counted = ''
  try {
    for await (const event of client.stream<Result | WorkStep>(path, { ...body, stream: true })) {
      if (isResult(event)) return event
      const { status, completed, total = 0, step, steps = 1 } = event
      const label = step === undefined || steps < 2 ? status : `${status} (step ${step} of ${steps})`
      if (completed === undefined || total <= 0) {
        progress.status(label)
        continue
      }
      // Each kind of work and each step is counted in its own units.
      const counting = `${step} ${status.split(' ')[0]}`
      if (counting !== counted) progress.transfers.reset()
      counted = counting
      progress.update('work', completed, total, label)
    }
  } finally {
    progress.clear()
  }
  throw new CommandFailure(EXIT.failure, `The server ended the ${what} without a result. Its log says more.`)
}

function isResult<Result extends { status: 'success' }>(event: Result | WorkStep): event is Result {
  return event.status === 'success'
}
