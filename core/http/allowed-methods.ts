import type { FastifyInstance } from 'fastify'

/**
 * Remembers the application's routes, so that a known path asked with another method can be told from an unknown path.
 * Call it before any route is registered.
 * @returns gives the methods that a path (without query) answers to; empty when no route matches.
 */
export function rememberRoutes(app: FastifyInstance): (path: string) => string[] {
  const routes: { pattern: RegExp; methods: string[] }[] = []
  app.addHook('onRoute', route => {
    const methods = Array.isArray(route.method) ? route.method : [route.method]
    // Answers preflight requests for any path; it is no resource of its own.
    if (methods.length === 1 && methods[0] === 'OPTIONS') return
    const source = route.url
      .replace(/[.+?^${}()|[\]\\]/g, '\\$&')
      .replace(/:[A-Za-z_]+/g, '[^/]+')
      .replace(/\*/g, '.+')
    routes.push({ pattern: new RegExp(`^${source}/?$`), methods })
  })
  return path => [...new Set(routes.filter(route => route.pattern.test(path)).flatMap(route => route.methods))].sort()
}
