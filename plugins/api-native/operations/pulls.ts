import { Type } from 'typebox'
import type { ErrorCode } from '../../../core/errors.ts'
import { errorResponses, json, jsonOrStream, nativeErrors } from '../../../core/http/response-schemas.ts'
import type { StreamType } from '../framing.ts'
import { PullRequestSchema, PullsRequestSchema } from '../schemas.ts'
import { Bytes, Done, Format, Sha256, Time } from './fields.ts'

const loose = { additionalProperties: true }
const tags = ['Pulls']

const FileProgressSchema = Type.Object({ path: Type.String(), completed: Bytes(), total: Bytes() }, loose)

const PullSchema = Type.Object(
  {
    id: Type.String(),
    model: Type.String({ description: 'As it will be listed: <owner>/<name>:<variant>' }),
    state: Type.Enum(['downloading', 'storing', 'paused', 'failed']),
    detached: Type.Boolean({ description: 'Goes on without anybody watching' }),
    origin: Type.String(),
    created_at: Time(),
    completed: Bytes('On disk'),
    total: Bytes(),
    speed: Type.Number({ minimum: 0, description: 'Bytes a second in the last seconds' }),
    files: Type.Array(FileProgressSchema),
    reason: Type.Optional(Type.String({ description: 'Why it is paused or failed' }))
  },
  { ...loose, title: 'Pull' }
)

const room = Type.Object({ required: Bytes(), available: Bytes(), fits: Type.Boolean() }, loose)

const PullPlanSchema = Type.Object(
  {
    model: Type.String(),
    label: Type.String({ description: 'Variant that it will be, such as Q4_K_M' }),
    format: Format,
    repository: Type.Object(
      {
        hub: Type.String(),
        id: Type.String(),
        revision: Type.String({ description: 'Names the content for good' }),
        address: Type.String({ description: 'Where people see it' }),
        gated: Type.Boolean({ description: 'The hub wants the reader to agree to terms first' })
      },
      loose
    ),
    files: Type.Array(
      Type.Object(
        {
          path: Type.String({ description: 'In the repository' }),
          role: Type.Enum(['model', 'projector', 'other']),
          size: Type.Optional(Bytes()),
          sha256: Type.Optional(Sha256()),
          gitSha1: Type.Optional(Type.String({ description: "40 hex digits: SHA-1 of git's blob" }))
        },
        loose
      )
    ),
    size: Bytes('Of all files whose size is known'),
    reason: Type.String({ description: 'Why these files' }),
    choices: Type.Array(Type.Object({ label: Type.String(), size: Bytes() }, loose), {
      description: 'What else could be had, the best first'
    }),
    memory: room,
    disk: room,
    warnings: Type.Array(Type.String()),
    present: Type.Boolean({ description: 'The variant with exactly these files is stored already' })
  },
  { ...loose, title: 'PullPlan' }
)

const PullEventSchema = Type.Object(
  {
    status: Type.String({
      description: '"pulling <model>", "downloading <file>", "success", or "error: <message>" as the last one'
    }),
    digest: Type.Optional(Type.String({ description: "The file's path in the repository" })),
    total: Type.Optional(Bytes()),
    completed: Type.Optional(Bytes()),
    error: Type.Optional(Type.String()),
    errorCode: Type.Optional(Type.Integer()),
    code: Type.Optional(Type.String())
  },
  { ...loose, title: 'PullEvent' }
)

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
