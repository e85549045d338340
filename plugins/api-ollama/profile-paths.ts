import { CorralError } from '../../core/errors.ts'
import { DEFAULT_OWNER } from './naming.ts'

/** Where the profile lies at the server's own address. */
export const PROFILE = '/ollama'

/**
 * The path that a request to the profile's own address means: `/v1` is the hosted-chat API, as at Ollama's address, and
 * all else lies in the profile.
 * @param url of the request line: a path with its query, or a whole address as proxies are sent
 */
export function pathInProfile(url: string): string {
  const path = url.replace(/^https?:\/\/[^/?#]*/i, '')
  return isHosted(path) ? path : `${PROFILE}${path}`
}

/** The same for a path of the profile at the server's own address: `/ollama/v1/models` is `/v1/models`. */
export function hostedPath(url: string): string {
  return url.slice(PROFILE.length)
}

function isHosted(path: string): boolean {
  return /^\/v1(?:[/?]|$)/.test(path)
}

/** A hosted model's path with the model's name written anew; undefined for other paths. */
export function withModelName(path: string, rename: (asked: string) => string): string | undefined {
  const [, before, name, query = ''] = /^(\/v1\/models\/)([^/?]+)(\?.*)?$/.exec(path) ?? []
  if (before === undefined || name === undefined) return undefined
  try {
    return `${before}${rename(decodeURIComponent(name))}${query}`
  } catch (error) {
    // The route itself says what is wrong with the name; of one without an owner it would say no more than that.
    const isAbsent = error instanceof CorralError && error.code === 'model_not_found'
    return isAbsent && !/%2f/i.test(name) ? `${before}${DEFAULT_OWNER}/${name}${query}` : undefined
  }
}
