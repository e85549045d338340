import { constants } from 'node:os'
import { Interrupted } from './failure.ts'

const controller = new AbortController()
let installed = false

/**
 * Aborted when the command is to end early: by Ctrl-C, SIGTERM or SIGHUP (a second one ends the process at once), or
 * because whoever reads its output has gone. The commands wind up and exit with the code that the reason carries.
 */
export function interruption(): AbortSignal {
  if (!installed) {
    installed = true
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
      const exitCode = 128 + constants.signals[signal]
      process.on(signal, () => {
        if (controller.signal.aborted) process.exit(exitCode)
        controller.abort(new Interrupted(exitCode))
      })
    }
  }
  return controller.signal
}

/** Makes a reader that goes away (`corral list | head -1`) a quiet end rather than an error. */
export function heedClosedOutput(): void {
  for (const stream of [process.stdout, process.stderr]) {
    stream.on('error', error => {
      if ((error as NodeJS.ErrnoException).code !== 'EPIPE') throw error
      controller.abort(new Interrupted(0))
    })
  }
}
