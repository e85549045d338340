import type { PoolRecord, RunningRecord, WorkStep } from '../core/contracts/native-records.ts'
import { formatBytes } from '../core/system/bytes.ts'
import { formatDuration } from '../core/system/duration.ts'
import { failure } from './command-failure.ts'
import { displayWidth, eraseLines, pad, shorten } from './display-width.ts'
import type { ServerClient } from './server-client.ts'

/** A file, or a step of other work. */
interface Transfer {
  name: string
  completed: number
  total: number
}

/** Amount moved at a point in time (epoch milliseconds). */
type Sample = Record<'at' | 'moved', number>

/** The speed is averaged over this time, and undefined for shorter observations than the minimum. */
const SPEED_WINDOW_MS = 10_000
const MIN_OBSERVATION_MS = 1000

/** The state of all transfers of a command. Times are epoch milliseconds. */
export class Transfers {
  readonly #items = new Map<string, Transfer>()
  /** Total announced by the server. Files appear one by one. */
  readonly #expected: number
  #samples: Sample[] = []
  #moved = 0

  constructor(expected = 0) {
    this.#expected = expected
  }

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

  /** @param key identifies the item; the displayed `name` may change */
  update(key: string, completed: number, total: number, now: number, name = key): void {
    const before = this.#items.get(key)
    // The first amount of a file was moved earlier, and bytes fetched again were already counted.
    const gain = Math.max(0, completed - (before?.completed ?? completed))
    this.#items.set(key, { name, completed, total })
    this.#moved += gain
    this.#samples.push({ at: now, moved: this.#moved })
    const old = this.#samples.findLastIndex(({ at }) => at <= now - SPEED_WINDOW_MS)
    if (old > 0) this.#samples = this.#samples.slice(old)
  }

  /** Starts over with another kind of work. */
  reset(): void {
    this.#items.clear()
    this.#samples = []
    this.#moved = 0
  }

  speed(now: number): number | undefined {
    return measureSpeed(this.#samples, now)
  }
}

/** Units per second over the last ten seconds before `now`. @param samples in order of time, starting with the first */
export function measureSpeed(samples: readonly Sample[], now: number): number | undefined {
  const begin = now - SPEED_WINDOW_MS
  const from = samples.findLast(({ at }) => at <= begin) ?? samples[0]
  if (!from) return undefined
  const elapsed = now - Math.max(from.at, begin)
  return elapsed < MIN_OBSERVATION_MS ? undefined : ((samples.at(-1)!.moved - from.moved) / elapsed) * 1000
}

/** Formats the time left, such as `8 s`, `3 min 5 s`, `2 h 10 min` or `4 days`. Undefined without progress. */
export function formatTimeLeft(remaining: number, speed: number | undefined): string | undefined {
  if (!speed) return undefined
  const seconds = Math.ceil(remaining / speed)
  if (seconds < 60) return `${seconds} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`
  if (seconds < 2 * 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`
  return `${Math.round(seconds / 86_400)} days`
}

/** The memory of a pool in the words of docs/memory.md: `host: 1.2 GB reserved, 8 GB free, 7 GB used of 16 GB`. */
export function formatPool({ pool, reserved, free, used, total }: PoolRecord): string {
  const facts = [
    `${formatBytes(reserved)} reserved`,
    free !== undefined && `${formatBytes(free)} free`,
    used !== undefined && total !== undefined && `${formatBytes(used)} used of ${formatBytes(total)}`
  ]
  return `${pool}: ${facts.filter(Boolean).join(', ')}`
}

/** Formats the share of prompts whose conversation was in a slot or restored; empty before the first prompt. */
export function formatHits(cache: RunningRecord['prompt_cache']): string {
  const prompts = (cache?.hits ?? 0) + (cache?.misses ?? 0)
  return prompts === 0 ? '' : formatPercent(cache!.hits, prompts)
}

/** Whole percent, 100 only when complete. Empty while the total is unknown. */
export function formatPercent(completed: number, total: number): string {
  if (total <= 0) return completed > 0 ? '' : '100%'
  return `${Math.min(100, Math.floor((completed / total) * 100))}%`
}

export type Progress = Awaited<ReturnType<typeof showProgress>>
type Unit = 'bytes' | 'parts'

export interface ProgressOptions {
  /** Output when standard error is not a terminal: a line every few seconds, or nothing. */
  plain?: 'lines' | 'nothing'
  /** Delays the first plain line by a second, so that work that fails early prints none. */
  patient?: boolean
  /** Prefix of plain lines with amounts. */
  subject?: string
  /** `parts` have no meaning for users, so only the percentage is shown. */
  unit?: Unit
  expected?: number | undefined
}

export type ScreenSize = Record<'columns' | 'rows', number>

const REFRESH_MS = 100
const PLAIN_INTERVAL_MS = 5000
const SPINNER = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏']

/** A spinner with a text and its duration: `⠹ building (12 s)`. @param elapsed milliseconds */
export function spinnerText(text: string, elapsed: number): string {
  const time = elapsed < 2000 ? '' : ` (${formatDuration(elapsed)})`
  return `${SPINNER[Math.floor(elapsed / REFRESH_MS) % SPINNER.length]} ${text}${time}`
}

/** Shows a spinner and then bars on a terminal, or plain lines elsewhere. */
export async function showProgress(first: string, options: ProgressOptions = {}) {
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
    /** Sets the current activity. It is shown alone until there are amounts, then instead of the speed. */
    status(text: string) {
      status = text
    },
    /** As `Transfers.update`. Replaces the status. */
    update(key: string, completed: number, total: number, name?: string) {
      status = undefined
      transfers.update(key, completed, total, performance.now(), name)
    },
    clear() {
      stop()
      stop = () => {}
    }
  }
}

/** Redraws lines at the end of the terminal until the returned function removes them. The lines must not wrap. */
async function drawLive(render: (size: ScreenSize, now: number) => string[]): Promise<() => void> {
  const { stderr } = process
  const { createLogUpdate } = await import('log-update')
  const update = createLogUpdate(stderr)
  let drawn: string[] = []
  const draw = () => {
    drawn = render({ columns: stderr.columns || 80, rows: stderr.rows || 24 }, performance.now())
    update(drawn.join('\n'))
  }
  // A terminal that became narrower has wrapped its lines into more rows.
  const resized = () => {
    stderr.write(eraseLines([...drawn, ''], stderr.columns || 80))
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
    if (text === written || now - last < PLAIN_INTERVAL_MS) return
    last = now
    written = text
    process.stderr.write(`${text}\n`)
  }
  if (!patient) write()
  const timer = setInterval(write, 1000)
  return () => clearInterval(timer)
}

type Shown = { unit: Unit; status?: string | undefined }

const MAX_LINES = 12
/** Longer lines are harder to read. */
const MAX_COLUMNS = 110
const PERCENT_WIDTH = 4
/** Maximum widths of amounts below 10 GB and above: `999 MB`, `12.3 GB`. */
const AMOUNT_WIDTHS = [6, 7] as const
/** Narrower lines omit the amounts. */
const MIN_COLUMNS_WITH_AMOUNT = 33
/** Maximum width of speed and time left: `999 MB/s  59 min 59 s left`. */
const PACE_WIDTH = 26
const GAP = 2
const BAR = { least: 8, most: 30 }

/** Renders a bar per file, or only the active ones, and one in total, with speed and time left, in lines that fit. */
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
  // A column that changes its width with the speed would make all bars jump.
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
  const amount = unit === 'bytes' && `${formatBytes(completed)} of ${formatBytes(total)}`
  const pace = status ?? paceText(transfers, unit, ', ', now)
  return [formatPercent(completed, total), amount, pace].filter(Boolean).join(', ')
}

function paceText(transfers: Transfers, unit: Unit, separator: string, now: number): string {
  const remaining = transfers.total - transfers.completed
  const speed = transfers.speed(now)
  if (speed === undefined || remaining <= 0) return ''
  if (speed === 0) return unit === 'bytes' ? 'no data is arriving' : ''
  const pace = unit === 'bytes' ? [`${formatBytes(Math.round(speed))}/s`] : []
  return [...pace, `${formatTimeLeft(remaining, speed)} left`].join(separator)
}

/** Widths of a name, a bar and each amount. A bar or amounts without room have the width 0. */
function columnsFor(items: Pick<Transfer, 'name' | 'total'>[], unit: Unit, width: number) {
  const longest = Math.max(...items.map(({ name }) => displayWidth(name)))
  const large = items.some(({ total }) => total >= 9.95e9)
  const amount = unit === 'bytes' && width >= MIN_COLUMNS_WITH_AMOUNT ? AMOUNT_WIDTHS[large ? 1 : 0] : 0
  const room = width - GAP - PERCENT_WIDTH - (amount > 0 ? GAP + 2 * amount + ' / '.length : 0)
  const beside = room - GAP - BAR.least
  if (beside < Math.min(longest, 20)) return { name: Math.max(1, Math.min(longest, room)), bar: 0, amount }
  const name = Math.min(longest, beside)
  return { name, bar: Math.min(BAR.most, room - GAP - name), amount }
}

function transferLine(
  { name, completed, total }: Transfer,
  { name: width, bar, amount }: ReturnType<typeof columnsFor>
) {
  const full = total > 0 ? Math.min(bar, Math.floor((completed / total) * bar)) : bar
  const [done, all] = [completed, total].map(bytes => formatBytes(bytes).padStart(amount))
  return [
    pad(shorten(name, width), width),
    ...(bar > 0 ? ['█'.repeat(full) + '░'.repeat(bar - full)] : []),
    formatPercent(completed, total).padStart(PERCENT_WIDTH),
    ...(amount > 0 ? [`${done} / ${all}`] : [])
  ].join('  ')
}

/**
 * Requests long work from the server and shows its progress. Returns the last event.
 * @param options.what name of the work in messages: `import of me/model`
 */
export async function streamWork<Result extends { status: 'success' }>(
  client: ServerClient,
  path: string,
  body: object,
  { first, what, unit = 'bytes' }: { first: string; what: string; unit?: Unit }
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
      // Each kind of work and each step counts its own units.
      const counting = `${step} ${status.split(' ')[0]}`
      if (counting !== counted) progress.transfers.reset()
      counted = counting
      progress.update('work', completed, total, label)
    }
  } finally {
    progress.clear()
  }
  throw failure(`The server ended the ${what} without a result. See its log for the reason.`)
}
