import { CorralError } from '../../../../core/errors.ts'
import { allowedLookup, requireAllowedHost } from '../../../../core/system/allowed-address.ts'
import { readBody } from '../../../../core/system/bounded-body.ts'
import { formatBytes } from '../../../../core/system/bytes.ts'
import { hasProxy, offlineVariable, openConnections } from '../../../../core/system/connections.ts'
import { version } from '../../../../core/system/package-info.ts'
import { printable } from '../../../../core/system/printable.ts'
import { bareHost } from '../../../../core/system/private-address.ts'
import { checkRedirect, isRedirect, MAX_REDIRECTS } from '../../../../core/system/redirects.ts'
import type { BuiltInCall, BuiltInContext } from './built-in-call.ts'
import { pageText } from './page-text.ts'

const MAX_PAGE_BYTES = 2 * 2 ** 20
/** Characters of one result. The model can ask for more. */
const MAX_TEXT_LENGTH = 20_000
const TIMEOUT_MS = 15_000
const TEXT = /^(text\/|application\/(\S+\+)?(json|xml|javascript|yaml)\b)/i

type Context = Pick<BuiltInContext, 'settings' | 'privateAddresses'>

/** Whether an entry of `fetch_from` names the host of an address. Without a port, it means the usual one. */
export function isListed({ hostname, port }: URL, entries: readonly string[]): boolean {
  const host = bareHost(hostname)
  return entries.some(entry => {
    const [, name = '', wanted = ''] = /^(.*?)(?::(\d+))?$/.exec(entry)!
    if (wanted !== port) return false
    if (name === '*') return true
    return name.startsWith('*.') ? host.endsWith(name.slice(1).toLowerCase()) : host === bareHost(name)
  })
}

/** @throws Error that says for the model why there is no text */
export async function fetchPage(
  { url, start = 0 }: { url: string; start?: number },
  { signal }: Pick<BuiltInCall, 'signal'>,
  context: Context
): Promise<string> {
  const offline = offlineVariable(process.env)
  if (offline) throw new Error(`${offline} is set, so corral fetches nothing`)
  if (!URL.canParse(url)) throw new Error('"url" is not an address such as https://example.org/page')
  const { address, type, text } = await load(new URL(url), signal, context)
  const isPage = /html/i.test(type)
  const page = isPage ? await pageText(text, address) : { title: '', text }
  const shown = page.text.slice(start, start + MAX_TEXT_LENGTH)
  const end = start + shown.length
  return [
    `Address: ${address.href}`,
    ...(page.title === '' ? [] : [`Title: ${printable(page.title, 300)}`]),
    '',
    shown,
    ...(end < page.text.length ? [`[To continue, fetch it again with "start": ${end} of ${page.text.length}.]`] : [])
  ].join('\n')
}

async function load(start: URL, signal: AbortSignal, { settings, privateAddresses }: Context) {
  const allowed = privateAddresses()
  const { request } = await import('undici')
  const limits = { headersTimeout: TIMEOUT_MS, bodyTimeout: TIMEOUT_MS }
  const connections = await openConnections(undefined, {
    connect: { timeout: TIMEOUT_MS, lookup: allowedLookup(allowed) },
    ...limits
  })
  try {
    let address = start
    for (let redirects = 0; ; redirects++) {
      const host = printable(address.host, 200)
      if (address.protocol !== 'https:')
        throw new Error(`only addresses with https are fetched, not ${address.protocol}`)
      if (address.username || address.password) throw new Error('an address must not contain a password')
      if (!isListed(address, settings.fetch_from)) {
        throw new Error(`${host} may not be fetched. An admin can list it in "mcp.fetch_from" in config.yaml`)
      }
      requireAllowedHost(address.hostname, allowed, !hasProxy(process.env))
      const headers = { 'user-agent': `corral/${version}`, accept: 'text/html, text/*, */*;q=0.5' }
      const response = await request(address, { dispatcher: connections.to(address), signal, headers })
      const { statusCode: status, body } = response
      const header = (name: string) => [response.headers[name] ?? []].flat().join(', ')
      if (isRedirect(status)) {
        body.on('error', () => undefined).destroy()
        if (redirects === MAX_REDIRECTS) throw new Error(`${host} redirects more than ${MAX_REDIRECTS} times`)
        const redirect = checkRedirect(header('location'), { start, from: address, mayBePrivate: true })
        if ('refused' in redirect) throw new Error(`${host} ${redirect.refused}`)
        address = redirect.to
        continue
      }
      const type = header('content-type')
      const fault = status !== 200 ? `answers ${status}` : TEXT.test(type) ? undefined : `sends "${type}", not text`
      if (fault !== undefined) {
        body.on('error', () => undefined).destroy()
        throw new Error(`${host} ${printable(fault, 200)}`)
      }
      const { bytes, isWhole } = await readBody(body, header('content-encoding'), MAX_PAGE_BYTES)
      if (!isWhole) throw new Error(`${host} sends more than ${formatBytes(MAX_PAGE_BYTES)}`)
      return { address, type, text: decode(bytes, type) }
    }
  } catch (error) {
    signal.throwIfAborted()
    if (!(error instanceof CorralError)) throw error
    throw new Error(
      `"${start.hostname}" leads to a private address. An admin can allow it in "downloads.private_addresses"`
    )
  } finally {
    await connections.close()
  }
}

/** Decodes text in the encoding of its header or of the page itself. */
function decode(bytes: Buffer, type: string): string {
  const pattern = /charset\s*=\s*["']?([\w-]+)/i
  const head = /html/i.test(type) ? bytes.toString('latin1', 0, 1024) : ''
  const [, label = 'utf-8'] = pattern.exec(type) ?? pattern.exec(head) ?? []
  try {
    return new TextDecoder(label).decode(bytes)
  } catch {
    return bytes.toString()
  }
}
