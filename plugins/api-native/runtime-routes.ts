import { isAbsolute } from 'node:path'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { type Static, Type } from 'typebox'
import { BuildSchema, type InstallRequest, RuntimesReportSchema } from '../../core/contracts/builds.ts'
import { Done, Named } from '../../core/contracts/native-records.ts'
import { CorralError, type ErrorCode } from '../../core/errors.ts'
import { bodyObject } from '../../core/http/json-body.ts'
import { Given, loose } from '../../core/http/request-fields.ts'
import { json, nativeRoute } from '../../core/http/response-schemas.ts'
import type { NativeDependencies } from './native-dependencies.ts'

const TAG = 'llama.cpp builds'
const streamed = Given(Type.Boolean({ default: true }))
const text = (description: string) => Given(Type.String({ minLength: 1, description }))
const InstallRequestSchema = Type.Object(
  {
    runtime: text('Kind of build, such as cuda-13; the best one by default'),
    version: Given(
      Type.String({ pattern: '^[\\w.-]+$', description: 'Release such as b11347; the newest by default' })
    ),
    archive: text('Absolute path of a release archive on the server instead'),
    companions: Given(
      Type.Array(Type.String({ minLength: 1 }), { description: 'With archive: those with its libraries' })
    ),
    sha256: text('With archive: 64 hex digits that it must have'),
    stream: streamed
  },
  { ...loose, title: 'InstallRequest' }
)
const UseRequestSchema = Type.Object(
  {
    runtime: Type.String({ minLength: 1, description: 'Id of an installed build, a kind of build, or auto' }),
    stream: Given(Type.Boolean({ default: false }))
  },
  { ...loose, title: 'UseRequest' }
)

const build = Named('Build', BuildSchema)
const BuildReplySchema = Type.Object({ status: Type.Literal('success'), build }, { ...loose, title: 'BuildReply' })
export type BuildReply = Static<typeof BuildReplySchema>
const UpgradeReplySchema = Type.Object(
  {
    status: Type.Literal('success'),
    build,
    previous: build,
    changed: Type.Boolean({ description: 'Whether there was a newer one' })
  },
  loose
)
export type UpgradeReply = Static<typeof UpgradeReplySchema>

const USE_ERRORS: ErrorCode[] = ['runtime_not_found', 'runtime_missing']
const INSTALL_ERRORS: ErrorCode[] = [
  ...USE_ERRORS,
  ...(['hub_unreachable', 'checksum_mismatch', 'hub_rate_limited', 'insufficient_storage'] as const)
]

/** llama.cpp builds: what there is and why, installing, choosing, upgrading and removing them. */
export function runtimeRoutes({ runtimes, streams }: NativeDependencies): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()
    app.addHook('preValidation', async request => {
      if (request.method === 'POST') request.body = bodyObject(request.body ?? {})
    })

    const report = nativeRoute(
      TAG,
      'listRuntimes',
      'Tell which llama.cpp builds there are, which one is used, and why',
      {
        response: { 200: json('All that is known', Named('RuntimesReport', RuntimesReportSchema)) },
        errors: ['runtime_missing']
      }
    )
    app.get('/runtimes', report, async () => {
      await runtimes.rank()
      return runtimes.report()
    })

    const install = nativeRoute(TAG, 'installRuntime', 'Install a build', {
      description: 'From a release, or from an archive on the server. It is not used by that.',
      body: InstallRequestSchema,
      bodyOptional: true,
      response: { 200: streams.workReply('The installed build', BuildReplySchema) },
      errors: INSTALL_ERRORS
    })
    app.post('/runtimes/install', install, async (request, reply) => {
      const wanted = installRequest(request.body)
      const stream = request.body.stream ?? true
      return await streams.replyToWork(request, reply, { stream }, async (signal, onProgress) => ({
        status: 'success',
        build: await runtimes.install(wanted, { signal, onProgress })
      }))
    })

    const use = nativeRoute(TAG, 'useRuntime', 'Choose the build that engines run on', {
      body: UseRequestSchema,
      response: { 200: streams.workReply('The chosen build', BuildReplySchema) },
      errors: USE_ERRORS
    })
    app.post('/runtimes/use', use, async (request, reply) => {
      const { runtime, stream } = request.body
      return await streams.replyToWork(request, reply, { stream: stream ?? false }, async (signal, onProgress) => ({
        status: 'success',
        build: await runtimes.use(runtime, { signal, onProgress })
      }))
    })

    const upgrade = nativeRoute(TAG, 'upgradeRuntime', 'Install and use the newest release of the build in use', {
      description: 'When it fails its proof, the former one stays.',
      body: Type.Object({ stream: streamed }, loose),
      bodyOptional: true,
      response: { 200: streams.workReply('The build that is used now, and the former one', UpgradeReplySchema) },
      errors: INSTALL_ERRORS
    })
    app.post('/runtimes/upgrade', upgrade, async (request, reply) => {
      const stream = request.body.stream ?? true
      return await streams.replyToWork(request, reply, { stream }, async (signal, onProgress) => ({
        status: 'success',
        ...(await runtimes.upgrade({ signal, onProgress }))
      }))
    })

    const remove = nativeRoute(TAG, 'deleteRuntime', 'Remove an installed build', {
      params: Type.Object({ id: Type.String({ description: 'Id of an installed build' }) }),
      response: { 200: json('It is gone', Done('deleted')) },
      errors: ['invalid_request', 'runtime_not_found', 'runtime_in_use']
    })
    app.delete('/runtimes/:id', remove, async ({ params: { id } }) => {
      await runtimes.remove(id)
      return { status: 'deleted' }
    })
  }
}

/** The build that a request wants installed, checked before anything is sent. @throws CorralError `invalid_request` */
function installRequest(body: Static<typeof InstallRequestSchema>): InstallRequest {
  const { runtime, version, archive, companions, sha256 } = body
  const invalid = (message: string) => new CorralError('invalid_request', message, { param: 'archive' })
  if (!archive) {
    if (sha256 || companions) throw invalid('"sha256" and "companions" go with "archive".')
    return { ...(runtime && { runtime }), ...(version && { version }) }
  }
  if (version) {
    throw new CorralError('invalid_request', 'An archive is of the version that it is: leave "version" out.', {
      param: 'version'
    })
  }
  if (![archive, ...(companions ?? [])].every(path => isAbsolute(path))) {
    throw invalid('Paths of archives must be absolute: the server does not know your folder.')
  }
  return {
    archive,
    ...(companions && { companions }),
    ...(sha256 && { sha256 }),
    ...(runtime && { runtime })
  }
}
