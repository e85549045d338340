import { readFileSync } from 'node:fs'
import { type FileHandle, mkdir, open, readdir, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import writeFileAtomic from 'write-file-atomic'
import { errorMessage, isSystemError } from '../../../core/errors.ts'

/** What was taken. */
export interface Taken {
  requests: number
  /** Tokens that models read, those that they had in their caches included. */
  tokens_in: number
  /** Those of them that were in caches. */
  tokens_cached: number
  /** Tokens that models wrote. */
  tokens_out: number
}

/** Whom it is written down for. */
export interface Account {
  /** `Caller.owner`. */
  readonly owner: string
  /** What people call it. */
  readonly name: string
}

/** What one account took of one model in a day. */
export interface UsageRow extends Account, Taken {
  readonly model: string
}

interface Line {
  /** All that was taken in the day. */
  readonly row: UsageRow
  /** What of it is not in the file yet. */
  unsaved: Taken
}

interface DayBook {
  /** Such as 2030-12-31. */
  readonly date: string
  readonly accounts: Map<string, { total: Taken; models: Map<string, Line> }>
  readonly unsaved: Set<Line>
  /** Bytes that were appended since the file was last written whole. */
  appended: number
  /** Its file, once something was appended to it. */
  file?: FileHandle | undefined
}

const DAY = 86_400_000
/** How long what happens is gathered before it is written (milliseconds): what a kill can cost. */
const BATCH_DELAY = 100
/** Bytes that are appended until the file of the day is written anew, with a line for each account and model. */
const MAX_APPENDED = 4 * 1024 * 1024
const FILE = /^(\d{4}-\d\d-\d\d)\.jsonl$/
const MODE = { encoding: 'utf8', mode: 0o600 } as const

/** Nothing, or what is named. */
export const taken = (some: Partial<Taken> = {}): Taken => ({
  requests: 0,
  tokens_in: 0,
  tokens_cached: 0,
  tokens_out: 0,
  ...some
})

function addTo(sum: Taken, more: Taken): void {
  sum.requests += more.requests
  sum.tokens_in += more.tokens_in
  sum.tokens_cached += more.tokens_cached
  sum.tokens_out += more.tokens_out
}

const isSome = (some: Taken) => some.requests !== 0 || some.tokens_in !== 0 || some.tokens_out !== 0

/** The day (UTC) of a moment, in milliseconds since the epoch. */
export const dateOf = (time: number) => new Date(time).toISOString().slice(0, 10)

/**
 * What each account took of each model on each day: a file for each day, in which every line is a list of rows to be
 * added up. Lines are appended as things happen; one that a crash has torn is read over. When its day is over, and when
 * it has grown, a file is written anew with the sums alone, whole or not at all. So each file has at most one row for
 * each account and model, besides what the running day appends.
 */
export class UsageBooks {
  readonly #folder: string
  readonly #keepDays: () => number
  readonly #log: Pick<FastifyBaseLogger, 'error' | 'warn' | 'info'>
  /** Days that are in memory: today, and others until they are written. */
  readonly #days = new Map<string, DayBook>()
  #today: DayBook
  /** When today began, in milliseconds since the epoch. */
  #began = Number.NaN
  #timer: NodeJS.Timeout | undefined
  /** One write and one reading of the past at a time. */
  #writing: Promise<void> = Promise.resolve()
  #reading: Promise<void> = Promise.resolve()
  #fault = ''

  /**
   * @param keepDays how many days are kept, today included
   * @throws when today's file cannot be read
   */
  constructor(folder: string, keepDays: () => number, log: Pick<FastifyBaseLogger, 'error' | 'warn' | 'info'>) {
    this.#folder = folder
    this.#keepDays = keepDays
    this.#log = log
    this.#today = this.#open(Date.now())
  }

  /** Adds to what an account took of a model today. */
  add(account: Account, model: string, more: Taken): void {
    const day = this.#now()
    const line = lineOf(day, account, model)
    addTo(line.row, more)
    addTo(line.unsaved, more)
    addTo(day.accounts.get(account.owner)!.total, more)
    day.unsaved.add(line)
    this.#timer ??= setTimeout(() => void this.flush(), BATCH_DELAY).unref()
  }

  /** What an account took today, of one model or of all. */
  today(owner: string, model?: string): Readonly<Taken> {
    const account = this.#now().accounts.get(owner)
    return (model === undefined ? account?.total : account?.models.get(model)?.row) ?? NOTHING
  }

  /** Milliseconds until the next day begins. */
  untilTomorrow(): number {
    this.#now()
    return this.#began + DAY - Date.now()
  }

  /** Calls `each` with all rows since a day (such as 2030-12-31), today's included; the days come in order. */
  async read(since: string, each: (date: string, row: UsageRow) => void): Promise<void> {
    const reading = this.#reading.then(async () => {
      const today = this.#now()
      const dates = new Set([...(await this.#dates()), ...this.#days.keys()].filter(date => date >= since))
      for (const date of [...dates].sort()) {
        // In memory is more than in the file.
        const day = date === today.date ? today : (this.#days.get(date) ?? this.#parse(date, await this.#text(date)))
        for (const { row } of linesOf(day)) if (isSome(row)) each(date, row)
      }
    })
    this.#reading = reading.catch(() => {})
    await reading
  }

  /** Writes what is not written yet. Resolves when it is, or when that failed. */
  async flush(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    for (const day of this.#days.values()) this.#save(day)
    await this.#writing
  }

  /** Writes what is not written yet, for the last time. */
  async close(): Promise<void> {
    await this.flush()
    clearTimeout(this.#timer)
    for (const day of this.#days.values()) await closeFile(day)
  }

  /** Deletes what is older than it is to be kept. */
  async forget(): Promise<void> {
    const oldest = dateOf(this.#began - (this.#keepDays() - 1) * DAY)
    for (const date of await this.#dates()) {
      if (date < oldest && !this.#days.has(date)) await rm(this.#path(date), { force: true })
    }
  }

  #now(): DayBook {
    const now = Date.now()
    // A clock may also go back.
    if (now >= this.#began && now < this.#began + DAY) return this.#today
    const before = this.#today
    this.#today = this.#open(now)
    this.#save(before, true)
    this.#writing = this.#writing.then(() => this.forget().catch(error => this.#complain(error)))
    return this.#today
  }

  #open(now: number): DayBook {
    this.#began = Math.floor(now / DAY) * DAY
    const date = dateOf(now)
    let day = this.#days.get(date)
    if (!day) {
      let text = ''
      try {
        // Read at once: budgets of the day must hold for the next request.
        text = readFileSync(this.#path(date), 'utf8')
      } catch (error) {
        if (!isSystemError(error, 'ENOENT')) throw error
      }
      day = this.#parse(date, text)
      day.appended = Buffer.byteLength(text)
      this.#days.set(date, day)
    }
    return day
  }

  #parse(date: string, text: string): DayBook {
    const day: DayBook = { date, accounts: new Map(), unsaved: new Set(), appended: 0 }
    let torn = 0
    for (const line of text.split('\n')) {
      if (line === '') continue
      try {
        for (const row of JSON.parse(line) as UsageRow[]) {
          const more = taken(row)
          addTo(lineOf(day, row, row.model).row, more)
          addTo(day.accounts.get(row.owner)!.total, more)
        }
      } catch {
        torn++
      }
    }
    if (torn > 0) this.#log.info({ date, lines: torn }, 'Lines of the usage that a crash had torn were read over.')
    return day
  }

  #save(day: DayBook, whole = false): void {
    this.#writing = this.#writing.then(async () => {
      if (day.unsaved.size === 0 && !whole) return
      const batch = [...day.unsaved].map(line => ({ line, more: line.unsaved }))
      for (const { line } of batch) line.unsaved = taken()
      day.unsaved.clear()
      try {
        if (whole || day.appended > MAX_APPENDED) await this.#writeWhole(day)
        else await this.#append(day, batch)
        if (this.#fault) this.#log.info('The usage is written again.')
        this.#fault = ''
        if (day !== this.#today && day.unsaved.size === 0) {
          this.#days.delete(day.date)
          await closeFile(day)
        }
      } catch (error) {
        for (const { line, more } of batch) {
          addTo(line.unsaved, more)
          day.unsaved.add(line)
        }
        this.#complain(error)
        this.#timer ??= setTimeout(() => void this.flush(), 10 * BATCH_DELAY).unref()
      }
    })
  }

  async #append(day: DayBook, batch: { line: Line; more: Taken }[]): Promise<void> {
    // What was counted and given back at once, as for requests that were refused, comes to nothing.
    const rows = batch.filter(({ more }) => isSome(more)).map(({ line, more }) => shortRow({ ...line.row, ...more }))
    if (rows.length === 0) return
    // What comes first ends a line that was torn.
    const text = `\n${JSON.stringify(rows)}`
    const file = await this.#fileOf(day)
    await file.appendFile(text)
    day.appended += Buffer.byteLength(text)
  }

  /** The file of a day, kept open: to open it for each batch would take most of the time of a batch. */
  async #fileOf(day: DayBook): Promise<FileHandle> {
    // It has no name any more once it was deleted, or another one was put in its place.
    if (day.file && (await day.file.stat()).nlink === 0) await closeFile(day)
    if (!day.file) {
      await mkdir(this.#folder, { recursive: true, mode: 0o700 })
      day.file = await open(this.#path(day.date), 'a', MODE.mode)
    }
    return day.file
  }

  async #writeWhole(day: DayBook): Promise<void> {
    const rows = [...linesOf(day)].flatMap(({ row }) => (isSome(row) ? [shortRow(row)] : []))
    if (rows.length === 0) return
    await mkdir(this.#folder, { recursive: true, mode: 0o700 })
    await writeFileAtomic(this.#path(day.date), rows.map(row => `${JSON.stringify([row])}\n`).join(''), MODE)
    day.appended = 0
  }

  #complain(error: unknown): void {
    if (this.#fault === errorMessage(error)) return
    this.#fault = errorMessage(error)
    this.#log.error(
      `The usage cannot be written to ${this.#folder}: ${this.#fault}. It is tried again; what is not written by the end of the server is lost.`
    )
  }

  async #dates(): Promise<string[]> {
    try {
      return (await readdir(this.#folder)).flatMap(name => FILE.exec(name)?.[1] ?? [])
    } catch (error) {
      if (isSystemError(error, 'ENOENT')) return []
      throw error
    }
  }

  async #text(date: string): Promise<string> {
    try {
      return await readFile(this.#path(date), 'utf8')
    } catch (error) {
      // It was too old meanwhile.
      if (isSystemError(error, 'ENOENT')) return ''
      throw error
    }
  }

  #path(date: string): string {
    return join(this.#folder, `${date}.jsonl`)
  }
}

const NOTHING: Readonly<Taken> = Object.freeze(taken())

async function closeFile(day: DayBook): Promise<void> {
  const { file } = day
  day.file = undefined
  await file?.close()
}

function lineOf(day: DayBook, { owner, name }: Account, model: string): Line {
  let account = day.accounts.get(owner)
  if (!account) {
    account = { total: taken(), models: new Map() }
    day.accounts.set(owner, account)
  }
  let line = account.models.get(model)
  if (!line) {
    line = { row: { owner, name, model, ...taken() }, unsaved: taken() }
    account.models.set(model, line)
  }
  return line
}

function* linesOf(day: DayBook): Generator<Line> {
  for (const { models } of day.accounts.values()) yield* models.values()
}

/** Without what is nought. */
function shortRow(row: UsageRow): Partial<UsageRow> {
  return Object.fromEntries(Object.entries(row).filter(([, value]) => value !== 0))
}
