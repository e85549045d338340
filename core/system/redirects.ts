import { isLoopback, isPrivateHost } from './private-address.ts'

/** Maximum redirects of one request. */
export const MAX_REDIRECTS = 5

/** Whether to follow a response's `Location` with the same method. */
export function isRedirect(status: number): boolean {
  return [301, 302, 303, 307, 308].includes(status)
}

/**
 * Checks a redirect. A `foreign` address gets no credentials. `refused` continues a sentence about the server.
 * @param request where it was first sent, and the address that redirected. `trustedHosts` get the credentials too, over
 * https. `mayBePrivate`: the settings name the server, or the next connection checks the address
 */
export function checkRedirect(
  location: string | undefined,
  request: { start: URL; from: URL; trustedHosts?: readonly string[]; mayBePrivate?: boolean }
): { to: URL; foreign: boolean } | { refused: string } {
  const { start, from, trustedHosts = [], mayBePrivate = false } = request
  if (!location) return { refused: 'redirects without an address' }
  if (!URL.canParse(location, from.href)) return { refused: 'redirects to an invalid address' }
  const to = new URL(location, from)
  if (to.protocol !== 'https:' && to.protocol !== 'http:') {
    return { refused: `redirects to an address of the kind "${to.protocol}"` }
  }
  if (to.username || to.password) return { refused: `redirects to an address with credentials at ${to.host}` }
  if (!mayBePrivate && isPrivateHost(to.hostname) && !isPrivateHost(start.hostname)) {
    return { refused: `is public but redirects into a private network (${to.host})` }
  }
  const wasSecure = from.protocol === 'https:' && start.protocol === 'https:'
  if (wasSecure && to.protocol === 'http:' && !isLoopback(to.hostname)) {
    return { refused: `redirects from https to the insecure ${to.origin}` }
  }
  return { to, foreign: !mayHaveCredentials(to, start, trustedHosts) }
}

/** Whether a server's credentials may be sent to an address: to its own hosts, and never over http if it uses https. */
export function mayHaveCredentials(to: URL, server: URL, trustedHosts: readonly string[]): boolean {
  if (to.protocol === 'http:' && server.protocol === 'https:') return false
  if (to.host === server.host) return true
  return to.protocol === 'https:' && trustedHosts.includes(to.host)
}
