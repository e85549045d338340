import { CAUSES, type FailureCause, isFailureCause, type Reaction } from './failure-causes.ts'

/** What to do about an engine's failure; unknown causes are given up. */
export function reactionTo(cause: FailureCause | (string & {}) | undefined): Reaction {
  return isFailureCause(cause) ? CAUSES[cause].reaction : 'give_up'
}
