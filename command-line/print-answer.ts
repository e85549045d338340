import pc from 'picocolors'
import { type ChatSession, formatCounters } from './chat-session.ts'
import type { ChatSettings } from './chat-settings.ts'
import { printable, printNote } from './output.ts'
import { showProgress } from './progress-display.ts'

type PrintOptions = Pick<ChatSettings, 'verbose' | 'raw'> & { signal?: AbortSignal | undefined }
type Part = 'thinking' | 'content'

/**
 * Prints an answer to standard output while it is generated, after a spinner. A terminal gets rendered Markdown, dimmed
 * thinking and no control characters. Other output gets only the answer, unchanged.
 * @returns the finished answer, or undefined if `signal` stopped it
 */
export async function printAnswer(session: ChatSession, prompt: string, { verbose, raw, signal }: PrintOptions) {
  const waiting = await showProgress('waiting for the model', { plain: 'nothing' })
  const printer = await openPrinter(raw)
  const print = (part: Part) => (text: string) => {
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

/** Prints text as it arrives, and ends its last line. */
function textStream(clean = (text: string) => text, style = clean) {
  let lineEnded = true
  return {
    push(text: string) {
      const shown = clean(text)
      if (shown === '') return
      lineEnded = shown.endsWith('\n')
      process.stdout.write(style(shown))
    },
    end: () => void (lineEnded || process.stdout.write('\n'))
  }
}

/** Prints dimmed thinking, then the answer. Without a terminal, prints only the answer. */
async function openPrinter(raw: boolean) {
  if (!process.stdout.isTTY) {
    const { push, end } = textStream()
    return { print: (part: Part, text: string) => void (part === 'content' && push(text)), end }
  }
  const colors = pc.createColors(pc.isColorSupported)
  const { MarkdownStream } = await import('./markdown-stream.ts')
  const isPlain = raw || process.env.TERM === 'dumb'
  const open = (base?: (text: string) => string) =>
    isPlain ? textStream(printable, base) : new MarkdownStream(process.stdout, colors, base)
  let printed: Part | undefined
  let stream: ReturnType<typeof open> | undefined
  return {
    print(part: Part, text: string) {
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
