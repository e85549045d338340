import type { FastifyReply } from 'fastify'

declare module 'fastify' {
  interface FastifyRequest {
    /** `onSend` hooks of plugins, which Fastify does not run for a hijacked reply. */
    sendHooks: (() => Promise<unknown>)[] | null
  }
}

/**
 * Runs the `onSend` hooks of plugins, once, for a streamed reply whose headers have not been sent. They can set
 * headers, and get `null` as payload.
 * @returns undefined if there are none
 * @throws the error of a hook
 */
export function runSendHooks({ request }: FastifyReply): Promise<void> | undefined {
  // In tests a reply may have no request.
  const hooks = request?.sendHooks
  if (!hooks) return undefined
  request.sendHooks = null
  return (async () => {
    for (const hook of hooks) await hook()
  })()
}
