import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import Fastify, { type FastifyHttpOptions, type FastifyInstance, type RouteOptions } from 'fastify'
import FindMyWay, { type HTTPMethod } from 'find-my-way'

/** Calls that configure an application itself. */
const CALLS = [
  ...(['addHook', 'addContentTypeParser', 'decorate', 'decorateRequest', 'decorateReply'] as const),
  ...(['removeAllContentTypeParsers', 'setErrorHandler', 'setNotFoundHandler'] as const)
]
/** Hooks that run once for the whole server. */
const ONCE = new Set(['onReady', 'onListen', 'preClose', 'onClose', 'onRegister'])

/** An application that answers its own routes instead of the main application. */
export interface Fork {
  readonly app: FastifyInstance
  readonly routes: readonly RouteOptions[]
}

/**
 * The routes that come and go while the server runs. Nothing can be added to a Fastify application that has started, so
 * they belong to forks: further applications with the same hooks, decorators and parsers.
 */
export class Forks {
  /** How often `use` was called. */
  changes = 0
  readonly #options: FastifyHttpOptions<Server>
  readonly #calls: [name: (typeof CALLS)[number], values: never[]][] = []
  /** Routes of the main application. */
  readonly #routes: RouteOptions[] = []
  /** The requests since the last change. */
  #generation: { open: number; ended?: () => void } = { open: 0 }
  /** Resolves when all earlier requests have ended. */
  #ended: Promise<unknown> = Promise.resolve()
  #router: FindMyWay.Instance<FindMyWay.HTTPVersion.V1> | undefined

  /** Call it before the application is configured. @param options of the application */
  constructor(main: FastifyInstance, options: FastifyHttpOptions<Server>) {
    this.#options = options
    main.addHook('onRoute', route => void this.#routes.push(route))
    const calls = this.#calls
    for (const name of CALLS) {
      const call = main[name] as unknown as (...values: never[]) => unknown
      Object.assign(main, {
        [name](this: unknown, ...values: never[]) {
          if (this === main && !ONCE.has(String(values[0]))) calls.push([name, values])
          return call.apply(this, values)
        }
      })
    }
    const { routing } = main
    main.routing = (request, response) => this.#dispatch(request, response, routing)
  }

  /** An application like the main one as it is configured now, without its routes. */
  create(): Fork {
    const app = Fastify(this.#options) as FastifyInstance
    for (const [name, values] of this.#calls) (app[name] as unknown as (...values: never[]) => unknown)(...values)
    const routes: RouteOptions[] = []
    app.addHook('onRoute', route => void routes.push(route))
    return { app, routes }
  }

  /** Lets these forks answer new requests, and no others. @returns a promise for the end of all earlier requests */
  use(forks: readonly Fork[]): Promise<unknown> {
    const router = FindMyWay({ ignoreTrailingSlash: true, maxParamLength: 1000 })
    const add = (routes: readonly RouteOptions[], store?: FastifyInstance) => {
      for (const { method, url } of routes) {
        for (const one of [method].flat() as HTTPMethod[]) {
          if (!router.hasRoute(one, url)) router.on(one, url, () => undefined, store)
        }
      }
    }
    add(this.#routes)
    for (const { app, routes } of forks) add(routes, app)
    this.#router = forks.length === 0 ? undefined : router
    this.changes++
    const last = this.#generation
    this.#generation = { open: 0 }
    const ended = last.open > 0 && new Promise<void>(resolve => (last.ended = resolve))
    this.#ended = Promise.all([this.#ended, ended])
    return this.#ended
  }

  #dispatch(request: IncomingMessage, response: ServerResponse, main: FastifyInstance['routing']): void {
    const generation = this.#generation
    generation.open++
    response.once('close', () => {
      if (--generation.open === 0) generation.ended?.()
    })
    const found = this.#router?.find(request.method as HTTPMethod, withSingleSlashes(request.url!))
    const fork = found?.store as FastifyInstance | undefined
    if (fork) fork.routing(request, response)
    else main(request, response)
  }
}

/** Merges repeated slashes in the path of a URL. The query does not change. */
export function withSingleSlashes(url: string): string {
  if (!url.startsWith('/') || !url.includes('//')) return url
  const query = url.indexOf('?')
  const path = query === -1 ? url : url.slice(0, query)
  return path.replace(/\/{2,}/g, '/') + (query === -1 ? '' : url.slice(query))
}
