import { isatty } from 'node:tty'

const terminals = [0, 1, 2].filter(isatty)

/** Whether somebody started this process on a terminal, rather than in the background or as a service. */
export function startedOnTerminal(): boolean {
  return terminals.includes(0) || terminals.includes(1)
}

/**
 * Has the process end by SIGHUP, as programs do, once a terminal that it was started on is closed: when it exits, Node.js
 * sets its terminal as it was, and ends with a fault where that one is gone.
 */
export function exitOnClosedTerminal(): void {
  process.once('exit', () => {
    if (terminals.every(isatty)) return
    process.removeAllListeners('SIGHUP')
    process.kill(process.pid, 'SIGHUP')
  })
}
