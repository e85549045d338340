import { CorralError } from '../../../core/errors.ts'
import { serverWords } from '../http/hub-answer.ts'
import { type HubAnswer, retryAfterSeconds } from '../http/hub-fetch.ts'

/** The error for what another corral refuses. */
export function corralRefusal(answer: HubAnswer, server: string, id: string, now: number): CorralError {
  const { status, text } = answer
  const words = serverWords(answer)
  const said = words ? ` It says: ${words.replace(/[.!?]?$/, '.')}` : ''
  const details = { hub: server, repository: id, hubStatus: status }
  const retryAfter = retryAfterSeconds(answer.headers, now)
  const later = retryAfter === undefined ? {} : { retryAfter }
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
    const which = answer.credentials ? 'does not accept the API key in use' : 'wants an API key'
    return new CorralError(
      'hub_forbidden',
      `The corral at ${server} ${which}. Set its address and one of its keys as corral-hub.endpoint and corral-hub.token in config.yaml.`,
      { details }
    )
  }
  if (status === 403) {
    return new CorralError('hub_forbidden', `The corral at ${server} refuses this machine.${said}`, { details })
  }
  if (status === 429) {
    return new CorralError('hub_rate_limited', `${server} refuses more requests.${said} Try again later.`, {
      details,
      ...later
    })
  }
  if (status < 500) {
    return new CorralError(
      'hub_unreachable',
      `What answers at ${server} is no corral that gives its files away (status ${status}): is the address right, and is "api-files" switched on there?`,
      { details }
    )
  }
  return new CorralError(
    'hub_unreachable',
    `The corral at ${server} could not answer (status ${status}).${said} Try again later.`,
    {
      details,
      ...later
    }
  )
}
