import type { IncomingMessage } from 'node:http'
import type { FastifyPluginAsync } from 'fastify'
import type { ModelName } from '../../core/models/model-name.ts'
import { withModelName } from './profile-paths.ts'

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
