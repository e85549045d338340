import { type Static, Type } from 'typebox'
import { Count, Items, Loose, Text, Texts, Titled } from '../http/request-fields.ts'
import { Time } from './native-records.ts'

/** The output of one engine and how it ended. */
export const EngineLogSchema = Titled('EngineLog', {
  engine: Text('Identifies one start of an engine'),
  build: Text('Id of its llama.cpp build, or name of its program'),
  startedAt: Time(),
  endedAt: Type.Optional(Time()),
  exit: Type.Optional(
    Loose({ code: Type.Union([Type.Integer(), Type.Null()]), signal: Type.Union([Type.String(), Type.Null()]) })
  ),
  failure: Type.Optional(Loose({ code: Type.String(), cause: Text('As in docs/failures.md'), message: Type.String() })),
  dropped: Count('Number of earlier lines that are not in lines'),
  /** Paths are reduced to their last part. */
  lines: Texts('Oldest first'),
  events: Type.Optional(
    Items('Plain explanations of the lines that matter to users', {
      line: Count("The line's number, counted from the engine's start"),
      text: Type.String()
    })
  )
})
export type EngineLogRecord = Static<typeof EngineLogSchema>
