import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import type { HubResponse } from '../http/hub-fetch.ts'
import { quoteServer, retryAdvice, serverMessage } from '../http/hub-response.ts'

export interface ModelScopeSubject {
  title: string
  id: string
  page: string
  revision: string
  file?: string
  /** The hub is still checking the file. */
  inCheck?: boolean
}

const NOT_FOUND_CODES = new Set(['404', 'E3020', '10010205001'])
const TOKEN_ADVICE = 'set MODELSCOPE_API_TOKEN or modelscope.token in config.yaml'

function envelope(text: string): Record<string, unknown> {
  try {
    const body: unknown = JSON.parse(text)
    return isObject(body) ? body : {}
  } catch {
    // A web page or bytes: only the status counts.
    return {}
  }
}

/** Whether a response is a success: by its status, and by its JSON, which may contradict the status. */
export function isSuccess({ status, text }: Pick<HubResponse, 'status' | 'text'>): boolean {
  if (status < 200 || status >= 300) return false
  const body = envelope(text)
  const code = body.Code ?? body.code
  return (
    (body.Success ?? body.success) !== false && (code === undefined || code === 0 || code === 200 || code === '200')
  )
}

/** The error for a refusal, which may have status 200. */
export function modelScopeRefusal(response: HubResponse, subject: ModelScopeSubject, now: number): CorralError {
  const { title, id, page, revision, file } = subject
  const body = envelope(response.text)
  const code = String(body.Code ?? body.code ?? '')
  const message = serverMessage(response)
  const quoted = quoteServer(title, response)
  const authorised = response.credentials !== undefined
  const what = file ? `the file "${file}" of "${id}"` : `"${id}"`
  const details = { hub: title, repository: id, hubStatus: response.status, ...(code ? { hubCode: code } : {}) }
  const { status } = response
  const is = (number: number) => status === number || code === String(number)

  if (is(429)) {
    const { when, options } = retryAdvice(response, now)
    return new CorralError(
      'hub_rate_limited',
      `${title} has received too many requests from here and refuses more. Try again ${when}.`,
      { details, ...options }
    )
  }
  if (subject.inCheck && status < 500) {
    return new CorralError(
      'hub_forbidden',
      `${title} is still checking ${what} and does not deliver it yet. Try again later.${quoted}`,
      { details }
    )
  }
  if (status < 500 && /\b(revision|branch|tag)\b/i.test(message)) {
    return new CorralError(
      'repo_not_found',
      `"${id}" has no revision "${revision}" at ${title}, where the usual branch is "master". Look at ${page}.${quoted}`,
      { param: 'model', details }
    )
  }
  if (is(401) || is(403) || /\b(permission|login|log in|unauthorized|forbidden|token)\b/i.test(message)) {
    return new CorralError(
      'hub_forbidden',
      authorised
        ? `${title} does not give ${what} to the account of the token in use: the token is wrong or expired, or the model is private or requires agreement to its terms at ${page}.${quoted}`
        : `${title} does not give ${what} to everyone: it is private or requires agreement to its terms. If you have access, ${TOKEN_ADVICE}; else see ${page}.${quoted}`,
      { details }
    )
  }
  if (is(404) || NOT_FOUND_CODES.has(code) || /not (found|exist)|no such/i.test(message)) {
    const advice = authorised ? 'or the token in use may not see it' : `or it is private: then ${TOKEN_ADVICE}`
    return new CorralError(
      'repo_not_found',
      file
        ? `${title} no longer has ${what}. Pull the model again to get what is there now.`
        : `${title} has no model "${id}" at the revision "${revision}": it does not exist, is spelled in another case, ${advice}. Check it at ${page}.`,
      { param: 'model', details }
    )
  }
  return new CorralError(
    'hub_unreachable',
    `${title} could not answer for ${what} (status ${status}${code && code !== String(status) ? `, code ${code}` : ''}).${quoted} Try again later.`,
    { details }
  )
}
