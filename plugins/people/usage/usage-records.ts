import { readFileSync } from 'node:fs'
import { appendFile, mkdir, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import writeFileAtomic from 'write-file-atomic'
import { errorMessage, whenMissing } from '../../../core/errors.ts'
import { namesIn } from '../../../core/system/folder-names.ts'

export interface Taken {
  requests: number
  /** Input tokens, including cached ones. */
  tokens_in: number
  tokens_cached: number
  tokens_out: number
}

export interface Account {
  readonly owner: string
  readonly name: string
}

export interface UsageRow extends Account, Taken {
  readonly model: string
}

interface DayRecords {
  readonly date: string
  readonly totals: Sums
  /** The part that is not in the file yet. */
  unsaved: Sums
  /** Bytes appended since the file was last rewritten. */
  appended: number
}

const DAY = 86_400_000
/** How long usage is collected before it is written, in milliseconds. A kill loses this much. */
const BATCH_DELAY = 100
/** Bytes appended before the file is rewritten with one line for each account and model. */
const MAX_APPENDED = 4 * 1024 * 1024
const FILE = /^(\d{4}-\d\d-\d\d)\.jsonl$/
const MODE = { encoding: 'utf8', mode: 0o600 } as const

export const taken = (some: Partial<Taken> = {}): Taken => ({
  requests: 0,
  tokens_in: 0,
  tokens_cached: 0,
  tokens_out: 0,
  ...some
})

export function addTo(sum: Taken, more: Taken): Taken {
  sum.requests += more.requests
  sum.tokens_in += more.tokens_in
  sum.tokens_cached += more.tokens_cached
  sum.tokens_out += more.tokens_out
  return sum
}

class Sums {
  readonly #accounts = new Map<string, { total: Taken; models: Map<string, UsageRow> }>()

  add({ owner, name }: Account, model: string, more: Taken): void {
    const account = this.#accounts.get(owner) ?? { total: taken(), models: new Map<string, UsageRow>() }
    const row = account.models.get(model) ?? { owner, name, model, ...taken() }
    this.#accounts.set(owner, account)
    account.models.set(model, row)
    addTo(row, more)
    addTo(account.total, more)
  }

  /** Returns what an account used of one model, or of all. */
  get(owner: string, model?: string): Readonly<Taken> {
    const account = this.#accounts.get(owner)
    return (model === undefined ? account?.total : account?.models.get(model)) ?? NOTHING
  }

  /** The rows with usage. Refused requests are counted and then subtracted, which adds up to nothing. */
  *rows(): Generator<UsageRow> {
    for (const { models } of this.#accounts.values()) {
      for (const row of models.values())
        if (row.requests !== 0 || row.tokens_in !== 0 || row.tokens_out !== 0) yield row
    }
  }
}

const NOTHING: Readonly<Taken> = Object.freeze(taken())

/** The day (UTC) of a time in milliseconds since the epoch. */
export const dateOf = (time: number) => new Date(time).toISOString().slice(0, 10)

/**
 * Records the usage of each model by each account and day. There is one file for each day. Each line is a list of rows,
 * and rows of the same account and model are added up. Lines are appended as usage happens, and lines truncated by a
 * crash are skipped. After the day, and when it has grown, a file is atomically rewritten with the sums alone.
 */
export class UsageRecords {
  readonly #folder: string
  readonly #keepDays: () => number
  readonly #log: Pick<FastifyBaseLogger, 'error' | 'warn' | 'info'>
  /** Days in memory: today, and earlier days until they are written. */
  readonly #days = new Map<string, DayRecords>()
  #today: DayRecords
  /** Start of today in milliseconds since the epoch. */
  #began = Number.NaN
  #timer: NodeJS.Timeout | undefined
  /** Writes run one at a time, and so do reads of past days. */
  #writing: Promise<void> = Promise.resolve()
  #reading: Promise<void> = Promise.resolve()
  #fault = ''

  /** @param keepDays number of days to keep, including today @throws if today's file cannot be read */
  constructor(folder: string, keepDays: () => number, log: Pick<FastifyBaseLogger, 'error' | 'warn' | 'info'>) {
    this.#folder = folder
    this.#keepDays = keepDays
    this.#log = log
    this.#today = this.#open(Date.now())
  }

  add(account: Account, model: string, more: Taken): void {
    const { totals, unsaved } = this.#now()
    totals.add(account, model, more)
    unsaved.add(account, model, more)
    this.#timer ??= setTimeout(() => void this.flush(), BATCH_DELAY).unref()
  }

  today(owner: string, model?: string): Readonly<Taken> {
    return this.#now().totals.get(owner, model)
  }

  untilTomorrow(): number {
    this.#now()
    return this.#began + DAY - Date.now()
  }

  /** Calls `each` with all rows since a date (such as 2030-12-31), day by day, including today. */
  async read(since: string, each: (date: string, row: UsageRow) => void): Promise<void> {
    const reading = this.#reading.then(async () => {
      const today = this.#now()
      const dates = new Set([...(await this.#dates()), ...this.#days.keys()].filter(date => date >= since))
      for (const date of [...dates].sort()) {
        // Memory is more up to date than the file.
        const day = date === today.date ? today : (this.#days.get(date) ?? this.#parse(date, await this.#text(date)))
        for (const row of day.totals.rows()) each(date, row)
      }
    })
    this.#reading = reading.catch(() => {})
    await reading
  }

  async flush(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    for (const day of this.#days.values()) this.#save(day)
    await this.#writing
  }

  async close(): Promise<void> {
    await this.flush()
    clearTimeout(this.#timer)
  }

  async forget(): Promise<void> {
    const oldest = dateOf(this.#began - (this.#keepDays() - 1) * DAY)
    for (const date of await this.#dates()) {
      if (date < oldest && !this.#days.has(date)) await rm(this.#path(date), { force: true })
    }
  }

  #now(): DayRecords {
    const now = Date.now()
    // Clocks may go back.
    if (now >= this.#began && now < this.#began + DAY) return this.#today
    const before = this.#today
    this.#today = this.#open(now)
    this.#save(before, true)
    this.#writing = this.#writing.then(() => this.forget().catch(error => this.#complain(error)))
    return this.#today
  }

  #open(now: number): DayRecords {
    this.#began = Math.floor(now / DAY) * DAY
    const date = dateOf(now)
    const known = this.#days.get(date)
    if (known) return known
    let text = ''
    try {
      // Synchronous: daily budgets must apply to the next request.
      text = readFileSync(this.#path(date), 'utf8')
    } catch (error) {
      whenMissing(error)
    }
    const day = this.#parse(date, text)
    this.#days.set(date, day)
    return day
  }

  #parse(date: string, text: string): DayRecords {
    const day: DayRecords = { date, totals: new Sums(), unsaved: new Sums(), appended: Buffer.byteLength(text) }
    let torn = 0
    for (const line of text.split('\n')) {
      if (line === '') continue
      try {
        for (const row of JSON.parse(line) as UsageRow[]) day.totals.add(row, row.model, taken(row))
      } catch {
        torn++
      }
    }
    if (torn > 0) this.#log.info({ date, lines: torn }, 'Usage lines that were truncated by a crash were skipped.')
    return day
  }

  #save(day: DayRecords, whole = false): void {
    this.#writing = this.#writing.then(async () => {
      const batch = [...day.unsaved.rows()]
      if (batch.length === 0 && !whole) return
      day.unsaved = new Sums()
      try {
        if (whole || day.appended > MAX_APPENDED) await this.#writeWhole(day)
        else await this.#append(day, batch)
        if (this.#fault) this.#log.info('Usage can be written again.')
        this.#fault = ''
        if (day !== this.#today && day.unsaved.rows().next().done) this.#days.delete(day.date)
      } catch (error) {
        for (const row of batch) day.unsaved.add(row, row.model, row)
        this.#complain(error)
        this.#timer ??= setTimeout(() => void this.flush(), 10 * BATCH_DELAY).unref()
      }
    })
  }

  async #append(day: DayRecords, batch: readonly UsageRow[]): Promise<void> {
    // Starts with a line break, to end a truncated line.
    const text = `\n${JSON.stringify(batch.map(shortRow))}`
    await mkdir(this.#folder, { recursive: true, mode: 0o700 })
    await appendFile(this.#path(day.date), text, MODE)
    day.appended += Buffer.byteLength(text)
  }

  async #writeWhole(day: DayRecords): Promise<void> {
    const rows = [...day.totals.rows()]
    if (rows.length === 0) return
    await mkdir(this.#folder, { recursive: true, mode: 0o700 })
    await writeFileAtomic(this.#path(day.date), rows.map(row => `${JSON.stringify([shortRow(row)])}\n`).join(''), MODE)
    day.appended = 0
  }

  #complain(error: unknown): void {
    if (this.#fault === errorMessage(error)) return
    this.#fault = errorMessage(error)
    this.#log.error(
      `Usage cannot be written to ${this.#folder}: ${this.#fault}. It will be tried again. Usage that is still unwritten when the server stops is lost.`
    )
  }

  async #dates(): Promise<string[]> {
    return (await namesIn(this.#folder)).flatMap(name => FILE.exec(name)?.[1] ?? [])
  }

  /** Reads a past day. Its file may have been deleted because of its age. */
  async #text(date: string): Promise<string> {
    return (await readFile(this.#path(date), 'utf8').catch(whenMissing)) ?? ''
  }

  #path(date: string): string {
    return join(this.#folder, `${date}.jsonl`)
  }
}

function shortRow(row: UsageRow): Partial<UsageRow> {
  return Object.fromEntries(Object.entries(row).filter(([, value]) => value !== 0))
}
