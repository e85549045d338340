import type { FastifyInstance, FastifySchema, RouteOptions } from 'fastify'

/** A route as the API document tells of it. */
export interface DescribedRoute {
  method: string
  /** With Fastify's parameters, such as `/api/pulls/:id` or `/api/logs/*`. */
  url: string
  schema: FastifySchema
}

/**
 * Remembers what the application's routes say of themselves. Call it before any route is registered.
 * @returns gives them in the order of their registration. A GET answers to HEAD too, and so does not say so again.
 */
export function rememberDescribed(app: FastifyInstance): () => DescribedRoute[] {
  const routes: { method: string; url: string; options: RouteOptions }[] = []
  app.addHook('onRoute', options => {
    for (const method of [options.method].flat()) routes.push({ method, url: options.url, options })
  })
  return () => {
    const gets = new Set(routes.filter(({ method }) => method === 'GET').map(({ url }) => url))
    return routes
      .filter(({ method, url }) => method !== 'OPTIONS' && !(method === 'HEAD' && gets.has(url)))
      .filter(({ options }) => !options.config?.leftOut)
      .map(({ method, url, options: { schema = {} } }) => ({ method, url, schema }))
      .filter(({ schema }) => !schema.hide)
  }
}
