import type { LiveLines } from './live-lines.ts'
import { type ProgressLine, showProgress } from './progress-line.ts'
import { type Shown, transferLines, transferText } from './transfer-layout.ts'
import { Transfers } from './transfers.ts'

const PLAIN_CHECK_MS = 1000

/** Progress of files or other work on standard error. */
export interface TransferDisplay {
  readonly transfers: Transfers
  /** What is being done while there is nothing to count, or when all is moved. */
  status(text: string | undefined): void
  /** As `Transfers.update`; it takes the place of a status. */
  update(key: string, completed: number, total: number, name?: string): void
  clear(): void
}

/**
 * A spinner until there is something to count, then bars. Elsewhere than on a terminal: a line every few seconds.
 * @param options.subject begins each plain line
 * @param options.expected what all will come to, as far as that is known before
 */
export async function showTransfers(options: {
  first: string
  subject: string
  unit: Shown['unit']
  expected?: number
}): Promise<TransferDisplay> {
  const { first, subject, unit, expected } = options
  const transfers = new Transfers(expected)
  const line: ProgressLine = showProgress(first, 'plain lines')
  // Loaded where there is a terminal to draw on.
  const liveLines = process.stderr.isTTY ? (await import('./live-lines.ts')).showLiveLines : undefined
  let status: string | undefined
  let live: LiveLines | undefined
  let timer: NodeJS.Timeout | undefined
  const shown = (): Shown => ({ unit, ...(status === undefined ? {} : { status }) })
  return {
    transfers,
    status(text) {
      status = text
      if (transfers.items.length === 0 && text !== undefined) line.update(text)
    },
    update(key, completed, total, name) {
      status = undefined
      transfers.update(key, completed, total, Date.now(), name)
      if (liveLines && !live) {
        line.clear()
        live = liveLines(size => transferLines(transfers, shown(), size, Date.now()))
      }
      if (!liveLines) {
        timer ??= setInterval(
          () => line.update(`${subject}: ${transferText(transfers, shown(), Date.now())}`),
          PLAIN_CHECK_MS
        )
      }
    },
    clear() {
      clearInterval(timer)
      if (live) live.clear()
      else line.clear()
    }
  }
}
