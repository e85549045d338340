import { CorralError } from '../../../core/errors.ts'

/** A source can bring nothing now, whatever kind of build is asked for: it is not asked for others in the same search. */
export class SourceUnavailable extends Error {
  override readonly name = 'SourceUnavailable'
}

/** A source had what was asked for and could not make it: costly to find out, and so it is remembered. */
export class BuildImpossible extends Error {
  override readonly name = 'BuildImpossible'
}

/** Whether this failure concerns all that the source could bring. */
export function isSourceUnavailable(error: unknown): boolean {
  if (error instanceof CorralError) return error.code === 'hub_unreachable' || error.code === 'hub_rate_limited'
  return error instanceof SourceUnavailable
}
