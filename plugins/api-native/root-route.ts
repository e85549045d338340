import type { FastifyPluginAsync } from 'fastify'
import { serverOperations } from './operations/server.ts'

const LINE = 'corral is running. Try GET /api/tags, or POST /api/chat.\n'

/** For a browser. The link is there only where the page it leads to is. */
function page(link: boolean): string {
  const docs = link ? ' <a href="/docs">Read and try its API.</a>' : ''
  return `<!doctype html><html lang="en"><meta charset="utf-8"><title>corral</title><p>corral is running.${docs}</p></html>\n`
}

/** What is at the address itself: a line for programs, a page for browsers, which name HTML in what they accept. */
export const rootRoute: FastifyPluginAsync = async app => {
  app.get('/', { schema: serverOperations.root }, async (request, reply) => {
    reply.vary('Accept')
    if (!/\btext\/html\b/i.test(request.headers.accept ?? '')) return reply.type('text/plain; charset=utf-8').send(LINE)
    return reply
      .type('text/html; charset=utf-8')
      .header('content-security-policy', "default-src 'none'; frame-ancestors 'none'")
      .send(page(app.hasRoute({ method: 'GET', url: '/docs' })))
  })
}
