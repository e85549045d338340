import { isLoopback, isPrivateHost } from '../../../core/system/private-address.ts'

/** Redirections that are followed for one question. */
export const MAX_REDIRECTS = 5

/** Status codes whose `Location` is to be followed with the same method. */
export function isRedirect(status: number): boolean {
  return status === 301 || status === 302 || status === 303 || status === 307 || status === 308
}

export interface RedirectContext {
  /** Where the question was first sent. */
  start: URL
  /** The address that answered with the redirect. */
  from: URL
  /** Hosts besides the start's that get its credentials, over https only. */
  trustedHosts: readonly string[]
}

export type Redirect = { to: URL; foreign: boolean } | { refused: string }

/**
 * What becomes of a redirect: where it leads and whether that is foreign to the hub, so that credentials stay behind;
 * or why it is not followed.
 */
export function judgeRedirect(location: string | undefined, { start, from, trustedHosts }: RedirectContext): Redirect {
  if (!location) return { refused: 'it redirects without saying where to' }
  let to: URL
  try {
    to = new URL(location, from)
  } catch {
    return { refused: 'it redirects to something that is no address' }
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
    return { refused: `it redirects from https to the unprotected ${to.origin}` }
  }
  return { to, foreign: !mayHaveCredentials(to, start, trustedHosts) }
}

/** Whether a hub's credentials may be sent to an address: to its own host, never less protected than it is itself. */
export function mayHaveCredentials(to: URL, hub: URL, trustedHosts: readonly string[]): boolean {
  if (to.protocol === 'http:' && hub.protocol === 'https:') return false
  if (to.host === hub.host) return true
  return to.protocol === 'https:' && trustedHosts.includes(to.host)
}
