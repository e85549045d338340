import { clearScreenDown, cursorTo, moveCursor } from 'node:readline'
import { formatBytes } from '../core/system/bytes.ts'
import type { LogRecord } from '../core/system/log.ts'
import { displayWidth, shorten } from './display-width.ts'
import { outputWidth, wrapLines } from './output.ts'
import { spinnerText } from './progress-display.ts'

/** Pino's number for the level `info`. */
const INFO_LEVEL = 30
const REFRESH_MS = 200

/**
 * The terminal of `corral serve`: wrapped log lines, with one redrawn line below them while llama.cpp is downloaded or
 * built. That line replaces the progress records, which appear only in logs outside a terminal.
 */
export class ServerScreen {
  readonly #stream = process.stdout
  readonly #format: (record: LogRecord) => string
  #step: { text: string; what: string; since: number } | undefined
  #drawn = 0
  #timer: NodeJS.Timeout | undefined
  #works = () => true

  constructor(format: (record: LogRecord) => string) {
    this.#format = format
    process.once('exit', () => this.#end())
  }

  readonly show = (record: LogRecord): void => {
    if (record.part === 'runtimes' && record.level <= INFO_LEVEL) {
      if (typeof record.phase === 'string') {
        this.#begin(record)
        return
      }
      // "corral doctor" shows the attempts. The next line shows the result.
      if ('outcome' in record) return
    }
    if (record.part === 'runtimes') this.#end()
    this.print(wrapLines(this.#format(record), outputWidth(this.#stream), 2))
  }

  /** Prints lines above the redrawn one. */
  print(text: string): void {
    this.#erase()
    this.#stream.write(`${text}\n`)
    this.#draw()
  }

  /** @param works whether the work of the last step is still running; it may end without a record */
  worksWhile(works: () => boolean): void {
    this.#works = works
  }

  #begin({ msg = '', phase, subject, completed, total }: LogRecord): void {
    const what = `${phase} ${subject}`
    const since = this.#step?.what === what ? this.#step.since : performance.now()
    const sized = phase === 'downloading' && typeof completed === 'number' && typeof total === 'number'
    const amount = sized ? `, ${formatBytes(completed)} of ${formatBytes(total)}` : ''
    this.#step = { text: `${msg}${amount}`, what, since }
    this.#timer ??= setInterval(() => (this.#works() ? this.#redraw() : this.#end()), REFRESH_MS).unref()
    this.#redraw()
  }

  #end(): void {
    this.#erase()
    clearInterval(this.#timer)
    this.#timer = undefined
    this.#step = undefined
  }

  #redraw(): void {
    this.#erase()
    this.#draw()
  }

  #draw(): void {
    if (!this.#step) return
    const { text, since } = this.#step
    const line = shorten(spinnerText(text, performance.now() - since), outputWidth(this.#stream) - 1)
    this.#drawn = displayWidth(line)
    this.#stream.write(line)
  }

  /** Also erases rows that a narrower terminal has wrapped. */
  #erase(): void {
    if (this.#drawn === 0) return
    moveCursor(this.#stream, 0, 1 - Math.max(1, Math.ceil(this.#drawn / outputWidth(this.#stream))))
    cursorTo(this.#stream, 0)
    clearScreenDown(this.#stream)
    this.#drawn = 0
  }
}
