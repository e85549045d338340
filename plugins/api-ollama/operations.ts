import type { FastifyInstance } from 'fastify'

/**
 * Tells the routes that are registered from here on apart from the native ones, which they are a second time: under a
 * tag of their own, with ids such as `ollamaChat`.
 */
export function tagAsOllama(app: FastifyInstance): void {
  app.addHook('onRoute', route => {
    const { operationId: id, ...schema } = route.schema ?? {}
    if (!id) return
    const operationId = id.startsWith('ollama') ? id : `ollama${id[0]!.toUpperCase()}${id.slice(1)}`
    route.schema = { ...schema, tags: ['Ollama'], operationId }
  })
}
