import { CorralError } from '../../../core/errors.ts'
import type { HubResponse } from '../http/hub-fetch.ts'
import { quoteServer, retryAdvice } from '../http/hub-response.ts'

/** The error for a refusal of another corral. */
export function corralRefusal(response: HubResponse, server: string, id: string, now: number): CorralError {
  const { status, text } = response
  const quoted = quoteServer('It', response)
  const details = { hub: server, repository: id, hubStatus: status }
  const later = retryAdvice(response, now).options
  if (status === 404 && /"model_not_found"/.test(text)) {
    return new CorralError(
      'repo_not_found',
      `The corral at ${server} has no model "${id}". It lists what it has at ${server}/api/tags.`,
      {
        param: 'model',
        details
      }
    )
  }
  if (status === 401) {
    const which = response.credentials ? 'does not accept the API key in use' : 'requires an API key'
    return new CorralError(
      'hub_forbidden',
      `The corral at ${server} ${which}. Set its address and one of its keys as corral-hub.endpoint and corral-hub.token in config.yaml.`,
      { details }
    )
  }
  if (status === 403) {
    return new CorralError('hub_forbidden', `The corral at ${server} refuses this machine.${quoted}`, { details })
  }
  if (status === 429) {
    return new CorralError('hub_rate_limited', `${server} refuses more requests.${quoted} Try again later.`, {
      details,
      ...later
    })
  }
  if (status < 500) {
    return new CorralError(
      'hub_unreachable',
      `What answers at ${server} is not a corral that serves its files (status ${status}): is the address right, and is "api-files" enabled there?`,
      { details }
    )
  }
  return new CorralError(
    'hub_unreachable',
    `The corral at ${server} could not answer (status ${status}).${quoted} Try again later.`,
    {
      details,
      ...later
    }
  )
}
