import pc from 'picocolors'
import { printAnswer } from './answer-printer.ts'
import { type Conversation, formatCounters } from './conversation.ts'
import { CommandFailure, Interrupted } from './failure.ts'
import { interruption } from './interruption.ts'
import { printText } from './output.ts'
import { PromptLines } from './prompt-lines.ts'
import { openTerminalInput, type TerminalInput } from './terminal-input.ts'

const HELP = `  /clear   forget what was said
  /bye     leave
  /?       this help
  """      begins a text of several lines, and ends it
  Ctrl-C   stops an answer; at the prompt, pressed twice, leaves
  Ctrl-D   leaves`

/** Chats until the person leaves. @throws Interrupted when that is by Ctrl-C */
export async function chatInTerminal(conversation: Conversation, options: { verbose: boolean }): Promise<void> {
  const input = openTerminalInput()
  const leave = () => input.close()
  interruption().addEventListener('abort', leave)
  try {
    await chat(conversation, input, options)
  } finally {
    interruption().removeEventListener('abort', leave)
    input.close()
  }
}

async function chat(conversation: Conversation, input: TerminalInput, { verbose }: { verbose: boolean }) {
  const lines = new PromptLines()
  let warned = false
  for (;;) {
    const typed = await input.read(lines.unfinished ? '... ' : '>>> ')
    interruption().throwIfAborted()
    if (typed === 'ended') return printText('')
    if (typed === 'interrupted') {
      const dropped = input.dropped || lines.unfinished
      lines.reset()
      if (warned && !dropped) throw new Interrupted(130)
      warned = !dropped
      if (warned) printText('Press Ctrl-C again, or Ctrl-D, to leave.')
      continue
    }
    warned = false
    const line = lines.add(typed.line)
    if (line.kind === 'unknown command') printText(`There is no command ${line.text}; /? lists them.`)
    if (line.kind === 'prompt') await answer(conversation, input, line.text, verbose)
    if (line.kind !== 'command') continue
    if (line.name === 'bye') return
    if (line.name === 'help') printText(HELP)
    if (line.name === 'clear') {
      conversation.clear()
      printText('Forgotten.')
    }
  }
}

async function answer(conversation: Conversation, input: TerminalInput, prompt: string, verbose: boolean) {
  const stop = new AbortController()
  input.busy(() => stop.abort())
  const printer = printAnswer()
  try {
    const counters = await conversation.ask(prompt, printer, stop.signal)
    printer.end()
    if (counters && verbose) process.stderr.write(`\n${formatCounters(counters)}\n`)
  } catch (error) {
    printer.end()
    // The conversation outlives a failed answer: a model that crashed is loaded again by the next one.
    if (!(error instanceof CommandFailure)) throw error
    process.stderr.write(`${pc.red('error:')} ${error.message}\n`)
  }
  printText('')
}
