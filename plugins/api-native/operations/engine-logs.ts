import { Type } from 'typebox'
import { Time } from '../../../core/contracts/native-records.ts'
import { errorResponses, jsonOrStream, nativeErrors } from '../../../core/http/response-schemas.ts'
import type { StreamType } from '../native-streams.ts'

const loose = { additionalProperties: true }

const engine = Type.String({ description: 'Names one start of a llama-server' })
const exit = Type.Object(
  { code: Type.Union([Type.Integer(), Type.Null()]), signal: Type.Union([Type.String(), Type.Null()]) },
  loose
)
const failure = Type.Object(
  { code: Type.String(), cause: Type.String({ description: 'As in docs/failures.md' }), message: Type.String() },
  loose
)

const EngineLogSchema = Type.Object(
  {
    engine,
    build: Type.String({ description: 'Id of its llama.cpp build' }),
    startedAt: Time(),
    endedAt: Type.Optional(Time()),
    exit: Type.Optional(exit),
    failure: Type.Optional(failure),
    dropped: Type.Integer({ minimum: 0, description: 'Earlier lines that are not in lines' }),
    lines: Type.Array(Type.String(), { description: 'Oldest first' })
  },
  { ...loose, title: 'EngineLog' }
)

const LogEventSchema = Type.Union([
  Type.Object({ engine, line: Type.String() }, loose),
  Type.Object({ engine, build: Type.String(), startedAt: Time() }, loose),
  Type.Object({ engine, endedAt: Time(), exit: Type.Optional(exit), failure: Type.Optional(failure) }, loose),
  Type.Object({ status: Type.String() }, loose)
])

/** How logs are described, with streams of these types. */
export function logOperations(types: readonly StreamType[]) {
  return {
    logs: {
      summary: "Show what a model's latest engines printed",
      description: 'The newest engine first. With `follow` it is a stream of what comes, until the client leaves.',
      tags: ['Server'],
      operationId: 'getLogs',
      // Names hold a slash, which clients send as it is or as %2F.
      params: Type.Object({
        '*': Type.String({ title: 'model', description: '<owner>/<name> or <owner>/<name>:<variant>' })
      }),
      querystring: Type.Object({
        lines: Type.Optional(
          Type.String({ pattern: '^\\d{1,6}$', description: 'A number: only so many last lines of each engine' })
        ),
        follow: Type.Optional(
          Type.Enum(['1', 'true', '0', 'false'], { description: 'Stream what comes, until the client leaves' })
        )
      }),
      response: {
        200: jsonOrStream(
          'What they printed, and how they ended',
          Type.Object({ model: Type.String(), engines: Type.Array(EngineLogSchema) }, loose),
          { event: 'Lines, beginnings and ends of engines', item: LogEventSchema, types }
        ),
        ...errorResponses(nativeErrors, ['invalid_request', 'invalid_model_name', 'model_not_found'], { body: false })
      }
    }
  }
}
