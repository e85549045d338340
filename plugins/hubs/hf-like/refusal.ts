import { CorralError } from '../../../core/errors.ts'
import type { HubResponse } from '../http/hub-fetch.ts'
import { isHtml, quoteServer, retryAdvice, serverMessage } from '../http/hub-response.ts'

/** What was requested, and how messages name it. */
export interface Subject {
  /** Such as `Hugging Face`, with its address where that is not the usual one. */
  title: string
  id: string
  /** Where people see the repository. */
  page: string
  revision?: string | undefined
  file?: string | undefined
  /** How to set a token: `set HF_TOKEN or …`. */
  tokenAdvice: string
}

type RefusalKind =
  | 'unknown-repository'
  | 'unknown-revision'
  | 'unknown-file'
  | 'gated'
  | 'private'
  | 'bad-token'
  | 'disabled'
  | 'forbidden'
  | 'rate-limited'
  | 'server-error'

/** CSGHub's own error code, which says more than the status: `AUTH-ERR-2`. */
export function csghubCode(text: string): string | undefined {
  return /\b(AUTH|SYS|GIT|MIRROR|REQ)-ERR-\d+/.exec(text)?.[0]
}

const CSGHUB_KINDS: [RegExp, RefusalKind][] = [
  [/^AUTH-ERR-4$/, 'bad-token'],
  [/^AUTH-ERR/, 'private'],
  [/^(SYS-ERR-3|GIT-ERR-9)$/, 'unknown-repository'],
  [/^GIT-ERR-(6|11)$/, 'unknown-revision'],
  [/^GIT-ERR-15$/, 'unknown-file']
]
const ERROR_CODES: Record<string, RefusalKind> = {
  GatedRepo: 'gated',
  RepoNotFound: 'unknown-repository',
  RevisionNotFound: 'unknown-revision',
  EntryNotFound: 'unknown-file'
}

/** What a refusal means: by the hub's error code first, then by its status and message. */
export function refusalKind(response: HubResponse, ofFile: boolean): RefusalKind {
  const { status, headers, text } = response
  const message = serverMessage(response)
  const authorised = response.credentials !== undefined
  const own = csghubCode(text)
  const byOwn = own && CSGHUB_KINDS.find(([pattern]) => pattern.test(own))?.[1]
  if (byOwn) return byOwn === 'bad-token' && !authorised ? 'private' : byOwn
  const byCode = ERROR_CODES[headers['x-error-code'] ?? '']
  if (byCode) return byCode
  if (/access to this resource is disabled/i.test(message)) return 'disabled'
  if (status === 429) return 'rate-limited'
  const gated = /\b(gated|restricted|authorized list)\b/i.test(message)
  if (status === 401) {
    if (gated) return 'gated'
    // The same reader was shown the repository of the file.
    if (ofFile && !authorised) return 'private'
    return authorised || /invalid credentials/i.test(message) ? 'bad-token' : 'unknown-repository'
  }
  if (status === 403 || status === 451) return gated ? 'gated' : 'forbidden'
  if (/invalid rev|revision|no such (branch|ref)/i.test(message) && status < 500) return 'unknown-revision'
  if (status === 400 || status === 404 || status === 410 || status === 422)
    return ofFile ? 'unknown-file' : 'unknown-repository'
  return 'server-error'
}

/** Whether a response with a temporary status is final all the same. */
export function isFinalRefusal(response: HubResponse): boolean {
  const own = csghubCode(response.text)
  return own !== undefined && CSGHUB_KINDS.some(([pattern]) => pattern.test(own))
}

/** The error for a hub's refusal: `repo_not_found`, `hub_forbidden`, `hub_rate_limited` or `hub_unreachable`. */
export function refusalOf(response: HubResponse, subject: Subject, now: number): CorralError {
  const { title, id, page, tokenAdvice } = subject
  const quoted = quoteServer(title, response)
  const authorised = response.credentials !== undefined
  const what = subject.file ? `the file "${subject.file}" of "${id}"` : `"${id}"`
  const anything = subject.file ? 'file' : 'repository'
  const kind = refusalKind(response, subject.file !== undefined)
  const details = { hub: title, repository: id, hubStatus: response.status }
  switch (kind) {
    case 'unknown-repository': {
      const html = isHtml(response) ? ' It answers with an HTML page: is it the right endpoint?' : ''
      const advice = authorised
        ? `Check its spelling, and whether the token in use may see it (${page}).`
        : `Check its spelling at ${page}; if it is private or gated, ${tokenAdvice}.`
      return new CorralError(
        'repo_not_found',
        `${title} shows no repository "${id}"${authorised ? '' : ' to readers without a token'}: it does not exist, is private, or is spelled in another case. ${advice}${html}${response.status === 400 || response.status === 422 ? quoted : ''}`,
        { param: 'model', details }
      )
    }
    case 'unknown-revision':
      return new CorralError(
        'repo_not_found',
        `"${id}" has no revision "${subject.revision ?? 'main'}" at ${title}. Its branches, tags and commits are listed at ${page}.`,
        { param: 'model', details }
      )
    case 'unknown-file':
      return new CorralError(
        'repo_not_found',
        `${title} no longer has ${what}. Pull the model again to get what is there now.`,
        { param: 'model', details }
      )
    case 'gated':
      return new CorralError(
        'hub_forbidden',
        authorised
          ? `${title} gives ${what} only to accounts on its list, and that of the token in use is not on it. Ask for access at ${page}, wait until it is granted, and pull again.${quoted}`
          : `${title} gives ${what} only to those who have agreed to its terms. Agree at ${page}, then ${tokenAdvice}, and pull again.`,
        { details }
      )
    case 'private':
      return new CorralError(
        'hub_forbidden',
        authorised
          ? `${title} does not let the token in use read ${what}: it is private or not open to this account.${quoted}`
          : `${title} does not show ${what} to everyone: it is private or needs a login. If you have access, ${tokenAdvice}.`,
        { details }
      )
    case 'bad-token':
      return new CorralError(
        'hub_forbidden',
        authorised
          ? `${title} does not accept the token in use: it is wrong, expired or revoked. Get a new one and ${tokenAdvice}, or remove it for public models.${quoted}`
          : `${title} wants a token for ${what}: ${tokenAdvice}.${quoted}`,
        { details }
      )
    case 'disabled':
      return new CorralError('hub_forbidden', `${title} has disabled "${id}"; nobody can download it (${page}).`, {
        details
      })
    case 'forbidden':
      return new CorralError(
        'hub_forbidden',
        `${title} refuses ${what} (status ${response.status}). ${authorised ? 'The token in use may lack the right to read it' : `It may need a token: ${tokenAdvice}`}.${quoted}`,
        { details }
      )
    case 'rate-limited': {
      const { when, options } = retryAdvice(response, now)
      return new CorralError(
        'hub_rate_limited',
        `${title} has received too many requests from here and refuses more. Try again ${when}${authorised ? '' : `; with a token it allows more: ${tokenAdvice}`}.`,
        { details, ...options }
      )
    }
    case 'server-error': {
      const { options } = retryAdvice(response, now)
      return new CorralError(
        'hub_unreachable',
        `${title} could not answer for the ${anything} ${what} (status ${response.status}).${quoted} Try again later.`,
        { details, ...options }
      )
    }
  }
}
