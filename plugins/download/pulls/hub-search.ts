import type { Hub, HubRepository, HubRequest } from '../../../core/contracts/downloads.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'

/**
 * Asks hubs in turn for a repository: the first that has it serves it. One that cannot be asked ends the search only
 * when no later one has it.
 * @throws CorralError of the hub, see `Hub.repository`
 */
export async function findRepository(
  hubs: readonly Hub[],
  request: HubRequest,
  waiting: Waiting
): Promise<{ hub: Hub; repository: HubRepository }> {
  const failures: CorralError[] = []
  for (const hub of hubs) {
    waiting.signal?.throwIfAborted()
    try {
      return { hub, repository: await hub.repository(request, waiting) }
    } catch (error) {
      if (!(error instanceof CorralError) || waiting.signal?.aborted) throw error
      failures.push(error)
    }
  }
  const telling = failures.find(({ code }) => code !== 'repo_not_found') ?? failures[0]
  if (telling?.code !== 'repo_not_found' || failures.length === 1) throw telling ?? noHub()
  throw new CorralError(
    'repo_not_found',
    `There is no "${request.id}" at ${hubs.map(({ title }) => title).join(', nor at ')}. Check its owner and name; ` +
      'what is private needs a token.',
    { param: 'model' }
  )
}

function noHub(): CorralError {
  return new CorralError(
    'repo_not_found',
    'No hub is switched on that a name without prefix could be looked for at. Name one ("hf:<owner>/<name>"), or set ' +
      '"search" of the section "downloads" in config.yaml.',
    { param: 'model' }
  )
}
