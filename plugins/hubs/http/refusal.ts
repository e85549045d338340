import { CorralError, type ErrorCode } from '../../../core/errors.ts'
import { retryAfterSeconds } from '../../../core/system/retry-after.ts'
import type { HubResponse } from './hub-fetch.ts'
import { isHtml, quoteServer } from './hub-response.ts'

/** What was requested of a hub, and how messages name it. */
export interface Subject {
  /** Such as `Hugging Face`, with its address where that is not the usual one. */
  title: string
  id: string
  /** Where people see the repository. */
  page?: string
  revision?: string | undefined
  /** The default branch, where that is not `main`. */
  usualBranch?: string
  file?: string | undefined
  /** How to set a token: `set HF_TOKEN or …`. Undefined where a hub has none. */
  tokenAdvice?: string
}

/** Why a hub refuses a request. Each hub tells them apart in its own way. */
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

interface Facts extends Subject {
  /** The file or repository, for a sentence. */
  what: string
  /** With the hub's own code where it has one. */
  status: string
  /** Whether a token was sent. */
  authorised: boolean
  /** The hub's own words as a sentence; empty where it sends none. */
  quoted: string
  /** When to try again. */
  when: string
  html: boolean
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
    ({ title, what }) => `${title} no longer has ${what}. Pull the model again to get what is there now.`
  ],
  gated: [
    'hub_forbidden',
    ({ title, what, page, tokenAdvice, authorised, quoted }) =>
      authorised
        ? `${title} allows the download of ${what} to accounts on its list only, and that of the token in use is not on it. Ask for access at ${page}, wait until it is granted, and pull again.${quoted}`
        : `${title} requires that you have agreed to its terms before you download ${what}. Agree at ${page}, then ${tokenAdvice}, and pull again.`
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
    ({ title, id, page }) => `${title} has disabled "${id}"; nobody can download it (${page}).`
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
    ({ title, what, status, quoted }) =>
      `${title} could not answer for ${what} (status ${status}).${quoted} Try again later.`
  ]
}

/**
 * The error for a hub's refusal.
 * @param hubCode the hub's own code, where that says more than the status
 */
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
  const [code, message] = REFUSALS[kind]
  const facts: Facts = {
    ...subject,
    what: file ? `the file "${file}" of "${id}"` : `"${id}"`,
    status: hubCode && hubCode !== String(hubStatus) ? `${hubStatus}, code ${hubCode}` : String(hubStatus),
    authorised: response.credentials !== undefined,
    quoted: quoteServer(title, response),
    when: retryAfter === undefined ? 'in some minutes' : `in ${retryAfter} s`,
    html: isHtml(response)
  }
  return new CorralError(code, message(facts), {
    ...(code === 'repo_not_found' ? { param: 'model' } : {}),
    details: { hub: title, repository: id, hubStatus, ...(hubCode ? { hubCode } : {}) },
    ...(retryAfter !== undefined && (kind === 'rate-limited' || kind === 'server-error') ? { retryAfter } : {})
  })
}
