import type { HubResponse } from '../http/hub-fetch.ts'
import { serverMessage } from '../http/hub-response.ts'
import type { RefusalKind } from '../http/refusal.ts'

/** CSGHub's own error codes, which are more specific than the status. */
const CSGHUB_KINDS: [RegExp, RefusalKind][] = [
  [/^AUTH-ERR-4$/, 'bad-token'],
  [/^AUTH-ERR/, 'private'],
  [/^(SYS-ERR-3|GIT-ERR-9)$/, 'unknown-repository'],
  [/^GIT-ERR-(6|11)$/, 'unknown-revision'],
  [/^GIT-ERR-15$/, 'unknown-file']
]

function csghubKind(text: string): RefusalKind | undefined {
  const code = /\b(AUTH|SYS|GIT|MIRROR|REQ)-ERR-\d+/.exec(text)?.[0]
  return CSGHUB_KINDS.find(([pattern]) => code !== undefined && pattern.test(code))?.[1]
}

/** Hugging Face's error codes. */
const ERROR_CODES: Record<string, RefusalKind> = {
  GatedRepo: 'gated',
  RepoNotFound: 'unknown-repository',
  RevisionNotFound: 'unknown-revision',
  EntryNotFound: 'unknown-file'
}

/** Classifies a refusal: by the hub's error code first, then by its status and message. */
export function refusalKind(response: HubResponse, isFile: boolean): RefusalKind {
  const { status, headers, text } = response
  const message = serverMessage(response)
  const authorised = response.credentials !== undefined
  const byOwn = csghubKind(text)
  if (byOwn) return byOwn === 'bad-token' && !authorised ? 'private' : byOwn
  const byCode = ERROR_CODES[headers['x-error-code'] ?? '']
  if (byCode) return byCode
  if (/access to this resource is disabled/i.test(message)) return 'disabled'
  if (status === 429) return 'rate-limited'
  const gated = /\b(gated|restricted|authorized list)\b/i.test(message)
  if (status === 401) {
    if (gated) return 'gated'
    // The same reader could see the file's repository.
    if (isFile && !authorised) return 'private'
    return authorised || /invalid credentials/i.test(message) ? 'bad-token' : 'unknown-repository'
  }
  if (status === 403 || status === 451) return gated ? 'gated' : 'forbidden'
  if (/invalid rev|revision|no such (branch|ref)/i.test(message) && status < 500) return 'unknown-revision'
  if (status === 400 || status === 404 || status === 410 || status === 422)
    return isFile ? 'unknown-file' : 'unknown-repository'
  return 'server-error'
}

/** Returns whether a response with a temporary status is in fact final. */
export function isFinalRefusal(response: HubResponse): boolean {
  return csghubKind(response.text) !== undefined
}
