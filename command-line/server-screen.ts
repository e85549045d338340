import { formatBytes } from '../core/system/bytes.ts'
import type { LogRecord } from '../core/system/log.ts'
import { eraseLines, shorten } from './display-width.ts'
import { outputWidth, wrapLines } from './output.ts'
import { spinnerText } from './progress-display.ts'

/** Pino's number for the level `info`. */
const INFO_LEVEL = 30
const REFRESH_MS = 200

/**
 * The terminal of `corral serve`: wrapped log lines, with one redrawn line below them instead of the records of a
 * download or build of llama.cpp.
 */
export class ServerScreen {
  readonly #stream = process.stdout
  readonly #format: (record: LogRecord) => string
  #step: { text: string; what: string; since: number } | undefined
  #drawn = ''
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
    this.#redraw(`${text}\n`)
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
    clearInterval(this.#timer)
    this.#timer = undefined
    this.#step = undefined
    this.#redraw()
  }

  /** @param above text for the lines above */
  #redraw(above = ''): void {
    const width = outputWidth(this.#stream)
    const erased = this.#drawn === '' ? '' : eraseLines([this.#drawn], width)
    const { text, since } = this.#step ?? {}
    this.#drawn = text === undefined ? '' : shorten(spinnerText(text, performance.now() - since!), width - 1)
    const output = erased + above + this.#drawn
    if (output !== '') this.#stream.write(output)
  }
}
