import pc from 'picocolors'
import { type ChatSession, formatCounters } from './chat-session.ts'
import { printNote } from './output.ts'
import { showProgress } from './progress-display.ts'

interface PrintOptions {
  verbose: boolean
  /** Prints the answer as the model wrote it, even on a terminal. */
  raw: boolean
  signal?: AbortSignal | undefined
}

/**
 * Prints an answer to standard output while it is generated, after a spinner. A terminal gets rendered Markdown, dimmed
 * thinking and no control characters. Other output gets only the answer, unchanged.
 * @returns the finished answer, or undefined if `signal` stopped it
 */
export async function printAnswer(
  session: ChatSession,
  prompt: string,
  { verbose, raw, signal }: PrintOptions
): ReturnType<ChatSession['ask']> {
  const waiting = await showProgress('waiting for the model', { plain: 'nothing' })
  const printer = process.stdout.isTTY ? await terminalPrinter(raw) : plainPrinter()
  const print = (part: 'thinking' | 'content') => (text: string) => {
    waiting.clear()
    printer.print(part, text)
  }
  const sink = { status: waiting.status, thinking: print('thinking'), content: print('content') }
  const counters = await session.ask(prompt, sink, signal).finally(() => {
    waiting.clear()
    printer.end()
  })
  if (counters && verbose) printNote(`\n${formatCounters(counters)}`)
  return counters
}

function plainPrinter() {
  let lineEnded = true
  return {
    print(part: 'thinking' | 'content', text: string) {
      if (part === 'thinking') return
      lineEnded = text.endsWith('\n')
      process.stdout.write(text)
    },
    end() {
      if (!lineEnded) process.stdout.write('\n')
    }
  }
}

/** Prints dimmed thinking, then the answer. */
async function terminalPrinter(raw: boolean) {
  const colors = pc.createColors(pc.isColorSupported)
  const { MarkdownStream, PrintableStream } = await import('./markdown-stream.ts')
  const open = (base?: (text: string) => string) =>
    raw ? new PrintableStream(process.stdout, base) : new MarkdownStream(process.stdout, { colors, base })
  let printed: 'thinking' | 'content' | undefined
  let stream: ReturnType<typeof open> | undefined
  return {
    print(part: 'thinking' | 'content', text: string) {
      if (printed !== part) {
        stream?.end()
        if (stream) process.stdout.write('\n')
        stream = open(part === 'thinking' ? colors.dim : undefined)
        printed = part
      }
      stream!.push(text)
    },
    end: () => stream?.end()
  }
}
