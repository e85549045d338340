import type { IncomingMessage } from 'node:http'
import type { FastifyPluginAsync } from 'fastify'
import { CorralError } from '../../core/errors.ts'
import type { ModelName } from '../../core/models/model-name.ts'
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

/** Requests to the hosted-chat API that came through the profile, where names may have no owner. */
export interface HostedNames {
  /** Marks a request as such. Its path is below `/v1` already. */
  mark(request: IncomingMessage): void
  /** To be registered on the application. */
  hooks: FastifyPluginAsync
}

/** @param parse a name as Ollama's clients write it */
export function hostedNames(parse: (asked: string) => ModelName): HostedNames {
  const marked = new WeakSet<IncomingMessage>()
  const rename = (asked: string) => {
    const { owner, name, variant } = parse(asked)
    return variant === undefined ? `${owner}/${name}` : `${owner}/${name}:${variant}`
  }
  return {
    mark(request) {
      marked.add(request)
      request.url = withModelName(request.url ?? '/', rename) ?? request.url
    },
    hooks: async app => {
      app.addHook('preValidation', async request => {
        if (!marked.has(request.raw)) return
        const body = request.body as Record<string, unknown> | null | undefined
        if (typeof body === 'object' && typeof body?.model === 'string' && body.model !== '') {
          body.model = rename(body.model)
        }
      })
    }
  }
}
