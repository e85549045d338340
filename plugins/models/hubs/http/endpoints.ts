import { CorralError } from '../../../../core/errors.ts'
import { mayHaveCredentials } from '../../../../core/system/redirects.ts'
import type { Headers, HubFetch, HubResponse, OutgoingRequest } from './hub-fetch.ts'

/** An unreachable endpoint is tried last for this long. */
const SKIP_MS = 60_000
/** An endpoint is retried for this long before the next mirror is tried. */
const RETRY_BEFORE_MIRRORS_MS = 3_000
/** Status codes of gateways that cannot reach the hub behind them. */
const GATEWAY = new Set([502, 503, 504])

type PathRequest = Omit<
  OutgoingRequest,
  'url' | 'credentials' | 'trustedHosts' | 'privateAddresses' | 'redirectsAnywhere'
> & {
  /** Appended to the endpoint; begins with a slash. */
  path: string
}

export type EndpointResponse = HubResponse & { endpoint: string }

/**
 * Sends requests to a hub, or to its mirrors while it cannot be reached. Only the hub's own host gets the token.
 * @param usual the hub's own address; any other endpoint, and mirrors, were configured by an admin
 * @param mirrors tried in order if the endpoint cannot be reached
 * @param credentials headers with the token; undefined without one
 * @throws CorralError `hub_unreachable` of the endpoint; the signal's reason
 */
export function createEndpoints(
  fetch: HubFetch,
  endpoint: string,
  usual: string,
  mirrors: readonly string[],
  trustedHosts: readonly string[],
  credentials: () => Promise<Headers | undefined>
) {
  const skippedUntil = new Map<string, number>()
  const home = new URL(endpoint)

  function inOrder(): string[] {
    const skipped = (base: string) => (skippedUntil.get(base) ?? 0) > performance.now()
    const all = [endpoint, ...mirrors]
    return [...all.filter(base => !skipped(base)), ...all.filter(skipped)]
  }

  return async function send(outgoing: PathRequest): Promise<EndpointResponse> {
    const { path, ...rest } = outgoing
    const token = await credentials()
    let gateway: EndpointResponse | undefined
    let failure: unknown
    const bases = inOrder()
    for (const [i, base] of bases.entries()) {
      const url = base + path
      const own = mayHaveCredentials(new URL(url), home, [])
      const retryTime = i < bases.length - 1 ? { retryTime: RETRY_BEFORE_MIRRORS_MS } : {}
      try {
        const redirectsAnywhere = base !== usual
        const request = {
          ...rest,
          ...retryTime,
          url,
          trustedHosts,
          redirectsAnywhere,
          credentials: own ? token : undefined
        }
        const response = { ...(await fetch(request)), endpoint: base }
        if (!GATEWAY.has(response.status) || outgoing.isFinal?.(response)) return response
        gateway ??= response
      } catch (error) {
        if (!(error instanceof CorralError) || error.code !== 'hub_unreachable') throw error
        failure ??= error
      }
      skippedUntil.set(base, performance.now() + SKIP_MS)
    }
    if (gateway) return gateway
    throw failure
  }
}
export type SendToHub = ReturnType<typeof createEndpoints>
