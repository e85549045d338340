import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { serverWords } from '../http/hub-answer.ts'
import { type HubAnswer, retryAfterSeconds } from '../http/hub-fetch.ts'

export interface ModelScopeSubject {
  title: string
  id: string
  page: string
  revision: string
  file?: string
  /** The hub is still examining the file. */
  inCheck?: boolean
}

const NOT_FOUND_CODES = new Set(['404', 'E3020', '10010205001'])
const TOKEN_ADVICE = 'set MODELSCOPE_API_TOKEN or modelscope.token in config.yaml'

function envelope(text: string): Record<string, unknown> {
  try {
    const body: unknown = JSON.parse(text)
    return isObject(body) ? body : {}
  } catch {
    // A page or bytes: then the status alone tells.
    return {}
  }
}

/** Whether an answer is good: its status, and the envelope, which may say otherwise. */
export function isGood({ status, text }: Pick<HubAnswer, 'status' | 'text'>): boolean {
  if (status < 200 || status >= 300) return false
  const body = envelope(text)
  const code = body.Code ?? body.code
  return (
    (body.Success ?? body.success) !== false && (code === undefined || code === 0 || code === 200 || code === '200')
  )
}

/** The error for a refusal, which may have come with status 200. */
export function modelScopeRefusal(answer: HubAnswer, subject: ModelScopeSubject, now: number): CorralError {
  const { title, id, page, revision, file } = subject
  const body = envelope(answer.text)
  const code = String(body.Code ?? body.code ?? '')
  const words = serverWords(answer)
  const said = words ? ` ${title} says: ${words.replace(/\.?$/, '.')}` : ''
  const authorised = answer.credentials !== undefined
  const what = file ? `the file "${file}" of "${id}"` : `"${id}"`
  const details = { hub: title, repository: id, hubStatus: answer.status, ...(code ? { hubCode: code } : {}) }
  const { status } = answer
  const is = (number: number) => status === number || code === String(number)

  if (is(429)) {
    const seconds = retryAfterSeconds(answer.headers, now)
    return new CorralError(
      'hub_rate_limited',
      `${title} has had too many requests from here and refuses more. Try again ${seconds === undefined ? 'in some minutes' : `in ${seconds} s`}.`,
      { details, ...(seconds === undefined ? {} : { retryAfter: seconds }) }
    )
  }
  if (subject.inCheck && status < 500) {
    return new CorralError(
      'hub_forbidden',
      `${title} is still examining ${what} and does not give it yet. Try again later.${said}`,
      { details }
    )
  }
  if (status < 500 && /\b(revision|branch|tag)\b/i.test(words)) {
    return new CorralError(
      'repo_not_found',
      `"${id}" has no revision "${revision}" at ${title}, where the usual branch is "master". Look at ${page}.${said}`,
      { param: 'model', details }
    )
  }
  if (is(401) || is(403) || /\b(permission|login|log in|unauthorized|forbidden|token)\b/i.test(words)) {
    return new CorralError(
      'hub_forbidden',
      authorised
        ? `${title} does not give ${what} to the account of the token in use: the token is wrong or expired, or the model is private or wants its terms agreed to at ${page}.${said}`
        : `${title} does not give ${what} to everybody: it is private or wants its terms agreed to. If you have access, ${TOKEN_ADVICE}; else see ${page}.${said}`,
      { details }
    )
  }
  if (is(404) || NOT_FOUND_CODES.has(code) || /not (found|exist)|no such/i.test(words)) {
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
    `${title} could not answer for ${what} (status ${status}${code && code !== String(status) ? `, code ${code}` : ''}).${said} Try again later.`,
    { details }
  )
}
