import { CorralError, type ErrorCode, messageOf } from '../core/errors.ts'

/** How corral's commands end; `corral --help` lists them. */
export const EXIT = { ok: 0, failure: 1, usage: 2, noServer: 3, notFound: 4 } as const

/** A command that cannot do what it was asked: its message is all that is shown. */
export class CommandFailure extends Error {
  override readonly name = 'CommandFailure'
  readonly exitCode: number

  constructor(exitCode: number, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause })
    this.exitCode = exitCode
  }
}

/** Does the work for each, one after the other, even where it fails for some. @returns those failures */
export async function tryEach<T>(all: readonly T[], work: (one: T) => Promise<void>): Promise<CommandFailure[]> {
  const failures: CommandFailure[] = []
  for (const one of all) {
    try {
      await work(one)
    } catch (error) {
      if (!(error instanceof CommandFailure)) throw error
      failures.push(error)
    }
  }
  return failures
}

/** @throws CommandFailure that tells all of them, if there are any; the first one's exit code counts */
export function throwTogether(failures: readonly CommandFailure[]): void {
  const [first] = failures
  if (first) throw new CommandFailure(first.exitCode, failures.map(({ message }) => message).join('\n       '))
}

/** The command was called off from outside: by a signal, or because nobody reads its output any longer. */
export class Interrupted extends Error {
  override readonly name = 'Interrupted'
  readonly exitCode: number

  constructor(exitCode: number) {
    super('interrupted')
    this.exitCode = exitCode
  }
}

const NOT_FOUND: ErrorCode[] = ['model_not_found', 'model_not_loaded', 'repo_not_found', 'runtime_not_found']
const USAGE: ErrorCode[] = ['invalid_model_name', 'invalid_option', 'invalid_request']

/** The exit code that goes with an error of the API. */
export function exitCodeFor(code: string | undefined): number {
  if (NOT_FOUND.some(known => known === code)) return EXIT.notFound
  return USAGE.some(known => known === code) ? EXIT.usage : EXIT.failure
}

/** What to print for anything thrown, and how to end. Undefined text: nothing is to be said. */
export function explainFailure(error: unknown): { exitCode: number; text: string | undefined } {
  if (error instanceof Interrupted) return { exitCode: error.exitCode, text: undefined }
  if (error instanceof CommandFailure) return { exitCode: error.exitCode, text: error.message }
  if (error instanceof CorralError) return { exitCode: exitCodeFor(error.code), text: error.message }
  // Core's own errors (configuration, data directory, plugins, a port that is taken) speak to people already.
  const isConfig = error instanceof Error && error.name === 'ConfigError'
  return { exitCode: isConfig ? EXIT.usage : EXIT.failure, text: messageOf(error) }
}
