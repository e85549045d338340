import { createInterface } from 'node:readline/promises'
import { formatBytes } from '../core/system/bytes.ts'
import { Interrupted, interruption } from './command-failure.ts'
import { printable, printNote } from './output.ts'

/** Whether there is a person to answer questions. */
export const atTerminal = () => process.stdin.isTTY === true && process.stderr.isTTY === true

/** Asks a question on standard error. @throws Interrupted if the answer is Ctrl-C */
export async function confirm(question: string, usual: boolean): Promise<boolean> {
  const lines = createInterface({ input: process.stdin, output: process.stderr })
  const ended = new AbortController()
  lines.once('SIGINT', () => ended.abort(new Interrupted(130)))
  lines.once('close', () => ended.abort(new Interrupted(130)))
  const signal = AbortSignal.any([ended.signal, interruption()])
  try {
    for (;;) {
      const typed = await lines.question(`${question} ${usual ? '[Y/n]' : '[y/N]'} `, { signal })
      const answer = typed.trim().toLowerCase()
      if (answer === '') return usual
      if (['y', 'yes'].includes(answer)) return true
      if (['n', 'no'].includes(answer)) return false
    }
  } catch (error) {
    printNote('')
    throw signal.aborted ? signal.reason : error
  } finally {
    lines.close()
  }
}

/** Lets the user pick one of several models. @throws Interrupted if nothing is picked */
export async function pickOne(
  message: string,
  choices: readonly { value: string; label: string; size: number }[],
  output: NodeJS.WriteStream = process.stdout
): Promise<string> {
  const { select, isCancel } = await import('@clack/prompts')
  const options = choices.map(({ value, label, size }) => ({
    value,
    label: printable(label),
    ...(size > 0 && { hint: formatBytes(size) })
  }))
  const picked = await select({ message, options, maxItems: 12, output, signal: interruption() })
  interruption().throwIfAborted()
  if (isCancel(picked)) throw new Interrupted(130)
  return picked
}
