import { signal } from '@preact/signals'
import type { PlanReply } from '../../../../core/contracts/native-records.ts'
import { type ApiError, ask } from './api.ts'

/* Newer revisions of models at their hubs. The page asks only when its user looks. */

/** The request for the newest revision of a model. */
export const updateOf = (model: string) => ({ model, update: true })

/** Models for which a hub had a newer revision. */
export const outdated = signal<ReadonlySet<string>>(new Set())

/** Notes whether the hub has a newer revision of a model. */
export function noteRevision(model: string, isOutdated: boolean): void {
  const next = new Set(outdated.value)
  if (isOutdated) next.add(model)
  else next.delete(model)
  outdated.value = next
}

/** Asks the hubs about models, one by one. @returns the first error, after which an unreachable hub is not asked again */
export async function checkRevisions(models: readonly string[]): Promise<ApiError | undefined> {
  outdated.value = new Set(models.filter(model => outdated.value.has(model)))
  let first: ApiError | undefined
  for (const model of models) {
    try {
      const body = { ...updateOf(model), dry_run: true }
      noteRevision(model, !(await ask<PlanReply>('POST', 'api/pull', { body })).present)
    } catch (error) {
      const { code } = error as ApiError
      // A model without files has no hub.
      if (code !== 'unsupported_capability') first ??= error as ApiError
      if (code === 'hub_unreachable' || code === 'unreachable') break
    }
  }
  return first
}
