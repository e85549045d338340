import type { HubRequest } from '../../core/contracts/hubs.ts'
import { CorralError } from '../../core/errors.ts'

/** `.` and `..`, which an address takes for folders. */
const isDots = (segment: string) => /^\.{1,2}$/.test(segment)

/**
 * Refuses what cannot be part of an address at a hub whose models are called `owner/name`.
 * @throws CorralError `invalid_model_name`; `repo_not_found` for the revision
 */
export function checkRequest({ id, revision }: HubRequest): void {
  const parts = id.split('/')
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  const invalid = /[\u0000-\u0020\u007f\\?#]/
  if (parts.length !== 2 || invalid.test(id) || parts.some(part => part === '' || isDots(part))) {
    throw new CorralError(
      'invalid_model_name',
      `${JSON.stringify(id.slice(0, 120))} is not a model name: a hub's models are called <owner>/<name>.`,
      { param: 'model' }
    )
  }
  if (revision === undefined) return
  if (revision === '' || invalid.test(revision) || revision.split('/').some(isDots)) {
    throw new CorralError(
      'repo_not_found',
      `${JSON.stringify(revision.slice(0, 120))} is not a revision: name a branch, a tag or a commit.`,
      { param: 'model' }
    )
  }
}
