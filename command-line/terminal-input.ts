import { createInterface, emitKeypressEvents } from 'node:readline'
import { PassThrough } from 'node:stream'

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

const CTRL_C = 3
const PASTE_ON = '\x1b[?2004h'
const PASTE_OFF = '\x1b[?2004l'

/**
 * Opens the terminal. It stays in raw mode until `close`: a Ctrl-C in the middle of an answer reaches this process as a
 * byte, and not all processes of the terminal as a signal: the engine may be one of them.
 */
export function openTerminalInput(): TerminalInput {
  const { stdin, stdout } = process
  const keys = Object.assign(new PassThrough(), {
    setRawMode(mode: boolean) {
      stdin.setRawMode(mode)
      return keys
    }
  })
  emitKeypressEvents(keys)
  const editor = createInterface({ input: keys, output: stdout, terminal: true, historySize: 1000 })

  let interrupt: (() => void) | undefined
  let closed = false
  let dropped = false
  let pasting = false
  /** Lines of a paste that has not ended, or that waits for Enter. */
  let pasted: string[] = []
  const typed: TypedInput[] = []
  const typedWhileBusy: Buffer[] = []
  let wake: (() => void) | undefined
  const push = (input: TypedInput) => {
    typed.push(input)
    wake?.()
  }

  stdin.on('data', onData)
  stdin.once('end', () => editor.close())
  stdin.resume()
  stdout.write(PASTE_ON)
  keys.on('keypress', (_text, key?: { name?: string }) => {
    if (key?.name === 'paste-start') pasting = true
    if (key?.name === 'paste-end') pasting = false
  })
  editor.on('line', line => {
    pasted.push(line)
    if (pasting) return
    push({ line: pasted.splice(0).join('\n') })
  })
  editor.on('SIGINT', () => {
    dropped = editor.line !== '' || pasted.length > 0
    pasted = []
    stdout.write('\n')
    // Removes the typed text without adding it to the history.
    Object.assign(editor, { line: '', cursor: 0 })
    push('interrupted')
  })
  editor.once('close', () => {
    closed = true
    push('ended')
  })

  function onData(chunk: Buffer): void {
    if (!interrupt) keys.write(chunk)
    else if (chunk.includes(CTRL_C)) {
      typedWhileBusy.length = 0
      interrupt()
    } else typedWhileBusy.push(chunk)
  }

  return {
    get dropped() {
      return dropped
    },
    async read(prompt) {
      interrupt = undefined
      if (typed.length === 0 && !closed) {
        editor.setPrompt(prompt)
        editor.prompt()
        for (const chunk of typedWhileBusy.splice(0)) keys.write(chunk)
        await new Promise<void>(resolve => {
          wake = resolve
        })
        wake = undefined
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
