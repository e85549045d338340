import { isAbsolute } from 'node:path'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import type { Static } from 'typebox'
import type { InstallRequest } from '../../core/contracts/builds.ts'
import { CorralError } from '../../core/errors.ts'
import { bodyObject } from '../../core/http/json-body.ts'
import type { NativeDependencies } from './native-dependencies.ts'
import { createNativeStreams, progressReplies } from './native-streams.ts'
import { runtimeOperations } from './operations/runtimes.ts'
import type { InstallRequestSchema } from './schemas.ts'

/** llama.cpp builds: what there is and why, installing, choosing, upgrading and removing them. */
export function runtimeRoutes(deps: NativeDependencies): FastifyPluginAsync {
  const { runtimes, negotiate, heartbeat } = deps
  const streams = createNativeStreams({ defaultFraming: 'sse', negotiate, heartbeat })
  const operations = runtimeOperations(streams.types)
  const withProgress = progressReplies(streams)

  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    app.addHook('preValidation', async request => {
      if (request.method === 'POST') request.body = bodyObject(request.body ?? {})
    })

    app.get('/runtimes', { schema: operations.report }, async () => {
      await runtimes.rank()
      return runtimes.report()
    })

    app.post('/runtimes/install', { schema: operations.install }, async (request, reply) => {
      const { body } = request
      const wanted = installRequest(body)
      return await withProgress(request, reply, { stream: body.stream ?? true }, async (signal, onProgress) => ({
        status: 'success',
        build: await runtimes.install(wanted, { signal, onProgress })
      }))
    })

    app.post('/runtimes/use', { schema: operations.use }, async (request, reply) => {
      const { runtime, stream } = request.body
      return await withProgress(request, reply, { stream: stream ?? false }, async (signal, onProgress) => ({
        status: 'success',
        build: await runtimes.use(runtime, { signal, onProgress })
      }))
    })

    app.post('/runtimes/upgrade', { schema: operations.upgrade }, async (request, reply) => {
      const stream = request.body.stream ?? true
      return await withProgress(request, reply, { stream }, async (signal, onProgress) => ({
        status: 'success',
        ...(await runtimes.upgrade({ signal, onProgress }))
      }))
    })

    app.delete('/runtimes/:id', { schema: operations.remove }, async ({ params: { id } }) => {
      await runtimes.remove(id)
      return { status: 'deleted' }
    })
  }
}

/** What a request asks to install, checked before anything is sent. @throws CorralError `invalid_request` */
function installRequest(body: Static<typeof InstallRequestSchema>): InstallRequest {
  const { runtime, version, archive, companions, sha256 } = body
  if (!archive) {
    if (sha256 || companions) {
      throw new CorralError('invalid_request', '"sha256" and "companions" go with "archive".', { param: 'archive' })
    }
    return { ...(runtime && { runtime }), ...(version && { version }) }
  }
  if (version) {
    throw new CorralError('invalid_request', 'An archive is of the version that it is: leave "version" out.', {
      param: 'version'
    })
  }
  if (![archive, ...(companions ?? [])].every(path => isAbsolute(path))) {
    throw new CorralError(
      'invalid_request',
      'Paths of archives must be absolute: the server does not know your folder.',
      {
        param: 'archive'
      }
    )
  }
  return {
    archive,
    ...(companions && { companions }),
    ...(sha256 && { sha256 }),
    ...(runtime && { runtime })
  }
}
