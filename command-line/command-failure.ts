import { constants } from 'node:os'
import { isatty } from 'node:tty'
import { CorralError, type ErrorCode, errorMessage, isSystemError } from '../core/errors.ts'
import type { DataDirectoryError } from '../core/system/data-directory.ts'

/** Exit codes of all commands, as listed in `corral --help`. */
export const EXIT = { ok: 0, failure: 1, usage: 2, noServer: 3, notFound: 4 } as const

/** A failed command. Only the message is shown to the user. */
export class CommandFailure extends Error {
  override readonly name = 'CommandFailure'
  readonly exitCode: number

  constructor(exitCode: number, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause })
    this.exitCode = exitCode
  }
}

export const failure = (message: string, cause?: unknown) => new CommandFailure(EXIT.failure, message, cause)
/** A mistake of the user. */
export const misuse = (message: string, cause?: unknown) => new CommandFailure(EXIT.usage, message, cause)

/** The command was cancelled by a signal, or because the reader of its output has gone. */
export class Interrupted extends Error {
  override readonly name = 'Interrupted'
  readonly exitCode: number

  constructor(exitCode: number) {
    super('interrupted')
    this.exitCode = exitCode
  }
}

/** Runs the work for each item, also after failures. @throws CommandFailure with all messages */
export async function forEach<T>(all: readonly T[], work: (one: T) => Promise<void>): Promise<void> {
  const failures: CommandFailure[] = []
  for (const one of all) {
    try {
      await work(one)
    } catch (error) {
      if (!(error instanceof CommandFailure)) throw error
      failures.push(error)
    }
  }
  const [first] = failures
  if (first) throw new CommandFailure(first.exitCode, failures.map(({ message }) => message).join('\n       '))
}

const NOT_FOUND: ErrorCode[] = [
  'model_not_found',
  'model_not_loaded',
  'repo_not_found',
  'runtime_not_found',
  'key_not_found',
  'member_not_found',
  'machine_not_found'
]
const USAGE: ErrorCode[] = ['invalid_model_name', 'invalid_option', 'invalid_request', 'invalid_config']

export function exitCodeFor(code: string | undefined): number {
  if (NOT_FOUND.some(known => known === code)) return EXIT.notFound
  return USAGE.some(known => known === code) ? EXIT.usage : EXIT.failure
}

/** Text and exit code for any thrown value. An undefined text prints nothing. */
export function explainFailure(error: unknown): { exitCode: number; text: string | undefined } {
  if (error instanceof Interrupted) return { exitCode: error.exitCode, text: undefined }
  if (error instanceof CommandFailure) return { exitCode: error.exitCode, text: error.message }
  if (error instanceof CorralError) return { exitCode: exitCodeFor(error.code), text: error.message }
  // Core's own errors (configuration, data directory, plugins, a port in use) already have messages for users.
  const isConfig = error instanceof Error && error.name === 'ConfigError'
  return {
    exitCode: isConfig ? EXIT.usage : EXIT.failure,
    text: accountAdvice(error) ?? systemText(error) ?? errorMessage(error)
  }
}

/** Suggests the same command, run as the owner of the data directory. */
function accountAdvice(error: unknown): string | undefined {
  const { account, message } = error as Partial<DataDirectoryError>
  if (!(error instanceof Error) || error.name !== 'DataDirectoryError' || !account) return undefined
  const { name, path } = account
  const words = [...process.argv.slice(2), '--home', path].map(word =>
    /^[\w./:@=+-]+$/.test(word) ? word : `'${word}'`
  )
  return `${message} Run: sudo -u ${name} corral ${words.join(' ')}`
}

/** Describes a system error: first the problem, then what to do. */
function systemText(error: unknown): string | undefined {
  const { path = 'a file' } = (error ?? {}) as NodeJS.ErrnoException
  if (isSystemError(error, 'ENOSPC', 'EDQUOT')) return `The disk of ${path} is full. Free some space and try again.`
  if (isSystemError(error, 'EACCES', 'EPERM')) {
    return `You don't have permission to use ${path}. Run corral as its owner, or choose another folder with CORRAL_HOME.`
  }
  if (isSystemError(error, 'EROFS')) return `The disk of ${path} is read-only. Choose another folder with CORRAL_HOME.`
  if (isSystemError(error, 'ENOENT')) return `${path} does not exist. Check the name.`
  if (!isSystemError(error, 'EMFILE')) return undefined
  return 'Too many files are open. Raise the limit of this shell (ulimit -n) and try again.'
}

const controller = new AbortController()
let installed = false

/**
 * Aborted by Ctrl-C, SIGTERM or SIGHUP (a second one ends the process immediately), or if the reader of the output has
 * gone. Commands then clean up and exit with the code in the abort reason.
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

/** Ends the command without an error when the reader of its output goes away, as in `corral list | head -1`. */
export function endOnClosedOutput(): void {
  for (const stream of [process.stdout, process.stderr]) {
    stream.on('error', error => {
      if (!isSystemError(error, 'EPIPE', 'EIO')) throw error
      controller.abort(new Interrupted(0))
    })
  }
}

const terminals = [0, 1, 2].filter(isatty)

/** Whether this process runs in the foreground of a terminal, not in the background or as a service. */
export function startedOnTerminal(): boolean {
  return terminals.includes(0) || terminals.includes(1)
}

/** Ends the process with SIGHUP when its terminal closes, because Node.js would crash restoring its settings. */
export function exitOnClosedTerminal(): void {
  process.once('exit', () => {
    if (terminals.every(isatty)) return
    process.removeAllListeners('SIGHUP')
    process.kill(process.pid, 'SIGHUP')
  })
}
