import { Type } from 'typebox'
import { Done, PullEventSchema, PullPlanSchema, PullSchema } from '../../../core/contracts/native-records.ts'
import type { ErrorCode } from '../../../core/errors.ts'
import { errorResponses, json, jsonOrStream, nativeErrors } from '../../../core/http/response-schemas.ts'
import type { StreamType } from '../native-streams.ts'
import { PullRequestSchema, PullsRequestSchema } from '../schemas.ts'

const loose = { additionalProperties: true }
const tags = ['Pulls']

const PULL_ERRORS: ErrorCode[] = [
  'invalid_model_name',
  'unsupported_capability',
  'hub_forbidden',
  'repo_not_found',
  'model_not_found',
  'model_exists',
  'pull_cancelled',
  'hub_unreachable',
  'checksum_mismatch',
  'hub_rate_limited',
  'insufficient_storage'
]
const named = errorResponses(nativeErrors, ['invalid_model_name', 'model_not_found'])

/** How pulls are described, at a mount with streams of these types. */
export function pullOperations(types: readonly StreamType[]) {
  return {
    pull: {
      summary: 'Fetch a model from a hub',
      description: 'Goes on while somebody watches; `detach` lets it go on without. What was fetched is kept.',
      tags,
      operationId: 'pullModel',
      body: PullRequestSchema,
      response: {
        200: jsonOrStream(
          'The model is stored; with `dry_run` what would be fetched',
          Type.Union([PullPlanSchema, Done('success')]),
          {
            event: 'How far each file is; the last event is a success or an error',
            item: PullEventSchema,
            types
          }
        ),
        202: json('It goes on by itself', PullSchema),
        ...errorResponses(nativeErrors, PULL_ERRORS)
      }
    },
    list: {
      summary: 'List the pulls that are not done',
      tags,
      operationId: 'listPulls',
      response: {
        200: json('The oldest first', Type.Object({ pulls: Type.Array(PullSchema) }, loose)),
        ...errorResponses(nativeErrors, [], { body: false })
      }
    },
    get: {
      summary: 'Tell how far a pull is',
      tags,
      operationId: 'getPull',
      params: Type.Object({ id: Type.String({ description: "A pull's id, or the model that it fetches" }) }),
      response: {
        200: json('The pull', PullSchema),
        ...errorResponses(nativeErrors, ['model_not_found'], { body: false })
      }
    },
    pause: {
      summary: 'Pause a pull',
      tags,
      operationId: 'pausePull',
      body: PullsRequestSchema,
      response: { 200: json('The pull', PullSchema), ...named }
    },
    resume: {
      summary: 'Continue a pull without anybody watching',
      tags,
      operationId: 'resumePull',
      body: PullsRequestSchema,
      response: { 200: json('The pull', PullSchema), ...errorResponses(nativeErrors, PULL_ERRORS) }
    },
    cancel: {
      summary: 'End a pull and remove what was fetched',
      tags,
      operationId: 'cancelPull',
      body: PullsRequestSchema,
      response: { 200: json('It is gone', Done('cancelled')), ...named }
    }
  }
}
