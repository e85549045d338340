import pc from 'picocolors'
import { type AnswerSink, type ChatSession, formatCounters } from './chat-session.ts'
import { printNote } from './output.ts'
import { showProgress } from './progress-display.ts'

export interface PrintOptions {
  verbose: boolean
  /** Prints the answer as the model wrote it, even on a terminal. */
  raw?: boolean | undefined
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
  { verbose, raw = false, signal }: PrintOptions
): ReturnType<ChatSession['ask']> {
  const waiting = await showProgress('waiting for the model', { plain: 'nothing' })
  const printer = process.stdout.isTTY ? await terminalPrinter(raw) : plainPrinter()
  const sink: AnswerSink = {
    status: text => waiting.status(text),
    thinking(text) {
      waiting.clear()
      printer.thinking(text)
    },
    content(text) {
      waiting.clear()
      printer.content(text)
    }
  }
  const end = () => {
    waiting.clear()
    printer.end()
  }
  const counters = await session.ask(prompt, sink, signal).finally(end)
  if (counters && verbose) printNote(`\n${formatCounters(counters)}`)
  return counters
}

interface AnswerPrinter {
  thinking(text: string): void
  content(text: string): void
  end(): void
}

function plainPrinter(): AnswerPrinter {
  let lineEnded = true
  return {
    thinking() {},
    content(text) {
      lineEnded = text.endsWith('\n')
      process.stdout.write(text)
    },
    end() {
      if (!lineEnded) process.stdout.write('\n')
    }
  }
}

/** Prints dimmed thinking, then the answer. */
async function terminalPrinter(raw: boolean): Promise<AnswerPrinter> {
  const colors = pc.createColors(pc.isColorSupported)
  const { MarkdownStream, PrintableStream } = await import('./markdown-stream.ts')
  const open = (base?: (text: string) => string) =>
    raw ? new PrintableStream(process.stdout, base) : new MarkdownStream(process.stdout, { colors, base })
  let part: { name: 'thinking' | 'content'; stream: ReturnType<typeof open> } | undefined
  const add = (name: 'thinking' | 'content', text: string) => {
    if (part?.name !== name) {
      if (part) {
        part.stream.end()
        process.stdout.write('\n')
      }
      part = { name, stream: open(name === 'thinking' ? colors.dim : undefined) }
    }
    part.stream.push(text)
  }
  return {
    thinking: text => add('thinking', text),
    content: text => add('content', text),
    end: () => part?.stream.end()
  }
}
