import { isLoopback, isPrivateHost } from '../../../core/system/private-address.ts'

/** Redirects that are followed for one request. */
export const MAX_REDIRECTS = 5

/** Status codes whose `Location` is to be followed with the same method. */
export function isRedirect(status: number): boolean {
  return status === 301 || status === 302 || status === 303 || status === 307 || status === 308
}

export interface RedirectContext {
  /** Where the request was first sent. */
  start: URL
  /** The address that redirected. */
  from: URL
  /** Other hosts that get the credentials, over https only. */
  trustedHosts: readonly string[]
}

export type Redirect = { to: URL; foreign: boolean } | { refused: string }

/**
 * Checks a redirect: where it leads, and whether that is foreign to the hub, so that no credentials are sent; or why it
 * is not followed.
 */
export function checkRedirect(location: string | undefined, { start, from, trustedHosts }: RedirectContext): Redirect {
  if (!location) return { refused: 'it redirects without saying where to' }
  let to: URL
  try {
    to = new URL(location, from)
  } catch {
    return { refused: 'it redirects to an invalid address' }
  }
  if (to.protocol !== 'https:' && to.protocol !== 'http:') {
    return { refused: `it redirects to an address of the kind "${to.protocol}"` }
  }
  if (to.username || to.password) return { refused: `it redirects to an address with credentials at ${to.host}` }
  if (isPrivateHost(to.hostname) && !isPrivateHost(start.hostname)) {
    return { refused: `it is public but redirects into a private network (${to.host})` }
  }
  if (
    from.protocol === 'https:' &&
    to.protocol === 'http:' &&
    start.protocol === 'https:' &&
    !isLoopback(to.hostname)
  ) {
    return { refused: `it redirects from https to the insecure ${to.origin}` }
  }
  return { to, foreign: !mayHaveCredentials(to, start, trustedHosts) }
}

/** Whether a hub's credentials may be sent to an address: to its own hosts, and never over http if the hub uses https. */
export function mayHaveCredentials(to: URL, hub: URL, trustedHosts: readonly string[]): boolean {
  if (to.protocol === 'http:' && hub.protocol === 'https:') return false
  if (to.host === hub.host) return true
  return to.protocol === 'https:' && trustedHosts.includes(to.host)
}
