import { EnvHttpProxyAgent, request } from 'undici'

/** Milliseconds in which a package index must answer to count as reachable. */
const LIMIT = 5000

/** Whether a package index (in PyPI's simple layout) has a package and can be reached from here, through proxies too. */
export async function indexHas(index: string, name: string, signal?: AbortSignal): Promise<boolean> {
  const agent = new EnvHttpProxyAgent({ connect: { timeout: LIMIT } })
  const limit = AbortSignal.timeout(LIMIT)
  try {
    const { statusCode, body } = await request(`${index.replace(/\/+$/, '')}/${name}/`, {
      dispatcher: agent,
      method: 'HEAD',
      signal: signal ? AbortSignal.any([limit, signal]) : limit
    })
    await body.dump()
    return statusCode < 400
  } catch {
    signal?.throwIfAborted()
    return false
  } finally {
    await agent.destroy()
  }
}
