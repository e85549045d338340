import { isatty } from 'node:tty'

const terminals = [0, 1, 2].filter(isatty)

/** Whether this process runs in the foreground of a terminal, not in the background or as a service. */
export function startedOnTerminal(): boolean {
  return terminals.includes(0) || terminals.includes(1)
}

/**
 * Ends the process with SIGHUP when its terminal closes, as other programs do. Otherwise Node.js crashes at exit, when
 * it tries to restore the settings of the missing terminal.
 */
export function exitOnClosedTerminal(): void {
  process.once('exit', () => {
    if (terminals.every(isatty)) return
    process.removeAllListeners('SIGHUP')
    process.kill(process.pid, 'SIGHUP')
  })
}
