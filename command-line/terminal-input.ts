import { createInterface } from 'node:readline'
import { PassThrough, Writable } from 'node:stream'
import { StringDecoder } from 'node:string_decoder'

export type TypedInput = { line: string } | 'interrupted' | 'ended'

/** A person at a terminal: lines with editing and history at the prompt, Ctrl-C at any time. */
export interface TerminalInput {
  /** Waits for a line. `interrupted` is Ctrl-C (the typed text is dropped), `ended` is Ctrl-D or a closed terminal. */
  read(prompt: string): Promise<TypedInput>
  /** Whether text was typed at the prompt when Ctrl-C was pressed last. */
  readonly dropped: boolean
  /** Calls `onInterrupt` at Ctrl-C until the next `read`; other keys wait for that. */
  busy(onInterrupt: () => void): void
  close(): void
}

export interface TerminalInputOptions {
  /** Earlier prompts for the arrow keys, the newest first; read anew for each line. */
  history: readonly string[]
  /** What Tab offers for the text before the cursor, and the part of that text which it takes the place of. */
  complete(text: string): Promise<[offers: string[], replaced: string]>
}

const CTRL_C = '\x03'
const PASTE_ON = '\x1b[?2004h'
const PASTE_OFF = '\x1b[?2004l'
const PASTE_BEGINS = '\x1b[200~'
const PASTE_ENDS = '\x1b[201~'
const ALT_ENTER = '\x1b\r'

/** What is typed, in pieces: a text, a key that sends several bytes, or a key that sends one. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what keys send
const PIECE = /^(?:[^\x00-\x1f\x7f]+|\x1b(?:\[[\d;?]*[@-~]|O[\s\S]|[^[O])?|[\s\S])/u
/** A key's bytes, or the beginning of a paste, of which the rest has not arrived. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what keys send
const UNFINISHED = /^\x1b\[[\d;?]*$/

/**
 * Opens the terminal. It stays in raw mode until `close`: a Ctrl-C in the middle of an answer reaches this process as a
 * byte, and not all processes of the terminal as a signal: the engine may be one of them.
 */
export function openTerminalInput({ history, complete }: TerminalInputOptions): TerminalInput {
  const { stdin, stdout } = process
  const keys = Object.assign(new PassThrough(), {
    setRawMode(mode: boolean) {
      stdin.setRawMode(mode)
      return keys
    }
  })
  const screen = new EditorScreen()
  let completing = false
  const editor = createInterface({
    input: keys,
    output: screen,
    terminal: true,
    // The prompts that the arrow keys go through are ours: one of several lines is one prompt.
    historySize: 0,
    completer(text: string, done: (error: Error | null, result: [string[], string]) => void) {
      completing = true
      complete(text).then(
        result => completed(result),
        // Whatever Tab needed cannot be had now: it offers nothing.
        () => completed([[], text])
      )
      const completed = (result: [string[], string]) => {
        completing = false
        done(null, result)
        feed()
      }
    }
  })
  const earlier = (editor as unknown as { history: string[] }).history

  let interrupt: (() => void) | undefined
  let reading = false
  let closed = false
  let dropped = false
  /** What was typed and the editor has not got yet. */
  let held = ''
  const decoder = new StringDecoder('utf8')
  const typed: TypedInput[] = []
  let wake: (() => void) | undefined
  const push = (input: TypedInput) => {
    reading = false
    screen.muted = true
    typed.push(input)
    wake?.()
  }

  stdin.on('data', onData)
  stdin.once('end', () => editor.close())
  stdin.resume()
  stdout.write(PASTE_ON)
  editor.on('line', line => push({ line }))
  editor.on('SIGINT', () => {
    dropped = editor.line !== ''
    editor.write(null, { ctrl: true, name: 'e' })
    stdout.write('\n')
    // Removes the typed text.
    Object.assign(editor, { line: '', cursor: 0, prevRows: 0 })
    push('interrupted')
  })
  editor.once('close', () => {
    closed = true
    push('ended')
  })

  function onData(chunk: Buffer): void {
    held += decoder.write(chunk)
    if (interrupt && held.includes(CTRL_C)) {
      held = ''
      interrupt()
    } else feed()
  }

  /** Gives the editor what was typed, up to the end of a line: what follows waits for the next prompt. */
  function feed(): void {
    while (reading && !completing && held !== '') {
      if (held.startsWith(PASTE_BEGINS)) {
        const end = held.indexOf(PASTE_ENDS)
        if (end === -1 && !held.includes(CTRL_C)) return
        if (end !== -1) insert(held.slice(PASTE_BEGINS.length, end).replace(/[\r\n]+$/, ''))
        held = end === -1 ? CTRL_C : held.slice(end + PASTE_ENDS.length)
        continue
      }
      if (UNFINISHED.test(held)) return
      const piece = PIECE.exec(held)![0]
      held = held.slice(piece.length)
      if (piece === ALT_ENTER) insert('\n')
      // The editor looks at the whole line for each key: a long text that comes at once would take it many seconds.
      else if (piece.length > 2 && piece >= ' ') insert(piece)
      else keys.emit('data', Buffer.from(piece))
    }
  }

  function insert(text: string): void {
    const { line, cursor } = editor
    const clean = text
      .replace(/\r\n?/g, '\n')
      // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is removed
      .replace(/[\x00-\x08\x0b-\x1f\x7f]/g, '')
    Object.assign(editor, {
      line: line.slice(0, cursor) + clean + line.slice(cursor),
      cursor: cursor + clean.length
    })
    editor.prompt(true)
  }

  return {
    get dropped() {
      return dropped
    },
    async read(prompt) {
      interrupt = undefined
      if (typed.length === 0 && !closed) {
        reading = true
        screen.muted = false
        earlier.splice(0, earlier.length, ...history)
        Object.assign(editor, { historyIndex: -1 })
        editor.setPrompt(prompt)
        editor.prompt()
        feed()
        if (typed.length === 0) {
          await new Promise<void>(resolve => {
            wake = resolve
          })
          wake = undefined
        }
      }
      return typed.shift() ?? 'ended'
    },
    busy(onInterrupt) {
      interrupt = onInterrupt
    },
    close() {
      stdin.off('data', onData)
      editor.close()
      stdout.write(PASTE_OFF)
      stdin.pause()
    }
  }
}

/** What the editor draws on: the terminal, but for the time in which an answer is written there. */
class EditorScreen extends Writable {
  muted = true

  constructor() {
    super({ decodeStrings: false })
    process.stdout.on('resize', () => this.emit('resize'))
  }

  get columns(): number {
    return process.stdout.columns
  }

  override _write(text: string, _encoding: string, done: () => void): void {
    if (!this.muted) process.stdout.write(text)
    done()
  }
}
