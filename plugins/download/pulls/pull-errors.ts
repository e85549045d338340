import type { PullPlan, PullRecord } from '../../../core/contracts/downloads.ts'
import { CorralError, isSystemError } from '../../../core/errors.ts'
import { toCorralError } from '../../../core/http/native-error.ts'
import { bareName } from '../../../core/models/model-name.ts'

export function pullCancelled({ model }: Pick<PullRecord, 'model'>): CorralError {
  return new CorralError(
    'pull_cancelled',
    `The pull of "${model}" was cancelled, and what it had fetched is removed. Pull it again to have it.`,
    { param: 'model' }
  )
}

/** For the watchers of a pull that is paused. */
export function pullPaused({ model }: Pick<PullRecord, 'model'>): CorralError {
  return new CorralError(
    'pull_cancelled',
    `The pull of "${model}" was paused; what it has fetched is kept. Pull it again, or resume it, to go on.`,
    { param: 'model' }
  )
}

export function pullNotFound(id: string): CorralError {
  const shown = JSON.stringify(id.length > 200 ? `${id.slice(0, 200)}…` : id)
  return new CorralError(
    'model_not_found',
    `There is no pull ${shown}. "corral pulls" (GET /api/pulls) lists unfinished pulls.`,
    { param: 'id' }
  )
}

export function severalPulls(id: string, records: PullRecord[]): CorralError {
  return new CorralError(
    'invalid_request',
    `There are several pulls of "${id}": ${records.map(({ model }) => model).join(', ')}. Name one of them.`,
    { param: 'id' }
  )
}

export function otherRevisionRunning({ model, id }: PullRecord, running: PullPlan, wanted: PullPlan): CorralError {
  return new CorralError(
    'model_exists',
    `"${model}" is being pulled at revision ${running.repository.revision}, and revision ` +
      `${wanted.repository.revision} has other files. Wait for it, or cancel the pull ${id} first.`,
    { param: 'model' }
  )
}

export function otherOriginRunning({ model, origin, id }: PullRecord, wanted: PullPlan): CorralError {
  return new CorralError(
    'model_exists',
    `"${model}" is being pulled from ${origin} already, and this pull is from ${wanted.repository.address}. ` +
      `Choose another name ("as"), or cancel the pull ${id} first.`,
    { param: 'model' }
  )
}

export function shuttingDown(): CorralError {
  return new CorralError(
    'shutting_down',
    'corral is shutting down. What was fetched is kept; pull again when it runs again.'
  )
}

/** The error that ended a pull, in terms of the pull. */
export function pullFailure(error: unknown, { name }: PullPlan): CorralError {
  if (isSystemError(error, 'ENOSPC', 'EDQUOT')) {
    return new CorralError(
      'insufficient_storage',
      `The disk is full: "${bareName(name)}" cannot be pulled. Remove models that are not needed, or choose another ` +
        'disk with CORRAL_MODELS; what was fetched is kept.',
      { cause: error }
    )
  }
  return toCorralError(error)
}
