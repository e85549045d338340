import { CorralError } from '../../../core/errors.ts'
import type { Headers, HubAnswer, HubFetch, HubQuestion } from './hub-fetch.ts'
import { mayHaveCredentials } from './redirects.ts'

/** Milliseconds in which an endpoint that was unreachable is only asked when the others are so too. */
const SHUNNED_FOR = 60_000

/** Milliseconds in which an endpoint is asked again before the next one's turn. */
const PATIENCE_BEFORE_MIRRORS = 3_000

/** Status codes of servers in front of a hub that they cannot reach. */
const GATEWAY = new Set([502, 503, 504])

export interface EndpointOptions {
  fetch: HubFetch
  /** Without a slash at the end. */
  endpoint: string
  /** Tried in order when the endpoint is unreachable. */
  mirrors: readonly string[]
  trustedHosts: readonly string[]
  /** Headers with the token, undefined where there is none. */
  credentials(): Promise<Headers | undefined>
}

export type PathQuestion = Omit<HubQuestion, 'url' | 'credentials' | 'trustedHosts'> & {
  /** Goes behind the endpoint; begins with a slash. */
  path: string
}

/** A hub's answer, and what it was asked at. */
export type EndpointAnswer = HubAnswer & { endpoint: string }

/**
 * Asks a hub, or its mirrors while it cannot be reached. The token goes to the hub's own host only.
 * @throws CorralError `hub_unreachable` of the endpoint; the signal's reason
 */
export function createEndpoints({ fetch, endpoint, mirrors, trustedHosts, credentials }: EndpointOptions) {
  const shunnedUntil = new Map<string, number>()
  const home = new URL(endpoint)

  function inOrder(): string[] {
    const shunned = (base: string) => (shunnedUntil.get(base) ?? 0) > Date.now()
    const all = [endpoint, ...mirrors]
    return [...all.filter(base => !shunned(base)), ...all.filter(shunned)]
  }

  return async function ask(question: PathQuestion): Promise<EndpointAnswer> {
    const { path, ...rest } = question
    const token = await credentials()
    let gateway: EndpointAnswer | undefined
    let failure: unknown
    const bases = inOrder()
    for (const [i, base] of bases.entries()) {
      const url = base + path
      const own = mayHaveCredentials(new URL(url), home, [])
      const patience = i < bases.length - 1 ? { patience: PATIENCE_BEFORE_MIRRORS } : {}
      try {
        const asked = { ...rest, ...patience, url, trustedHosts, ...(token && own ? { credentials: token } : {}) }
        const answer = { ...(await fetch.ask(asked)), endpoint: base }
        if (!GATEWAY.has(answer.status) || question.isFinal?.(answer)) return answer
        gateway ??= answer
      } catch (error) {
        if (!(error instanceof CorralError) || error.code !== 'hub_unreachable') throw error
        failure ??= error
      }
      shunnedUntil.set(base, Date.now() + SHUNNED_FOR)
    }
    if (gateway) return gateway
    throw failure
  }
}
export type AskHub = ReturnType<typeof createEndpoints>
