import type { FastifyReply } from 'fastify'
import { headerList } from './unknown-options.ts'

/** The header that lists tools of the request that the model was not offered. */
export const IGNORED_TOOLS = 'x-corral-ignored-tools'

/** Reports the names of tools that were left out, such as tools that run on the vendor's servers, in a header and the log. */
export function reportIgnoredTools(reply: FastifyReply, names: readonly string[]): void {
  const list = headerList(names)
  if (list === '') return
  reply.header(IGNORED_TOOLS, list)
  reply.log.info({ tools: list }, 'Tools of a request were left out, because corral does not run them.')
}
