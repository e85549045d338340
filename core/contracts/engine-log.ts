import { type Static, Type } from 'typebox'
import { Time } from './native-records.ts'

const loose = { additionalProperties: true }

/** The output of one engine and how it ended. */
export const EngineLogSchema = Type.Object(
  {
    engine: Type.String({ description: 'Identifies one start of a llama-server' }),
    build: Type.String({ description: 'Id of its llama.cpp build' }),
    startedAt: Time(),
    endedAt: Type.Optional(Time()),
    exit: Type.Optional(
      Type.Object(
        { code: Type.Union([Type.Integer(), Type.Null()]), signal: Type.Union([Type.String(), Type.Null()]) },
        loose
      )
    ),
    failure: Type.Optional(
      Type.Object(
        { code: Type.String(), cause: Type.String({ description: 'As in docs/failures.md' }), message: Type.String() },
        loose
      )
    ),
    dropped: Type.Integer({ minimum: 0, description: 'Number of earlier lines that are not in lines' }),
    /** Paths are reduced to their last part. */
    lines: Type.Array(Type.String(), { description: 'Oldest first' }),
    events: Type.Optional(
      Type.Array(
        Type.Object(
          {
            line: Type.Integer({ minimum: 0, description: "The line's number, counted from the engine's start" }),
            text: Type.String()
          },
          loose
        ),
        { description: 'Plain explanations of the lines that matter to users' }
      )
    )
  },
  { ...loose, title: 'EngineLog' }
)
export type EngineLogRecord = Static<typeof EngineLogSchema>
