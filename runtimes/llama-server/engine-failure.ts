import { CorralError } from '../../core/errors.ts'
import { classifyFailure } from './failure.ts'
import { CAUSES, type FailureCause } from './failure-causes.ts'
import type { LogTail } from './log-tail.ts'
import type { ExitFacts } from './process-exit.ts'

/** The error for an engine that failed: its code while loading is that of the cause, later `engine_crashed`. */
export function engineFailure(engine: {
  alias: string
  ready: boolean
  tail: LogTail
  paths: readonly string[]
  exit: ExitFacts
}): CorralError {
  const { alias, ready, tail, paths, exit } = engine
  const failure = classifyFailure({ lines: ready ? tail.sinceMark() : tail.all(), exit, paths })
  const details = {
    cause: failure.cause,
    line: failure.line,
    exitCode: exit.code,
    signal: exit.signal,
    ...failure.details
  }
  return ready
    ? new CorralError('engine_crashed', `The engine of "${alias}" ended while in use. ${failure.sentence}`, { details })
    : new CorralError(failure.code, `The model "${alias}" could not be loaded. ${failure.sentence}`, { details })
}

/** The error for an engine that corral ended since it showed no sign of life. */
export function hungFailure(alias: string, limit: number): CorralError {
  return new CorralError(
    'engine_crashed',
    `The engine of "${alias}" hung: for ${Math.max(1, Math.round(limit / 1000))} s it neither sent anything nor answered nor used the processor, and was ended. Send the request again; it starts anew.`,
    { details: { cause: 'hung' satisfies FailureCause, signal: 'SIGKILL' } }
  )
}

/** The error for a llama-server that could not be started at all. */
export function startFailure(executable: string, error: NodeJS.ErrnoException): CorralError {
  return new CorralError(
    CAUSES.executable_missing.code,
    `llama-server could not be started (${error.code}: ${executable}). Choose another llama.cpp build (corral doctor shows which there are).`,
    { cause: error, details: { cause: 'executable_missing' satisfies FailureCause } }
  )
}
