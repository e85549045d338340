import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import type { Test } from 'tap'
import { until } from '../support/corral.ts'
import { commandEnvironment, MAIN } from './command.ts'
import { renderScreen } from './screen.ts'

export const CTRL_C = '\x03'
export const CTRL_D = '\x04'
export const ENTER = '\r'

/** A command on a terminal (created with util-linux' `script`), controlled by keys. */
export interface Terminal {
  /** Output since the last `press`. */
  screen(): string
  /** The lines on the terminal. */
  lines(): Promise<string[]>
  /** @param what waits until the new output has this */
  press(keys: string, what?: string | RegExp): Promise<void>
  sees(what: string | RegExp): Promise<void>
  ended(): Promise<number | null>
  /** Presses Ctrl-D and waits for the end. */
  leave(): Promise<number | null>
  /** Closes the terminal, like its window. */
  close(): void
}

interface TerminalOptions {
  columns?: number
  rows?: number
  /** Command that starts the command, such as `setsid --wait`. */
  launcher?: string
  env?: Record<string, string>
}

export function onTerminal(t: Test, args: string[], home: string, options: TerminalOptions = {}): Terminal {
  const { columns = 80, rows = 24, launcher = '', env = {} } = options
  const quoted = [process.execPath, MAIN, ...args].map(word => `'${word}'`).join(' ')
  const command = `stty cols ${columns} rows ${rows}; exec ${launcher} ${quoted}`
  const child: ChildProcess = spawn('script', ['-qec', command, '/dev/null'], {
    cwd: home,
    env: { ...commandEnvironment({ home, env }), TERM: 'xterm' },
    stdio: ['pipe', 'pipe', 'inherit']
  })
  const exited = once(child, 'close').then(([code]) => code as number | null)
  t.teardown(async () => {
    child.kill('SIGKILL')
    await exited
  })
  let output = ''
  child.stdout!.setEncoding('utf8').on('data', text => {
    output += text
  })
  return {
    screen: () => output,
    lines: async () => (await renderScreen(output, columns)).lines,
    async press(keys, what) {
      output = ''
      child.stdin!.write(keys)
      if (what !== undefined) await this.sees(what)
    },
    leave() {
      void this.press(CTRL_D)
      return exited
    },
    async sees(what) {
      const found = () => (typeof what === 'string' ? output.includes(what) : what.test(output))
      await until(`"${what}" on the screen`, found, 30_000).catch(error => {
        throw new Error(`${error.message}; it shows ${JSON.stringify(output)}`)
      })
    },
    ended: () => exited,
    close: () => void child.kill('SIGKILL')
  }
}
