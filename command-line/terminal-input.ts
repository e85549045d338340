import { EventEmitter, once } from 'node:events'
import { createInterface } from 'node:readline'
import { PassThrough, Writable } from 'node:stream'
import { StringDecoder } from 'node:string_decoder'

export type TypedInput = { line: string } | 'interrupted' | 'ended'

export type TerminalInput = ReturnType<typeof openTerminalInput>

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
 * Opens the terminal for a line editor with history at the prompt, and for Ctrl-C at any time. It is in raw mode until
 * `close`, so that Ctrl-C arrives as a byte and does not signal the engine.
 * @param history prompts for the arrow keys, newest first, read again for each line
 * @param complete completions for the text before the cursor, and the part of the text that they replace
 */
export function openTerminalInput(
  history: readonly string[],
  complete: (text: string) => Promise<[offers: string[], replaced: string]>
) {
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
    // The history is corral's own, because a prompt of several lines is one entry.
    historySize: 0,
    async completer(text: string, done: (error: Error | null, result: [string[], string]) => void) {
      completing = true
      // An error means that completion is not available at the moment.
      const result = await complete(text).catch((): [string[], string] => [[], text])
      completing = false
      done(null, result)
      feed()
    }
  })
  const earlier = (editor as unknown as { history: string[] }).history

  let interrupt: (() => void) | undefined
  let reading = false
  let closed = false
  let dropped = false
  /** Typed text that the editor has not received yet. */
  let held = ''
  const decoder = new StringDecoder('utf8')
  const typed: TypedInput[] = []
  const arrivals = new EventEmitter()
  const push = (input: TypedInput) => {
    reading = false
    screen.muted = true
    typed.push(input)
    arrivals.emit('input')
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

  /** Passes typed text to the editor up to the end of a line. The rest waits for the next prompt. */
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
      // The editor redraws the whole line for each key, which takes many seconds for a long pasted text.
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
    Object.assign(editor, { line: line.slice(0, cursor) + clean + line.slice(cursor), cursor: cursor + clean.length })
    editor.prompt(true)
  }

  return {
    /** Whether the last Ctrl-C dropped typed text. */
    get dropped() {
      return dropped
    },
    /** Waits for a line. `interrupted` is Ctrl-C, which drops the typed text. `ended` is Ctrl-D or a closed terminal. */
    async read(prompt: string): Promise<TypedInput> {
      interrupt = undefined
      if (typed.length === 0 && !closed) {
        reading = true
        screen.muted = false
        earlier.splice(0, earlier.length, ...history)
        Object.assign(editor, { historyIndex: -1 })
        editor.setPrompt(prompt)
        editor.prompt()
        feed()
        if (typed.length === 0) await once(arrivals, 'input')
      }
      return typed.shift() ?? 'ended'
    },
    /** Calls `onInterrupt` at Ctrl-C until the next `read`. Other keys wait for that. */
    busy(onInterrupt: () => void) {
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

/** The editor's output: the terminal, except while an answer is printed. */
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
