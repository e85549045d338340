import type { FastifyReply } from 'fastify'

/** Says in a reply's headers that it depends on this header of the request, for those who keep replies. */
export function varyBy(reply: FastifyReply, header: string): void {
  const others = reply.getHeader('vary')
  if (others === undefined) reply.header('vary', header)
  else if (!String(others).toLowerCase().split(/, */).includes(header.toLowerCase())) {
    reply.header('vary', `${others}, ${header}`)
  }
}
