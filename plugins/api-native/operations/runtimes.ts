import { type Static, Type } from 'typebox'
import { BuildSchema, RuntimesReportSchema } from '../../../core/contracts/builds.ts'
import { Done, Named } from '../../../core/contracts/native-records.ts'
import type { ErrorCode } from '../../../core/errors.ts'
import { errorResponses, json, nativeErrors } from '../../../core/http/response-schemas.ts'
import type { StreamType } from '../native-streams.ts'
import { InstallRequestSchema, UpgradeRequestSchema, UseRequestSchema } from '../schemas.ts'
import { workReply } from './work.ts'

const loose = { additionalProperties: true }
const tags = ['llama.cpp builds']

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
  'hub_unreachable',
  'checksum_mismatch',
  'hub_rate_limited',
  'insufficient_storage'
]

/** How the routes of llama.cpp builds are described, with streams of these types. */
export function runtimeOperations(types: readonly StreamType[]) {
  return {
    report: {
      summary: 'Tell which llama.cpp builds there are, which one is used, and why',
      tags,
      operationId: 'listRuntimes',
      response: {
        200: json('All that is known', Named('RuntimesReport', RuntimesReportSchema)),
        ...errorResponses(nativeErrors, ['runtime_missing'], { body: false })
      }
    },
    install: {
      summary: 'Install a build',
      description: 'From a release, or from an archive on the server. It is not used by that.',
      tags,
      operationId: 'installRuntime',
      body: InstallRequestSchema,
      bodyOptional: true,
      response: {
        200: workReply('The installed build', BuildReplySchema, types),
        ...errorResponses(nativeErrors, INSTALL_ERRORS)
      }
    },
    use: {
      summary: 'Choose the build that engines run on',
      tags,
      operationId: 'useRuntime',
      body: UseRequestSchema,
      response: {
        200: workReply('The chosen build', BuildReplySchema, types),
        ...errorResponses(nativeErrors, USE_ERRORS)
      }
    },
    upgrade: {
      summary: 'Install and use the newest release of the build in use',
      description: 'When it fails its proof, the former one stays.',
      tags,
      operationId: 'upgradeRuntime',
      body: UpgradeRequestSchema,
      bodyOptional: true,
      response: {
        200: workReply('The build that is used now, and the former one', UpgradeReplySchema, types),
        ...errorResponses(nativeErrors, INSTALL_ERRORS)
      }
    },
    remove: {
      summary: 'Remove an installed build',
      tags,
      operationId: 'deleteRuntime',
      params: Type.Object({ id: Type.String({ description: 'Id of an installed build' }) }),
      response: {
        200: json('It is gone', Done('deleted')),
        ...errorResponses(nativeErrors, ['invalid_request', 'runtime_not_found', 'runtime_in_use'], { body: false })
      }
    }
  }
}
