import { CorralError, type ErrorCode } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { printable } from '../../../core/system/printable.ts'
import { retryAfterSeconds } from '../../../core/system/retry-after.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'
import { isWebPage, pageTitle } from '../../../core/system/web-page.ts'
import { type HubResponse, shownAddress } from './hub-fetch.ts'

/** What was requested of a hub, and how messages name it. */
export interface Subject {
  /** For example `Hugging Face`, with its address if that is not the usual one. */
  title: string
  id: string
  /** The repository's web page. */
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
export type RefusalKind =
  | 'unknown-repository'
  | 'unknown-revision'
  | 'unknown-file'
  | 'gated'
  | 'private'
  | 'bad-token'
  | 'disabled'
  | 'in-check'
  | 'forbidden'
  | 'rate-limited'
  | 'server-error'
  | 'no-search'
  | 'legal'
  | 'proxy-login'
  | 'page'

interface Facts extends Subject {
  /** The file or repository, as a phrase. */
  what: string
  /** With the hub's own code, if any. */
  status: string
  /** Whether a token was sent. */
  authorised: boolean
  /** The hub's own words as a sentence, or empty. */
  quoted: string
  /** When to try again. */
  when: string
  html: boolean
  /** The title of a web page, in brackets. */
  pageTitle: string
}

const REFUSALS: Record<RefusalKind, [code: ErrorCode, message: (facts: Facts) => string]> = {
  'unknown-repository': [
    'repo_not_found',
    ({ title, id, page, tokenAdvice, authorised, quoted, status, html }) => {
      const readers = authorised ? '' : ' to readers without a token'
      const advice = authorised
        ? `Check its spelling, and whether the token in use may see it (${page}).`
        : `Check its spelling at ${page}; if it is private or gated, ${tokenAdvice}.`
      const hint = html ? ' It answers with an HTML page: is it the right endpoint?' : ''
      const why = status === '400' || status === '422' ? quoted : ''
      return `${title} shows no repository "${id}"${readers}: it does not exist, is private, or is spelled in another case. ${advice}${hint}${why}`
    }
  ],
  'unknown-revision': [
    'repo_not_found',
    ({ title, id, page, revision = 'main', usualBranch }) => {
      const usual = usualBranch ? `, where the usual branch is "${usualBranch}"` : ''
      return `"${id}" has no revision "${revision}" at ${title}${usual}. Its branches, tags and commits are listed at ${page}.`
    }
  ],
  'unknown-file': [
    'repo_not_found',
    ({ title, what }) => `${title} no longer has ${what}. Pull the model again to get the current version.`
  ],
  gated: [
    'hub_forbidden',
    ({ title, what, page, tokenAdvice, authorised, quoted }) =>
      authorised
        ? `${title} allows downloads of ${what} only for approved accounts, and the account of the token in use is not approved. Ask for access at ${page}, wait until it is granted, and pull again.${quoted}`
        : `${title} requires you to agree to its terms before you download ${what}. Agree at ${page}, then ${tokenAdvice}, and pull again.`
  ],
  private: [
    'hub_forbidden',
    ({ title, what, tokenAdvice, authorised, quoted }) =>
      authorised
        ? `${title} does not let the token in use read ${what}: it is private, not open to this account, or requires agreement to its terms.${quoted}`
        : `${title} does not show ${what} to everyone: it is private or needs a login. If you have access, ${tokenAdvice}.${quoted}`
  ],
  'bad-token': [
    'hub_forbidden',
    ({ title, what, tokenAdvice, authorised, quoted }) =>
      authorised
        ? `${title} does not accept the token in use: it is wrong, expired or revoked. Get a new one and ${tokenAdvice}, or remove it for public models.${quoted}`
        : `${title} requires a token for ${what}: ${tokenAdvice}.${quoted}`
  ],
  disabled: [
    'hub_forbidden',
    ({ title, id, page }) => `${title} has disabled "${id}", and it cannot be downloaded (${page}).`
  ],
  'in-check': [
    'hub_forbidden',
    ({ title, what, quoted }) =>
      `${title} is still checking ${what} and does not deliver it yet. Try again later.${quoted}`
  ],
  forbidden: [
    'hub_forbidden',
    ({ title, what, status, tokenAdvice, authorised, quoted }) => {
      const advice = authorised
        ? 'The token in use may lack the right to read it'
        : `It may need a token: ${tokenAdvice}`
      return `${title} refuses ${what} (status ${status}). ${advice}.${quoted}`
    }
  ],
  'rate-limited': [
    'hub_rate_limited',
    ({ title, when, tokenAdvice, authorised }) => {
      const advice = authorised || !tokenAdvice ? '' : `; with a token it allows more: ${tokenAdvice}`
      return `${title} has received too many requests from here and refuses more. Try again ${when}${advice}.`
    }
  ],
  'server-error': [
    'hub_unreachable',
    ({ title, what, status, quoted }) => {
      const isLasting = /^4(?!08|25|29)/.test(status)
      const advice = isLasting ? 'Is its address right, and is there a proxy in between?' : 'Try again later.'
      return `${title} could not answer for ${what} (status ${status}).${quoted} ${advice}`
    }
  ],
  'no-search': [
    'hub_unreachable',
    ({ title, status, endpointAdvice = 'the address of the hub' }) =>
      `${title} has no search at this address (status ${status}). Check ${endpointAdvice}.`
  ],
  legal: [
    'hub_forbidden',
    ({ title, what, status, quoted }) =>
      `${title} does not deliver ${what} for legal reasons (status ${status}).${quoted} Choose another repository.`
  ],
  'proxy-login': [
    'hub_unreachable',
    ({ title, what, status }) =>
      `A proxy in front of ${title} requires a user name and a password (status ${status}), so ${what} could not be requested. ` +
      "Put them into HTTPS_PROXY or the hub's proxy setting: http://name:password@host:port."
  ],
  page: [
    'hub_unreachable',
    ({ title, what, status, pageTitle }) =>
      `A proxy's or login page answered instead of ${title}${pageTitle} when ${what} was requested (status ${status}). ` +
      'Log in to this network in a browser, or check the proxy settings and the address of the hub.'
  ]
}

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
  const { title, id, file } = subject
  const hubStatus = response.status
  const retryAfter = retryAfterSeconds(response.headers, now)
  const [code, message] = REFUSALS[commonKind(response) ?? kind]
  const facts: Facts = {
    ...subject,
    what: file ? `the file "${file}" of "${id}"` : `"${id}"`,
    status: hubCode && hubCode !== String(hubStatus) ? `${hubStatus}, code ${hubCode}` : String(hubStatus),
    authorised: response.credentials !== undefined,
    quoted: quoteServer(title, response),
    when: retryAfter === undefined ? 'in a few minutes' : `in ${retryAfter} s`,
    html: isHtml(response),
    pageTitle: pageTitle(response.text)
  }
  return new CorralError(code, message(facts), {
    ...(code === 'repo_not_found' ? { param: 'model' } : {}),
    details: { hub: title, repository: id, hubStatus, ...(hubCode ? { hubCode } : {}) },
    ...(retryAfter !== undefined && (kind === 'rate-limited' || kind === 'server-error') ? { retryAfter } : {})
  })
}

/** The error for a model that a hub does not have, or that a reference does not name. */
export function notAtHub(message: string, details?: Record<string, unknown>): CorralError {
  return new CorralError('repo_not_found', message, { param: 'model', ...(details && { details }) })
}

function isHtml(response: Pick<HubResponse, 'headers' | 'text'>): boolean {
  return isWebPage(response.text) || /\btext\/html\b/.test(response.headers['content-type'] ?? '')
}

/**
 * Parses a response's JSON.
 * @param isQuoted whether to show a web page's title: not for a server that the client chose
 * @throws CorralError `hub_unreachable` if it is something else, or too large
 */
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
      // Not JSON: the text itself is the message.
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
