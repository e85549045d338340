import type { CorralError } from '../../../../core/errors.ts'
import { isObject } from '../../../../core/system/json-object.ts'
import { parseUntrustedJson } from '../../../../core/system/untrusted-json.ts'
import type { HubResponse } from '../http/hub-fetch.ts'
import { serverMessage } from '../http/hub-response.ts'
import { hubRefusal, type RefusalKind, type Subject } from '../http/refusal.ts'

const NOT_FOUND_CODES = new Set(['404', 'E3020', '10010205001'])

/** Parses a reply's object. Empty for a web page or bytes: then only the status matters. */
export async function parseEnvelope({ text }: Pick<HubResponse, 'text'>): Promise<Record<string, unknown>> {
  const { value } = await parseUntrustedJson(text)
  return isObject(value) ? value : {}
}

/** Returns whether a response is a success: by its status, and by its JSON, which may contradict the status. */
export function isSuccess({ status }: Pick<HubResponse, 'status'>, body: Record<string, unknown>): boolean {
  if (status < 200 || status >= 300) return false
  const code = body.Code ?? body.code
  return (
    (body.Success ?? body.success) !== false && (code === undefined || code === 0 || code === 200 || code === '200')
  )
}

/** Creates the error for a refusal, which may have status 200. @param inCheck the hub is still checking the file */
export function modelScopeRefusal(
  response: HubResponse,
  body: Record<string, unknown>,
  subject: Pick<Subject, 'title' | 'id' | 'page' | 'revision' | 'file'>,
  now: number,
  inCheck = false
): CorralError {
  const code = String(body.Code ?? body.code ?? '')
  const advised = {
    ...subject,
    usualBranch: 'master',
    tokenAdvice: 'set MODELSCOPE_API_TOKEN or modelscope.token in config.yaml'
  }
  return hubRefusal(classifyRefusal(response, code, subject.file !== undefined, inCheck), response, advised, now, code)
}

function classifyRefusal(response: HubResponse, code: string, isFile: boolean, inCheck: boolean): RefusalKind {
  const { status } = response
  const message = serverMessage(response)
  const is = (number: number) => status === number || code === String(number)
  if (is(429)) return 'rate-limited'
  if (inCheck && status < 500) return 'in-check'
  if (status < 500 && /\b(revision|branch|tag)\b/i.test(message)) return 'unknown-revision'
  if (is(401) && response.credentials) return 'bad-token'
  if (is(401) || is(403) || /\b(permission|login|log in|unauthorized|forbidden|token)\b/i.test(message))
    return 'private'
  if (is(404) || NOT_FOUND_CODES.has(code) || /not (found|exist)|no such/i.test(message)) {
    return isFile ? 'unknown-file' : 'unknown-repository'
  }
  return 'server-error'
}
