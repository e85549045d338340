import { clearScreenDown, moveCursor } from 'node:readline'
import type { WorkStep } from '../core/contracts/native-records.ts'
import { formatBytes } from '../core/system/bytes.ts'
import { formatDuration } from '../core/system/duration.ts'
import { CommandFailure, EXIT } from './command-failure.ts'
import { displayWidth, pad, shorten } from './display-width.ts'
import type { ServerClient } from './server-client.ts'

/** One file, or one step of other work. */
interface Transfer {
  name: string
  completed: number
  total: number
}

/** How much had been moved at a moment (epoch milliseconds). */
interface Sample {
  at: number
  moved: number
}

/** The speed is an average over this time: long enough to be steady, short enough to follow a slower line (milliseconds). */
const SPEED_WINDOW = 10_000
/** A shorter observation gives no speed. */
const MIN_LENGTH = 1000

/** The state of everything that one command moves. Times are epoch milliseconds. */
export class Transfers {
  readonly #items = new Map<string, Transfer>()
  /** The total that the server announced; files appear one by one. */
  readonly #expected: number
  #samples: Sample[] = []
  #moved = 0

  constructor(expected = 0) {
    this.#expected = expected
  }

  /** In the order they appeared. */
  get items(): Transfer[] {
    return [...this.#items.values()]
  }

  get completed(): number {
    return this.items.reduce((sum, { completed }) => sum + completed, 0)
  }

  get total(): number {
    const known = this.items.reduce((sum, { total }) => sum + total, 0)
    return Math.max(this.#expected, known)
  }

  /** @param key identifies the item; `name` is displayed, and may change */
  update(key: string, completed: number, total: number, now: number, name = key): void {
    const before = this.#items.get(key)
    // What a file has when it first appears was moved earlier, and what is fetched again was counted already.
    const gain = Math.max(0, completed - (before?.completed ?? completed))
    this.#items.set(key, { name, completed, total })
    this.#moved += gain
    this.#samples.push({ at: now, moved: this.#moved })
    const old = this.#samples.findLastIndex(({ at }) => at <= now - SPEED_WINDOW)
    if (old > 0) this.#samples = this.#samples.slice(old)
  }

  /** Starts over: from now on something else is counted. */
  reset(): void {
    this.#items.clear()
    this.#samples = []
    this.#moved = 0
  }

  speed(now: number): number | undefined {
    return speedOf(this.#samples, now)
  }
}

/**
 * Units per second over the last ten seconds before `now`; undefined after too short an observation.
 * @param samples in order of time; the first is where the counting began
 */
export function speedOf(samples: readonly Sample[], now: number): number | undefined {
  const begin = now - SPEED_WINDOW
  const from = samples.findLast(({ at }) => at <= begin) ?? samples[0]
  if (!from) return undefined
  const elapsed = now - Math.max(from.at, begin)
  return elapsed < MIN_LENGTH ? undefined : ((samples.at(-1)!.moved - from.moved) / elapsed) * 1000
}

/** Text such as `8 s`, `3 min 5 s`, `2 h 10 min` or `4 days`; undefined while nothing moves. */
export function formatTimeLeft(remaining: number, speed: number | undefined): string | undefined {
  if (!speed) return undefined
  const seconds = Math.ceil(remaining / speed)
  if (seconds < 60) return `${seconds} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`
  if (seconds < 2 * 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`
  return `${Math.round(seconds / 86_400)} days`
}

/** Whole percent, 100 only when nothing is missing; empty while the total is unknown. */
export function percentOf(completed: number, total: number): string {
  if (total <= 0) return completed > 0 ? '' : '100%'
  return `${Math.min(100, Math.floor((completed / total) * 100))}%`
}

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
  /** Whether the first plain line waits for a second, so that work which fails at once leaves no line. */
  patient?: boolean
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

/** What turns beside a text, and how long it has done so: `⠹ building (12 s)`. @param elapsed milliseconds */
export function spinnerText(text: string, elapsed: number): string {
  const time = elapsed < 2000 ? '' : ` (${formatDuration(elapsed)})`
  return `${SPINNER[Math.floor(elapsed / REFRESH_MS) % SPINNER.length]} ${text}${time}`
}

/** Shows a spinner until there is something to count, then bars; without a terminal, plain lines now and then. */
export async function showProgress(first: string, options: ProgressOptions = {}): Promise<Progress> {
  const { plain = 'lines', patient = false, subject = '', unit = 'bytes', expected } = options
  const transfers = new Transfers(expected)
  const began = performance.now()
  let status: string | undefined = first
  const counting = () => transfers.items.length > 0
  const spinner = (now: number) => spinnerText(status ?? '', now - began)
  const bars = (size: ScreenSize, now: number) =>
    counting() ? transferLines(transfers, { unit, status }, size, now) : [spinner(now).slice(0, size.columns - 1)]
  const line = (now: number) =>
    counting() ? `${subject}: ${transferText(transfers, { unit, status }, now)}` : (status ?? '')
  let stop = () => {}
  if (process.stderr.isTTY) stop = await drawLive(bars)
  else if (plain === 'lines') stop = writeNowAndThen(line, patient)
  return {
    transfers,
    status(text) {
      status = text
    },
    update(key, completed, total, name) {
      status = undefined
      transfers.update(key, completed, total, performance.now(), name)
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
    drawn = render({ columns: stderr.columns || 80, rows: stderr.rows || 24 }, performance.now())
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

function writeNowAndThen(line: (now: number) => string, patient: boolean): () => void {
  let last = Number.NEGATIVE_INFINITY
  let written = ''
  const write = () => {
    const now = performance.now()
    const text = line(now)
    if (text === written || now - last < PLAIN_MS) return
    last = now
    written = text
    process.stderr.write(`${text}\n`)
  }
  if (!patient) write()
  const timer = setInterval(write, 1000)
  return () => clearInterval(timer)
}

/** What is shown beside the transfers themselves. */
interface Shown {
  unit: 'bytes' | 'parts'
  status?: string | undefined
}

const MAX_LINES = 12
/** Longer lines are no easier to read. */
const MAX_COLUMNS = 110
const PERCENT_WIDTH = 4
/** The widest amounts of files below 10 GB, and of larger ones: `999 MB`, `12.3 GB`. */
const AMOUNT_WIDTHS = [6, 7] as const
/** Narrower lines have no amounts. */
const MIN_WITH_AMOUNT = 33
/** The longest that speed and time left get: `999 MB/s  59 min 59 s left`. */
const PACE_WIDTH = 26
const GAP = 2
const BAR = { least: 8, most: 30 }

/**
 * Bars for a terminal: one per file and one in total, with speed and time left. When there are more files than lines,
 * those that make progress are shown, and how many are done. Every line is narrower than the terminal.
 */
export function transferLines(transfers: Transfers, { unit, status }: Shown, size: ScreenSize, now: number): string[] {
  const { items, completed, total } = transfers
  const width = Math.min(size.columns - 1, MAX_COLUMNS)
  const most = Math.max(3, Math.min(size.rows - 1, MAX_LINES))
  const pace = status ?? paceText(transfers, unit, '  ', now)
  const cut = (lines: string[]) => lines.map(line => line.slice(0, Math.max(1, width)))
  if (items.length === 1) {
    const beside = columnsFor(items, unit, width - GAP - PACE_WIDTH)
    if (beside.bar > 0) return cut([`${transferLine(items[0]!, beside)}  ${pace}`.trimEnd()])
    return cut([transferLine(items[0]!, columnsFor(items, unit, width)), pace].filter(line => line !== ''))
  }
  const all = items.length < most
  const moving = items.filter(item => item.completed > 0 && item.completed < item.total)
  const visible = all ? items : moving.slice(0, most - 2)
  const done = items.filter(item => item.completed >= item.total).length
  // The column's width must not change with the speed, or all bars would jump.
  const columns = columnsFor([...visible, { name: ''.padEnd(PACE_WIDTH), total }], unit, width)
  return cut([
    ...visible.map(item => transferLine(item, columns)),
    ...(all ? [] : [`${done} of ${items.length} files done`]),
    transferLine({ name: pace || 'total', completed, total }, columns)
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

function paceText(transfers: Transfers, unit: Shown['unit'], separator: string, now: number): string {
  const remaining = transfers.total - transfers.completed
  const speed = transfers.speed(now)
  if (speed === undefined || remaining <= 0) return ''
  if (speed === 0) return unit === 'bytes' ? 'no data is arriving' : ''
  const pace = unit === 'bytes' ? [`${formatBytes(Math.round(speed))}/s`] : []
  return [...pace, `${formatTimeLeft(remaining, speed)} left`].join(separator)
}

interface Columns {
  name: number
  /** 0 where there is no room for one. */
  bar: number
  /** Of each of the two amounts; 0 where there is no room for them. */
  amount: number
}

function columnsFor(items: Pick<Transfer, 'name' | 'total'>[], unit: Shown['unit'], width: number): Columns {
  const longest = Math.max(...items.map(({ name }) => displayWidth(name)))
  const large = items.some(({ total }) => total >= 9.95e9)
  const amount = unit === 'bytes' && width >= MIN_WITH_AMOUNT ? AMOUNT_WIDTHS[large ? 1 : 0] : 0
  const room = width - GAP - PERCENT_WIDTH - (amount > 0 ? GAP + 2 * amount + ' / '.length : 0)
  const beside = room - GAP - BAR.least
  if (beside < Math.min(longest, 20)) return { name: Math.max(1, Math.min(longest, room)), bar: 0, amount }
  const name = Math.min(longest, beside)
  return { name, bar: Math.min(BAR.most, room - GAP - name), amount }
}

function transferLine({ name, completed, total }: Transfer, columns: Columns): string {
  const full = total > 0 ? Math.min(columns.bar, Math.floor((completed / total) * columns.bar)) : columns.bar
  return [
    pad(shorten(name, columns.name), columns.name),
    ...(columns.bar > 0 ? ['█'.repeat(full) + '░'.repeat(columns.bar - full)] : []),
    percentOf(completed, total).padStart(PERCENT_WIDTH),
    ...(columns.amount > 0
      ? [`${formatBytes(completed).padStart(columns.amount)} / ${formatBytes(total).padStart(columns.amount)}`]
      : [])
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
  const progress = await showProgress(first, { subject: what, unit, patient: true })
  let counted = ''
  try {
    for await (const event of client.stream<Result | WorkStep>(path, { ...body, stream: true })) {
      if (event.status === 'success') return event as Result
      const { status, completed, total = 0, step, steps = 1 } = event as WorkStep
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
