import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import type { ModelNaming, NativeMount } from '../../core/contracts/native-api.ts'
import { bodyObject } from '../../core/http/json-body.ts'
import { parseModelName } from '../../core/models/model-name.ts'
import { version } from '../../core/system/package-info.ts'
import { answerRoutes } from './answer.ts'
import { convertRoutes } from './convert-routes.ts'
import { embedRoutes } from './embed-routes.ts'
import { importRoutes } from './import-routes.ts'
import { modelRoutes } from './model-routes.ts'
import type { MountedDependencies, NativeDependencies } from './native-dependencies.ts'
import { createNativeStreams } from './native-streams.ts'
import { serverOperations } from './operations/server.ts'
import { pullRoutes } from './pull-routes.ts'

/** Names as the native API has them: always with their owner, the default variant without a tag. */
export const NATIVE_NAMING: ModelNaming = { parse: parseModelName, shown: ({ publicName }) => publicName }

/** The native API without its prefix. */
export function nativeRoutes(
  deps: NativeDependencies,
  { defaultFraming, naming = NATIVE_NAMING, version: shownVersion = version, modelfile }: NativeMount
): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    const mounted: MountedDependencies = {
      ...deps,
      naming,
      modelfile: modelfile ?? (() => ''),
      streams: createNativeStreams({ defaultFraming, negotiate: deps.negotiate, heartbeat: deps.heartbeat })
    }
    // A body that is missing or no object gets its own code before the schema speaks of fields.
    app.addHook('preValidation', async request => {
      if (request.method === 'POST' || request.method === 'DELETE') bodyObject(request.body)
    })
    app.get('/health', { schema: serverOperations.health }, async () => ({ status: 'ok' }))
    app.get('/version', { schema: serverOperations.version }, async () => ({ version: shownVersion }))
    await app.register(answerRoutes(mounted))
    await app.register(embedRoutes(mounted))
    await app.register(modelRoutes(mounted))
    await app.register(pullRoutes(mounted))
    await app.register(importRoutes(mounted))
    await app.register(convertRoutes(mounted))
  }
}

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
