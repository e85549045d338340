import { request } from 'undici'
import { openWays } from '../../../core/system/server-ways.ts'

/** Milliseconds in which a package index must answer to count as reachable. */
const LIMIT = 5000

/** Whether a package index (in PyPI's simple layout) has a package and can be reached from here, through proxies too. */
export async function indexHas(index: string, name: string, signal?: AbortSignal): Promise<boolean> {
  const url = new URL(`${index.replace(/\/+$/, '')}/${name}/`)
  const ways = await openWays(undefined, { connect: { timeout: LIMIT }, headersTimeout: LIMIT, bodyTimeout: LIMIT })
  const limit = AbortSignal.timeout(LIMIT)
  try {
    const { statusCode, body } = await request(url, {
      dispatcher: ways.to(url),
      method: 'HEAD',
      signal: signal ? AbortSignal.any([limit, signal]) : limit
    })
    await body.dump()
    return statusCode < 400
  } catch {
    // Why does not matter: without it the packages come from the usual index.
    signal?.throwIfAborted()
    return false
  } finally {
    await ways.close()
  }
}
