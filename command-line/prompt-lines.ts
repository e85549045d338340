/** What a line that was typed asks for. */
export type TypedLine =
  | { kind: 'prompt'; text: string }
  /** A text in triple quotes goes on in the next line. */
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

/** Puts prompts together from lines: `"""` opens a text of several lines and closes it. */
export class PromptLines {
  #open: string[] | undefined

  /** Whether a text in triple quotes is open. */
  get unfinished(): boolean {
    return this.#open !== undefined
  }

  /** Forgets what is open. */
  reset(): void {
    this.#open = undefined
  }

  add(line: string): TypedLine {
    let text = line
    if (!this.#open) {
      const trimmed = line.trim()
      if (trimmed === '') return { kind: 'nothing' }
      if (Object.hasOwn(COMMANDS, trimmed)) return { kind: 'command', name: COMMANDS[trimmed]! }
      // A single word behind a slash is meant as a command; "/etc/hosts is …" and "/a b" are prompts.
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
