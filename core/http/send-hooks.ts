import type { FastifyReply } from 'fastify'

declare module 'fastify' {
  interface FastifyRequest {
    /** Hooks `onSend` of plugins, which Fastify does not run for a reply that is streamed past it. */
    sendHooks: (() => Promise<unknown>)[] | null
  }
}

/**
 * Runs the hooks `onSend` of plugins, once, for a streamed reply whose headers have not been sent. They can set headers,
 * and get `null` as payload. @returns nothing if there are none. @throws what a hook throws
 */
export function runSendHooks({ request }: FastifyReply): Promise<void> | undefined {
  // A reply of a test may have no request.
  const hooks = request?.sendHooks
  if (!hooks) return undefined
  request.sendHooks = null
  return (async () => {
    for (const hook of hooks) await hook()
  })()
}
