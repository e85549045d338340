import pc from 'picocolors'
import type { AnswerSink } from './conversation.ts'
import { printable } from './output.ts'
import { type ProgressLine, showProgress } from './progress-line.ts'

export interface AnswerPrinter extends AnswerSink {
  /** Ends the last line; call it when the answer is over, however it ended. */
  end(): void
}

/**
 * Prints an answer to standard output as it comes, with a spinner before its first word. On a terminal thinking is shown
 * dimmed and control characters are left out; elsewhere only the answer itself is printed, as it is.
 */
export function printAnswer(): AnswerPrinter {
  const { stdout } = process
  const colors = pc.createColors(stdout.isTTY && pc.isColorSupported)
  let waiting: ProgressLine | undefined = showProgress('waiting for the model', 'nothing')
  let part: 'none' | 'thinking' | 'content' = 'none'
  let ended = true
  const begin = () => {
    waiting?.clear()
    waiting = undefined
  }
  const write = (text: string) => {
    ended = text.endsWith('\n')
    stdout.write(stdout.isTTY ? printable(text) : text)
  }
  return {
    status: text => waiting?.update(text),
    thinking(text) {
      begin()
      if (!stdout.isTTY) return
      part = 'thinking'
      stdout.write(colors.dim(printable(text)))
    },
    content(text) {
      begin()
      if (part === 'thinking') stdout.write('\n\n')
      part = 'content'
      write(text)
    },
    end() {
      begin()
      if (part === 'thinking' || !ended) stdout.write('\n')
    }
  }
}
