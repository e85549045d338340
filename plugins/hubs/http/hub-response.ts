import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { type HubResponse, shownAddress } from './hub-fetch.ts'

/** Whether a response is a web page. */
export function isHtml(response: Pick<HubResponse, 'headers' | 'text'>): boolean {
  return (
    /^\s*(<!doctype html|<html)/i.test(response.text) || /\btext\/html\b/.test(response.headers['content-type'] ?? '')
  )
}

/** The JSON of a response. @throws CorralError `hub_unreachable` when it is something else */
export function jsonOf(response: HubResponse, title: string): unknown {
  try {
    return JSON.parse(response.text)
  } catch (cause) {
    const what = isHtml(response) ? 'HTML' : response.text.trim() === '' ? 'nothing' : 'something other than JSON'
    throw new CorralError(
      'hub_unreachable',
      `${shownAddress(response.url)} answers with ${what}, unlike ${title}. Is the endpoint right, or is there a proxy or a login page in between?`,
      { cause }
    )
  }
}

/** The error message of a server, short and on one line: from its JSON, or else its text. */
export function serverMessage(response: Pick<HubResponse, 'headers' | 'text'>): string {
  let message: unknown = response.headers['x-error-message']
  if (!message && !isHtml(response)) {
    try {
      const body: unknown = JSON.parse(response.text)
      message = isObject(body)
        ? (body.error ?? body.msg ?? body.Message ?? body.message ?? body.detail ?? '')
        : String(body ?? '')
      if (isObject(message)) message = message.message
    } catch {
      // Not JSON: the text itself is the message.
      message = response.text
    }
  }
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they have no place in a message
  const line = typeof message === 'string' ? message.replace(/[\u0000-\u001f\u007f\s]+/g, ' ').trim() : ''
  return line.length > 300 ? `${line.slice(0, 300)}…` : line
}

/** A response without its server's own words, for servers that the settings do not name. */
export function wordless(response: HubResponse): HubResponse {
  const { 'x-error-message': _, ...headers } = response.headers
  return { ...response, headers, text: '' }
}

/** ` <who> says: <message>.` with the error message of a server; empty where it sends none. */
export function quoteServer(who: string, response: Pick<HubResponse, 'headers' | 'text'>): string {
  const message = serverMessage(response)
  return message === '' ? '' : ` ${who} says: ${/[.!?…]$/.test(message) ? message : `${message}.`}`
}
