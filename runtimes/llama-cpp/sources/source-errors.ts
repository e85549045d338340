import { CorralError } from '../../../core/errors.ts'

/** A source is unavailable for all kinds of builds. The same search does not try it again. */
export class SourceUnavailable extends Error {
  override readonly name = 'SourceUnavailable'
}

/** A source could not make a build. This was costly to find out, so it is remembered. */
export class BuildImpossible extends Error {
  override readonly name = 'BuildImpossible'
}

/** Whether a failure makes the source unavailable for all kinds. */
export function isSourceUnavailable(error: unknown): boolean {
  if (error instanceof CorralError) return error.code === 'hub_unreachable' || error.code === 'hub_rate_limited'
  return error instanceof SourceUnavailable
}
