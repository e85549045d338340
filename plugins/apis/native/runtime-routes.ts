import { basename, isAbsolute } from 'node:path'
import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import { BuildSchema, type InstallRequest, RuntimesReportSchema } from '../../../core/contracts/builds.ts'
import { Done, Named } from '../../../core/contracts/native-records.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { type ErrorCode, invalidRequest } from '../../../core/errors.ts'
import { Flag, Given, Loose, Text, Titled } from '../../../core/http/request-fields.ts'
import { DOWNLOAD_ERRORS, json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { withoutServerPaths } from '../../../core/http/server-folders.ts'
import type { NativeDependencies } from './native-dependencies.ts'

const streamed = Given(Type.Boolean({ default: true }))
const text = (description: string) => Given(Type.String({ minLength: 1, description }))
const InstallRequestSchema = Titled('InstallRequest', {
  runtime: text('Kind of build, such as cuda-13; the best one by default'),
  version: Given(Type.String({ pattern: '^[\\w.-]+$' })),
  archive: text('Instead of a release: absolute path of an archive on the server'),
  companions: Given(Type.Array(Type.String({ minLength: 1 }))),
  sha256: text('With archive: the expected SHA-256'),
  stream: streamed
})
const UseRequestSchema = Titled('UseRequest', {
  runtime: Type.String({ minLength: 1 }),
  stream: Given(Type.Boolean({ default: false }))
})

const build = Named('Build', BuildSchema)
const BuildReplySchema = Titled('BuildReply', { status: Type.Literal('success'), build })
export type BuildReply = Static<typeof BuildReplySchema>
const UpgradeReplySchema = Loose({
  status: Type.Literal('success'),
  build,
  previous: build,
  changed: Flag('Whether there was a newer release')
})
export type UpgradeReply = Static<typeof UpgradeReplySchema>

const USE_ERRORS: ErrorCode[] = ['runtime_not_found', 'runtime_missing']
const success = <Result extends object>(result: Result) => ({ status: 'success', ...result })

const INSTALL_ERRORS = [...USE_ERRORS, ...DOWNLOAD_ERRORS]

export function runtimeRoutes(app: FastifyInstance, { runtimes, streams }: NativeDependencies): void {
  const route = nativeRouter(app, 'llama.cpp builds')

  route('GET /runtimes', 'listRuntimes', 'List llama.cpp builds, which one is used, and why', {
    role: 'operator',
    response: json('The builds and how they were ranked', Named('RuntimesReport', RuntimesReportSchema)),
    errors: ['runtime_missing'],
    handler: async ({ caller, server }) => {
      await runtimes.rank()
      const report = runtimes.report()
      if (caller.role === 'admin') return report
      const builds = [...report.installed.map(({ build }) => build), ...(report.chosen ? [report.chosen] : [])]
      const places = builds.map(({ directory }) => ({ path: directory, shown: basename(directory) }))
      return withoutServerPaths(report, [...places, ...server.folders])
    }
  })

  route('POST /runtimes/install', 'installRuntime', 'Install a build', {
    role: 'admin',
    body: InstallRequestSchema,
    bodyOptional: true,
    response: streams.workReply('The installed build', BuildReplySchema),
    errors: INSTALL_ERRORS,
    handler: async ({ body }, reply) => {
      const wanted = installRequest(body)
      const work = async (waiting: Waiting) => success({ build: await runtimes.install(wanted, waiting) })
      return await streams.replyToWork(reply, body, work, { streams: true })
    }
  })

  route('POST /runtimes/use', 'useRuntime', 'Choose the build that engines run on', {
    role: 'admin',
    body: UseRequestSchema,
    response: streams.workReply('The chosen build', BuildReplySchema),
    errors: USE_ERRORS,
    handler: async ({ body }, reply) => {
      const work = async (waiting: Waiting) => success({ build: await runtimes.use(body.runtime, waiting) })
      return await streams.replyToWork(reply, body, work)
    }
  })

  route('POST /runtimes/upgrade', 'upgradeRuntime', 'Install and use the newest release of the build in use', {
    role: 'admin',
    body: Loose({ stream: streamed }),
    bodyOptional: true,
    response: streams.workReply('The build in use now, and the previous one', UpgradeReplySchema),
    errors: INSTALL_ERRORS,
    handler: async ({ body }, reply) => {
      const work = async (waiting: Waiting) => success(await runtimes.upgrade(waiting))
      return await streams.replyToWork(reply, body, work, { streams: true })
    }
  })

  route('DELETE /runtimes/:id', 'deleteRuntime', 'Remove an installed build', {
    role: 'admin',
    params: Type.Object({ id: Text('Id of an installed build') }),
    response: json('Removed', Done('deleted')),
    errors: ['invalid_request', 'runtime_not_found', 'runtime_in_use'],
    handler: async ({ params: { id } }) => {
      await runtimes.remove(id)
      return { status: 'deleted' }
    }
  })
}

/** Validates an install request before a reply is sent. @throws CorralError `invalid_request` */
function installRequest(body: Static<typeof InstallRequestSchema>): InstallRequest {
  const { runtime, version, archive, companions, sha256 } = body
  const invalid = (message: string) => invalidRequest('archive', message)
  if (!archive) {
    if (sha256 || companions) throw invalid('"sha256" and "companions" need "archive". Set it, or leave them out.')
    return { ...(runtime && { runtime }), ...(version && { version }) }
  }
  if (version) {
    throw invalidRequest('version', 'The version of an archive cannot be chosen. Leave "version" out.')
  }
  if (![archive, ...(companions ?? [])].every(path => isAbsolute(path))) {
    throw invalid('Archive paths must be absolute because the server does not know your current folder.')
  }
  return { archive, ...(companions && { companions }), ...(sha256 && { sha256 }), ...(runtime && { runtime }) }
}
