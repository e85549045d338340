import { CorralError } from '../../../../core/errors.ts'
import { isObject } from '../../../../core/system/json-object.ts'
import { printable } from '../../../../core/system/printable.ts'
import { parseUntrustedJson } from '../../../../core/system/untrusted-json.ts'
import { isWebPage, pageTitle } from '../../../../core/system/web-page.ts'
import { type HubResponse, shownAddress } from './hub-fetch.ts'

export function isHtml(response: Pick<HubResponse, 'headers' | 'text'>): boolean {
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
export function quoteServer(who: string, response: Pick<HubResponse, 'headers' | 'text'>): string {
  const message = serverMessage(response)
  return message === '' ? '' : ` ${who} says: ${/[.!?…]$/.test(message) ? message : `${message}.`}`
}
