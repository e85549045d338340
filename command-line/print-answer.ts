import pc from 'picocolors'
import { type AnswerSink, type ChatSession, formatCounters } from './chat-session.ts'
import { printable, printNote } from './output.ts'
import { showProgress } from './progress-display.ts'

/**
 * Prints an answer to standard output as it is generated, with a spinner before its first word. On a terminal thinking
 * is dimmed and control characters are left out; elsewhere only the answer is printed, unchanged.
 */
export async function printAnswer(
  session: ChatSession,
  prompt: string,
  { verbose, signal }: { verbose: boolean; signal?: AbortSignal }
): Promise<void> {
  const { stdout } = process
  const colors = pc.createColors(stdout.isTTY && pc.isColorSupported)
  const waiting = await showProgress('waiting for the model', { plain: 'nothing' })
  let part: 'none' | 'thinking' | 'content' = 'none'
  let lineEnded = true
  const sink: AnswerSink = {
    status: text => waiting.status(text),
    thinking(text) {
      waiting.clear()
      if (!stdout.isTTY) return
      part = 'thinking'
      stdout.write(colors.dim(printable(text)))
    },
    content(text) {
      waiting.clear()
      if (part === 'thinking') stdout.write('\n\n')
      part = 'content'
      lineEnded = text.endsWith('\n')
      stdout.write(stdout.isTTY ? printable(text) : text)
    }
  }
  const end = () => {
    waiting.clear()
    if (part === 'thinking' || !lineEnded) stdout.write('\n')
  }
  const counters = await session.ask(prompt, sink, signal).finally(end)
  if (counters && verbose) printNote(`\n${formatCounters(counters)}`)
}
