import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { type HubAnswer, shownAddress } from './hub-fetch.ts'

/** Whether an answer is a page for people. */
export function isHtml(answer: Pick<HubAnswer, 'headers' | 'text'>): boolean {
  return /^\s*(<!doctype html|<html)/i.test(answer.text) || /\btext\/html\b/.test(answer.headers['content-type'] ?? '')
}

/** What a good answer holds. @throws CorralError `hub_unreachable` when it is no JSON, saying what it is */
export function jsonOf(answer: HubAnswer, title: string): unknown {
  try {
    return JSON.parse(answer.text)
  } catch (cause) {
    const what = isHtml(answer) ? 'HTML' : answer.text.trim() === '' ? 'nothing' : 'something other than JSON'
    throw new CorralError(
      'hub_unreachable',
      `${shownAddress(answer.url)} answers with ${what}, not as ${title} does. Is the endpoint right, or is a proxy or a login page in between?`,
      { cause }
    )
  }
}

/** What a server says for people, short and on one line: from an error's JSON, else its text. */
export function serverWords(answer: Pick<HubAnswer, 'headers' | 'text'>): string {
  let said: unknown = answer.headers['x-error-message']
  if (!said && !isHtml(answer)) {
    try {
      const body: unknown = JSON.parse(answer.text)
      said = isObject(body)
        ? (body.error ?? body.msg ?? body.Message ?? body.message ?? body.detail ?? '')
        : String(body ?? '')
      if (isObject(said)) said = said.message
    } catch {
      // Not JSON: then the text itself is what it says.
      said = answer.text
    }
  }
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they have no place in a message
  const line = typeof said === 'string' ? said.replace(/[\u0000-\u001f\u007f\s]+/g, ' ').trim() : ''
  return line.length > 300 ? `${line.slice(0, 300)}…` : line
}
