import type { HubRequest } from '../../core/contracts/downloads.ts'
import { CorralError } from '../../core/errors.ts'

/** What an address takes for steps up and down, and not for a name. */
const isDots = (segment: string) => /^\.{1,2}$/.test(segment)

/**
 * Refuses what cannot become part of an address at a hub whose models are called `owner/name`.
 * @throws CorralError `invalid_model_name`; `repo_not_found` for the revision
 */
export function requireRequest({ id, revision }: HubRequest): void {
  const parts = id.split('/')
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  const odd = /[\u0000-\u0020\u007f\\?#]/
  if (parts.length !== 2 || odd.test(id) || parts.some(part => part === '' || isDots(part))) {
    throw new CorralError(
      'invalid_model_name',
      `${JSON.stringify(id.slice(0, 120))} names no model: a hub's models are called <owner>/<name>.`,
      { param: 'model' }
    )
  }
  if (revision === undefined) return
  if (revision === '' || odd.test(revision) || revision.split('/').some(isDots)) {
    throw new CorralError(
      'repo_not_found',
      `${JSON.stringify(revision.slice(0, 120))} is no revision: name a branch, a tag or a commit.`,
      { param: 'model' }
    )
  }
}
