import { CorralError, type ErrorCode } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { printable } from '../../../core/system/printable.ts'
import { retryAfterSeconds } from '../../../core/system/retry-after.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'
import { isWebPage, pageTitle } from '../../../core/system/web-page.ts'
import { type HubResponse, shownAddress } from './hub-fetch.ts'
import REFUSALS from './refusals.json' with { type: 'json' }

export interface Subject {
  /** For example `Hugging Face`, with its address if that is not the usual one. */
  title: string
  id: string
  page?: string
  revision?: string | undefined
  /** The default branch, if it is not `main`. */
  usualBranch?: string
  file?: string | undefined
  /** How to set a token: `set HF_TOKEN or …`. Undefined if a hub has none. */
  tokenAdvice?: string
  /** The settings with the hub's address: `HF_ENDPOINT or …`. */
  endpointAdvice?: string
}

/** Why a hub refuses a request. Each hub distinguishes these in its own way. */
export type RefusalKind = keyof typeof REFUSALS

/** Classifies refusals that mean the same at every hub. A web page with a 404 may be the hub's own. */
function commonKind(response: HubResponse): RefusalKind | undefined {
  const { status } = response
  if (status === 407) return 'proxy-login'
  if (status === 451) return 'legal'
  if (status === 511) return 'page'
  return isHtml(response) && (status < 400 || status === 401 || status === 403) ? 'page' : undefined
}

/** Creates the error for a hub's refusal. @param hubCode more specific than the status */
export function hubRefusal(
  kind: RefusalKind,
  response: HubResponse,
  subject: Subject,
  now: number,
  hubCode = ''
): CorralError {
  const { title, id, file, revision = 'main', usualBranch, tokenAdvice } = subject
  const hubStatus = response.status
  const retryAfter = retryAfterSeconds(response.headers, now)
  const { code, ...messages } = REFUSALS[commonKind(response) ?? kind]
  const message =
    response.credentials !== undefined && 'authorised' in messages ? messages.authorised : messages.anonymous
  const quoted = quoteServer(title, response)
  const isLasting = hubStatus >= 400 && hubStatus < 500 && ![408, 425, 429].includes(hubStatus)
  const facts: Record<string, string | undefined> = {
    endpointAdvice: 'the address of the hub',
    ...subject,
    revision,
    what: file ? `the file "${file}" of "${id}"` : `"${id}"`,
    status: hubCode && hubCode !== String(hubStatus) ? `${hubStatus}, code ${hubCode}` : String(hubStatus),
    quoted,
    badName: hubStatus === 400 || hubStatus === 422 ? quoted : '',
    when: retryAfter === undefined ? 'in a few minutes' : `in ${retryAfter} s`,
    tokenHint: tokenAdvice ? `; with a token it allows more: ${tokenAdvice}` : '',
    usualBranch: usualBranch ? `, where the usual branch is "${usualBranch}"` : '',
    wrongEndpoint: isHtml(response) ? ' It answers with an HTML page: is it the right endpoint?' : '',
    retryAdvice: isLasting ? 'Is its address right, and is there a proxy in between?' : 'Try again later.',
    pageTitle: pageTitle(response.text)
  }
  return new CorralError(
    code as ErrorCode,
    message.replace(/\{(\w+)\}/g, (_, fact: string) => String(facts[fact])),
    {
      ...(code === 'repo_not_found' ? { param: 'model' } : {}),
      details: { hub: title, repository: id, hubStatus, ...(hubCode ? { hubCode } : {}) },
      ...(retryAfter !== undefined && (kind === 'rate-limited' || kind === 'server-error') ? { retryAfter } : {})
    }
  )
}

/** The error for a model that a hub does not have, or that a reference does not name. */
export const notAtHub = (message: string, details?: Record<string, unknown>): CorralError =>
  new CorralError('repo_not_found', message, { param: 'model', ...(details && { details }) })

const isHtml = (response: Pick<HubResponse, 'headers' | 'text'>): boolean =>
  isWebPage(response.text) || /\btext\/html\b/.test(response.headers['content-type'] ?? '')

/** @param isQuoted whether to show a web page's title @throws CorralError `hub_unreachable` if it is not JSON */
export async function parseJsonResponse(
  response: Pick<HubResponse, 'url' | 'headers' | 'text'>,
  title: string,
  isQuoted = true
): Promise<unknown> {
  const { value, fault } = await parseUntrustedJson(response.text)
  if (fault === undefined) return value
  const address = shownAddress(response.url)
  if (!fault.startsWith('it is not JSON')) {
    throw new CorralError('hub_unreachable', `The reply of ${title} at ${address} cannot be used: ${fault}.`)
  }
  const page = isQuoted ? pageTitle(response.text) : ''
  const instead = isHtml(response) ? `: a proxy's or login page answered instead of the hub${page}` : ''
  const what = isHtml(response) ? 'HTML' : response.text.trim() === '' ? 'nothing' : 'something other than JSON'
  throw new CorralError(
    'hub_unreachable',
    `${address} answers with ${what}, unlike ${title}${instead}. Is the endpoint right, or is there a proxy or a login page in between?`
  )
}

/** Maximum part of a reply, in characters, that is searched for a message. */
const MAX_MESSAGE_REPLY = 64 * 1024

/** Returns a server's error message, short and on one line: from its JSON, otherwise its text. */
export function serverMessage(response: Pick<HubResponse, 'headers' | 'text'>): string {
  let message: unknown = response.headers['x-error-message']
  if (!message && !isHtml(response)) {
    const text = response.text.slice(0, MAX_MESSAGE_REPLY)
    try {
      const body: unknown = JSON.parse(text)
      message = isObject(body)
        ? (body.error ?? body.msg ?? body.Message ?? body.message ?? body.detail ?? '')
        : String(body ?? '')
      if (isObject(message)) message = message.message
    } catch {
      // If it is not JSON, the text itself is the message.
      message = text
    }
  }
  return typeof message === 'string' ? printable(message.replace(/\s+/g, ' ').trim(), MAX_MESSAGE_LENGTH) : ''
}

const MAX_MESSAGE_LENGTH = 300

/** Removes the server's own words from a response, for servers that the settings do not name. */
export function withoutServerText(response: HubResponse): HubResponse {
  const { 'x-error-message': _, ...headers } = response.headers
  return { ...response, headers, text: '' }
}

/** Returns ` <who> says: <message>.` with a server's error message, or an empty string if it sends none. */
function quoteServer(who: string, response: Pick<HubResponse, 'headers' | 'text'>): string {
  const message = serverMessage(response)
  return message === '' ? '' : ` ${who} says: ${/[.!?…]$/.test(message) ? message : `${message}.`}`
}
