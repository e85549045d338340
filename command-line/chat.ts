import pc from 'picocolors'
import { type Chat, completeLine, readCommand, requireVision, say } from './chat-commands.ts'
import { baseText, cutText } from './chat-session.ts'
import { CommandFailure, Interrupted, interruption } from './command-failure.ts'
import { printable, printNote, printText } from './output.ts'
import { printAnswer } from './print-answer.ts'
import { imagesIn, readImage } from './prompt-images.ts'
import { ServerRefusal } from './server-client.ts'
import { openTerminalInput, type TerminalInput } from './terminal-input.ts'

const colors = pc.createColors(process.stderr.isTTY && pc.isColorSupported)
const remark = (text: string) => printNote(colors.dim(printable(text)))
const complain = (error: CommandFailure) => printNote(`${colors.red('error:')} ${printable(error.message)}`)

/**
 * Opens the terminal, loads the model, and chats until the user leaves. Text typed while the model loads goes into the prompt.
 * @throws Interrupted when the user leaves with Ctrl-C
 */
export async function chatInTerminal(
  chat: Omit<Chat, 'answer' | 'stopped' | 'savedAs'>,
  load: (signal: AbortSignal) => Promise<void>
): Promise<void> {
  await chat.history.open().catch(historyFailed)
  const whole: Chat = { ...chat, savedAs: undefined, stopped: interruption(), answer: prompt => answer(whole, prompt) }
  const input = openTerminalInput(chat.history.prompts, text => completeLine(whole, text))
  const leave = () => input.close()
  interruption().addEventListener('abort', leave)
  try {
    await stoppable(whole, input, async () => {
      await load(whole.stopped)
      if (whole.stopped.aborted) throw new Interrupted(130)
    })
    const { model } = chat.session.settings
    say(`${(await chat.session.isBase()) ? baseText(model) : `Chatting with ${model}.`} /? shows help.`)
    await converse(whole, input)
  } finally {
    interruption().removeEventListener('abort', leave)
    input.close()
  }
}

/** Runs work that Ctrl-C can stop. */
async function stoppable<T>(chat: Chat, input: TerminalInput, work: () => Promise<T>): Promise<T> {
  const stop = new AbortController()
  chat.stopped = AbortSignal.any([stop.signal, interruption()])
  input.busy(() => stop.abort(new Interrupted(130)))
  return await work()
}

async function converse(chat: Chat, input: TerminalInput): Promise<void> {
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
      if (warned) printText('Press Ctrl-C again or Ctrl-D to leave.')
      continue
    }
    warned = false
    const line = lines.add(typed.line)
    if (!('text' in line)) continue
    await chat.history.add(historyEntry(line), chat.session.settings.history).catch(historyFailed)
    if (await stoppable(chat, input, () => obey(chat, line))) return
  }
}

let reported = false

/** A history that cannot be stored must not end the chat. */
function historyFailed(error: Error): void {
  if (!reported) remark(`The prompt history cannot be saved: ${error.message}`)
  reported = true
}

/** @returns whether the chat ends */
async function obey(chat: Chat, line: { kind: 'prompt' | 'command'; text: string }): Promise<boolean> {
  try {
    const command = line.kind === 'command' ? readCommand(line.text) : undefined
    if (command?.kind === 'command') return await command.run(chat)
    if (command?.kind === 'unknown') say(command.message)
    else await chat.answer(await attachImages(chat, line.text))
  } catch (error) {
    if (chat.stopped.aborted && !interruption().aborted) printText('')
    else if (error instanceof CommandFailure) complain(error)
    else throw error
  }
  return false
}

/** Attaches the images named in a prompt if the model can see images. @returns the prompt without their paths */
async function attachImages({ session }: Chat, prompt: string): Promise<string> {
  const { text, paths } = imagesIn(prompt)
  if (paths.length === 0) return prompt
  // A path alone means that an image was dropped on the terminal.
  if (text === '') await requireVision(session)
  const { capabilities } = await session.about()
  if (!capabilities.includes('vision')) {
    const sent = paths.length > 1 ? 'paths are' : 'path is'
    remark(`${session.settings.model} cannot see images, so only the ${sent} sent.`)
    return prompt
  }
  session.images.push(...paths.map(readImage))
  remark(`Attached: ${paths.join(', ')}`)
  return text
}

/** @returns whether the prompt was answered */
async function answer({ session, stopped }: Chat, prompt: string): Promise<boolean> {
  const { verbose, raw } = session.settings
  try {
    const ended = await printAnswer(session, prompt, { verbose, raw, signal: stopped })
    if (ended?.dropped) {
      const room = ended.largerContext ? `. Make room with: /set num_ctx ${ended.largerContext}` : ''
      remark(`The ${ended.dropped} oldest messages no longer fit the context and are not sent${room}`)
    }
    const cut = ended && cutText(ended, true)
    if (cut !== undefined) remark(session.settings.format === undefined ? cut : `${cut} (The JSON is incomplete.)`)
    return session.turns.at(-1)?.prompt === prompt
  } catch (error) {
    // The chat continues after a failed answer. A model that crashed is reloaded for the next one.
    if (!(error instanceof CommandFailure)) throw error
    complain(error)
    if (error instanceof ServerRefusal && error.code === 'context_exceeded') {
      remark('This message alone is too long for the context. It was removed from the conversation.')
    } else remark('Send the message again with: /regenerate')
    return false
  } finally {
    printText('')
  }
}

/** A prompt, a command that starts with a slash, or nothing yet: `more` if the text continues on the next line. */
export type TypedLine = { kind: 'prompt' | 'command'; text: string } | { kind: 'more' | 'nothing' }

/** The text that the arrow keys recall. Typed again, it means the same. */
function historyEntry({ kind, text }: { kind: 'prompt' | 'command'; text: string }): string {
  return kind === 'prompt' && /^\s*(\/|""")/.test(text) && !text.includes(QUOTES) ? `${QUOTES}${text}${QUOTES}` : text
}

const QUOTES = '"""'
/** Quotes may open a text at the start of a line, or as the system message. */
const OPENING = /^\s*(\/set\s+system\s+)?"""/i

/** Assembles prompts from lines: `"""` starts and ends a text of several lines, and `\` at the end continues one. */
export class PromptLines {
  /** The part before the opening quotes. */
  #lead = ''
  #quoted: string[] | undefined
  #continued: string[] = []

  get unfinished(): boolean {
    return this.#quoted !== undefined || this.#continued.length > 0
  }

  reset(): void {
    this.#quoted = undefined
    this.#continued = []
  }

  add(line: string): TypedLine {
    if (this.#quoted) return this.#quote(line)
    const opening = this.#continued.length === 0 ? OPENING.exec(line) : null
    if (opening) {
      this.#lead = opening[1] ?? ''
      this.#quoted = []
      return this.#quote(line.slice(opening[0].length))
    }
    // In pasted text of several lines, a trailing "\" is part of the text.
    if (/(?<!\\)(\\\\)*\\$/.test(line) && !line.includes('\n')) {
      this.#continued.push(line.slice(0, -1))
      return { kind: 'more' }
    }
    const text = [...this.#continued.splice(0), line].join('\n')
    if (text.trim() === '') return { kind: 'nothing' }
    return { kind: text.trimStart().startsWith('/') ? 'command' : 'prompt', text }
  }

  #quote(text: string): TypedLine {
    const closed = text.trimEnd().endsWith(QUOTES)
    this.#quoted!.push(closed ? text.trimEnd().slice(0, -QUOTES.length) : text)
    if (!closed) return { kind: 'more' }
    const quoted = this.#quoted!.join('\n').replace(/^\n|\n$/g, '')
    this.#quoted = undefined
    if (quoted.trim() === '') return { kind: 'nothing' }
    return this.#lead === '' ? { kind: 'prompt', text: quoted } : { kind: 'command', text: this.#lead + quoted }
  }
}
