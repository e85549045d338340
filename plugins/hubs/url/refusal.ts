import { CorralError } from '../../../core/errors.ts'
import type { HubAnswer } from '../http/hub-fetch.ts'
import { serverWords } from '../http/json-answer.ts'
import { retryAfterSeconds } from '../http/retry-delay.ts'

/** The error for an address that does not give its file. @param shown the address as it may be shown */
export function addressRefusal(answer: HubAnswer, shown: string, now: number): CorralError {
  const { status } = answer
  const words = serverWords(answer)
  const said = words ? ` It says: ${words.replace(/[.!?]?$/, '.')}` : ''
  const details = { address: shown, hubStatus: status }
  const retryAfter = retryAfterSeconds(answer.headers, now)
  const later = retryAfter === undefined ? {} : { retryAfter }
  if (status === 401 || status === 403 || status === 407) {
    return new CorralError(
      'hub_forbidden',
      `${shown} is not for everybody (status ${status}). If you have access, pull it again with what its server wants: a name and password in the address (https://name:password@…), or a signed address that is still valid.${said}`,
      { details }
    )
  }
  if (status === 429) {
    const when = retryAfter === undefined ? 'in some minutes' : `in ${retryAfter} s`
    return new CorralError('hub_rate_limited', `The server of ${shown} refuses more requests. Try again ${when}.`, {
      details,
      ...later
    })
  }
  if (status < 500) {
    return new CorralError('repo_not_found', `There is no file at ${shown} (status ${status}). Check the address.`, {
      param: 'model',
      details
    })
  }
  return new CorralError(
    'hub_unreachable',
    `The server of ${shown} could not answer (status ${status}).${said} Try again later.`,
    { details, ...later }
  )
}
