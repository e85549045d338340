import pc from 'picocolors'
import type { ChatSession } from './chat-session.ts'
import { CommandFailure, Interrupted, interruption } from './command-failure.ts'
import { printNote, printText } from './output.ts'
import { type PrintOptions, printAnswer } from './print-answer.ts'
import { openTerminalInput, type TerminalInput } from './terminal-input.ts'

const HELP = `  /clear   forget the conversation
  /bye     leave
  /?       show this help
  """      begin and end a text of several lines
  Ctrl-C   stop an answer; at the prompt, press it twice to leave
  Ctrl-D   leave`

/** Chats until the person leaves. @throws Interrupted when they leave by Ctrl-C */
export async function chatInTerminal(session: ChatSession, options: Omit<PrintOptions, 'signal'>): Promise<void> {
  const input = openTerminalInput()
  const leave = () => input.close()
  interruption().addEventListener('abort', leave)
  try {
    await chat(session, input, options)
  } finally {
    interruption().removeEventListener('abort', leave)
    input.close()
  }
}

async function chat(session: ChatSession, input: TerminalInput, options: Omit<PrintOptions, 'signal'>) {
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
      if (warned) printText('To leave, press Ctrl-C again or Ctrl-D.')
      continue
    }
    warned = false
    const line = lines.add(typed.line)
    if (line.kind === 'unknown command') printText(`There is no command ${line.text}; /? lists the commands.`)
    if (line.kind === 'prompt') await answerInChat(session, input, line.text, options)
    if (line.kind !== 'command') continue
    if (line.name === 'bye') return
    if (line.name === 'help') printText(HELP)
    if (line.name === 'clear') {
      session.clear()
      printText('The conversation is forgotten.')
    }
  }
}

async function answerInChat(
  session: ChatSession,
  input: TerminalInput,
  prompt: string,
  options: Omit<PrintOptions, 'signal'>
) {
  const stop = new AbortController()
  input.busy(() => stop.abort())
  try {
    await printAnswer(session, prompt, { ...options, signal: stop.signal })
  } catch (error) {
    // The chat goes on after a failed answer: a model that crashed is loaded again for the next one.
    if (!(error instanceof CommandFailure)) throw error
    printNote(`${pc.red('error:')} ${error.message}`)
  }
  printText('')
}

/** What a typed line means. */
export type TypedLine =
  | { kind: 'prompt'; text: string }
  /** A text in triple quotes continues on the next line. */
  | { kind: 'more' }
  | { kind: 'nothing' }
  | { kind: 'command'; name: 'bye' | 'clear' | 'help' }
  | { kind: 'unknown command'; text: string }

const COMMANDS: Record<string, 'bye' | 'clear' | 'help'> = {
  '/bye': 'bye',
  '/exit': 'bye',
  '/quit': 'bye',
  '/clear': 'clear',
  '/?': 'help',
  '/help': 'help'
}
const QUOTES = '"""'

/** Assembles prompts from lines: `"""` begins and ends a text of several lines. */
export class PromptLines {
  #open: string[] | undefined

  /** Whether a text in triple quotes is open. */
  get unfinished(): boolean {
    return this.#open !== undefined
  }

  /** Drops an open text. */
  reset(): void {
    this.#open = undefined
  }

  add(line: string): TypedLine {
    let text = line
    if (!this.#open) {
      const trimmed = line.trim()
      if (trimmed === '') return { kind: 'nothing' }
      if (Object.hasOwn(COMMANDS, trimmed)) return { kind: 'command', name: COMMANDS[trimmed]! }
      // A single word after a slash is meant as a command; "/etc/hosts is …" and "/a b" are prompts.
      if (/^\/[a-z?]+$/i.test(trimmed)) return { kind: 'unknown command', text: trimmed }
      if (!trimmed.startsWith(QUOTES)) return { kind: 'prompt', text: line }
      this.#open = []
      text = trimmed.slice(QUOTES.length)
    }
    const closed = text.trimEnd().endsWith(QUOTES)
    this.#open.push(closed ? text.trimEnd().slice(0, -QUOTES.length) : text)
    if (!closed) return { kind: 'more' }
    const prompt = this.#open.join('\n').replace(/^\n|\n$/g, '')
    this.#open = undefined
    return prompt.trim() === '' ? { kind: 'nothing' } : { kind: 'prompt', text: prompt }
  }
}
