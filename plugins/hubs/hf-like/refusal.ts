import { CorralError } from '../../../core/errors.ts'
import { isHtml, serverWords } from '../http/hub-answer.ts'
import { type HubAnswer, retryAfterSeconds } from '../http/hub-fetch.ts'

/** What was asked for, and how the hub calls things. */
export interface Subject {
  /** Such as `Hugging Face`, with its address where that is not the usual one. */
  title: string
  id: string
  /** Where people see the repository. */
  page: string
  revision?: string | undefined
  file?: string | undefined
  /** How to give a token: `set HF_TOKEN or …`. */
  tokenAdvice: string
}

type Verdict =
  | 'unknown-repository'
  | 'unknown-revision'
  | 'unknown-file'
  | 'gated'
  | 'private'
  | 'bad-token'
  | 'disabled'
  | 'forbidden'
  | 'limited'
  | 'unwell'

/** CSGHub's own code of an error, which its status does not tell: `AUTH-ERR-2`. */
export function csghubCode(text: string): string | undefined {
  return /\b(AUTH|SYS|GIT|MIRROR|REQ)-ERR-\d+/.exec(text)?.[0]
}

const CSGHUB_VERDICTS: [RegExp, Verdict][] = [
  [/^AUTH-ERR-4$/, 'bad-token'],
  [/^AUTH-ERR/, 'private'],
  [/^(SYS-ERR-3|GIT-ERR-9)$/, 'unknown-repository'],
  [/^GIT-ERR-(6|11)$/, 'unknown-revision'],
  [/^GIT-ERR-15$/, 'unknown-file']
]
const ERROR_CODES: Record<string, Verdict> = {
  GatedRepo: 'gated',
  RepoNotFound: 'unknown-repository',
  RevisionNotFound: 'unknown-revision',
  EntryNotFound: 'unknown-file'
}

/** What a refusal means: by the hub's own code first, then by status, then by its words. */
export function verdictOf(answer: HubAnswer, ofFile: boolean): Verdict {
  const { status, headers, text } = answer
  const words = serverWords(answer)
  const authorised = answer.credentials !== undefined
  const own = csghubCode(text)
  const byOwn = own && CSGHUB_VERDICTS.find(([pattern]) => pattern.test(own))?.[1]
  if (byOwn) return byOwn === 'bad-token' && !authorised ? 'private' : byOwn
  const byCode = ERROR_CODES[headers['x-error-code'] ?? '']
  if (byCode) return byCode
  if (/access to this resource is disabled/i.test(words)) return 'disabled'
  if (status === 429) return 'limited'
  const gated = /\b(gated|restricted|authorized list)\b/i.test(words)
  if (status === 401) {
    if (gated) return 'gated'
    // Its repository was described to the same reader.
    if (ofFile && !authorised) return 'private'
    return authorised || /invalid credentials/i.test(words) ? 'bad-token' : 'unknown-repository'
  }
  if (status === 403 || status === 451) return gated ? 'gated' : 'forbidden'
  if (/invalid rev|revision|no such (branch|ref)/i.test(words) && status < 500) return 'unknown-revision'
  if (status === 400 || status === 404 || status === 410 || status === 422)
    return ofFile ? 'unknown-file' : 'unknown-repository'
  return 'unwell'
}

/** Whether a status that looks like a passing trouble is the hub's final word. */
export function isFinalWord(answer: HubAnswer): boolean {
  const own = csghubCode(answer.text)
  return own !== undefined && CSGHUB_VERDICTS.some(([pattern]) => pattern.test(own))
}

const sentence = (text: string) => (text === '' || /[.!?…]$/.test(text) ? text : `${text}.`)

/** The error for a hub's refusal: `repo_not_found`, `hub_forbidden`, `hub_rate_limited` or `hub_unreachable`. */
export function refusalOf(answer: HubAnswer, subject: Subject, now: number): CorralError {
  const { title, id, page, tokenAdvice } = subject
  const words = serverWords(answer)
  const said = words ? ` ${title} says: ${sentence(words)}` : ''
  const authorised = answer.credentials !== undefined
  const what = subject.file ? `the file "${subject.file}" of "${id}"` : `"${id}"`
  const anything = subject.file ? 'file' : 'repository'
  const verdict = verdictOf(answer, subject.file !== undefined)
  const details = { hub: title, repository: id, hubStatus: answer.status }
  switch (verdict) {
    case 'unknown-repository': {
      const html = isHtml(answer) ? ' It answers with an HTML page: is it the right endpoint?' : ''
      const advice = authorised
        ? `Check its spelling, and whether the token in use may see it (${page}).`
        : `Check its spelling at ${page}; if it is private or gated, ${tokenAdvice}.`
      return new CorralError(
        'repo_not_found',
        `${title} shows no repository "${id}"${authorised ? '' : ' to readers without a token'}: it does not exist, is private, or is spelled in another case. ${advice}${html}${answer.status === 400 || answer.status === 422 ? said : ''}`,
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
          ? `${title} gives ${what} only to those on its list, and the token in use is not on it. Ask for access at ${page}, wait until it is granted, and pull again.${said}`
          : `${title} gives ${what} only to those who agreed to its terms. Agree at ${page}, then ${tokenAdvice}, and pull again.`,
        { details }
      )
    case 'private':
      return new CorralError(
        'hub_forbidden',
        authorised
          ? `${title} does not let the token in use read ${what}: it is private or not open to this account.${said}`
          : `${title} does not show ${what} to everybody: it is private or needs a login. If you have access, ${tokenAdvice}.`,
        { details }
      )
    case 'bad-token':
      return new CorralError(
        'hub_forbidden',
        authorised
          ? `${title} does not accept the token in use: it is wrong, expired or revoked. Get a new one and ${tokenAdvice}, or take it away for public models.${said}`
          : `${title} wants a token for ${what}: ${tokenAdvice}.${said}`,
        { details }
      )
    case 'disabled':
      return new CorralError('hub_forbidden', `${title} has disabled "${id}"; nobody can download it (${page}).`, {
        details
      })
    case 'forbidden':
      return new CorralError(
        'hub_forbidden',
        `${title} refuses ${what} (status ${answer.status}). ${authorised ? 'The token in use may lack the right to read it' : `It may need a token: ${tokenAdvice}`}.${said}`,
        { details }
      )
    case 'limited': {
      const seconds = retryAfterSeconds(answer.headers, now)
      const when = seconds === undefined ? 'in some minutes' : `in ${seconds} s`
      return new CorralError(
        'hub_rate_limited',
        `${title} has had too many requests from here and refuses more. Try again ${when}${authorised ? '' : `; with a token it allows more: ${tokenAdvice}`}.`,
        { details, ...(seconds === undefined ? {} : { retryAfter: seconds }) }
      )
    }
    case 'unwell': {
      const seconds = retryAfterSeconds(answer.headers, now)
      return new CorralError(
        'hub_unreachable',
        `${title} could not answer for the ${anything} ${what} (status ${answer.status}).${said} Try again later.`,
        { details, ...(seconds === undefined ? {} : { retryAfter: seconds }) }
      )
    }
  }
}
