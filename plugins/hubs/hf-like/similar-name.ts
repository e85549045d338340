import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import type { AskHub } from '../http/endpoints.ts'

/** Milliseconds that the search for a better name may take: an error waits for it. */
const LIMIT = 3_000

/** The id among a search's results that differs from the asked one by case only. */
export function sameButForCase(results: unknown, id: string): string | undefined {
  const ids = Array.isArray(results) ? results.filter(isObject).map(result => result.id ?? result.modelId) : []
  return ids.find(other => typeof other === 'string' && other !== id && other.toLowerCase() === id.toLowerCase()) as
    | string
    | undefined
}

/**
 * Looks for a repository whose name differs by case only. It makes an error's message better and nothing else, so that
 * a search which fails finds nothing.
 * @throws the signal's reason
 */
export async function similarName(ask: AskHub, pathPrefix: string, id: string, signal: AbortSignal | undefined) {
  const [owner, name] = id.split('/') as [string, string]
  const limit = AbortSignal.timeout(LIMIT)
  // The owner's case may be the wrong one: then only the name finds it.
  const queries: Record<string, string>[] = [
    { search: name, author: owner, limit: '5' },
    { search: name, limit: '50' }
  ]
  for (const query of queries) {
    try {
      const answer = await ask({
        path: `${pathPrefix}/api/models?${new URLSearchParams(query)}`,
        signal: signal ? AbortSignal.any([signal, limit]) : limit,
        patience: 0
      })
      const found = answer.status === 200 ? sameButForCase(JSON.parse(answer.text), id) : undefined
      if (found !== undefined) return found
    } catch (error) {
      signal?.throwIfAborted()
      const harmless = error === limit.reason || error instanceof SyntaxError || error instanceof CorralError
      if (!harmless) throw error
      return undefined
    }
  }
  return undefined
}
