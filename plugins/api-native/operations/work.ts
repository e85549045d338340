import { type TSchema, Type } from 'typebox'
import { jsonOrStream, type ResponseSchema, WorkFailureSchema } from '../../../core/http/response-schemas.ts'
import type { StreamType } from '../framing.ts'

const StepSchema = Type.Object(
  {
    status: Type.String({ description: 'What is being done' }),
    step: Type.Optional(Type.Integer({ description: 'Which part of the work this is' })),
    steps: Type.Optional(Type.Integer({ description: 'How many there are' })),
    completed: Type.Optional(Type.Number()),
    total: Type.Optional(Type.Number())
  },
  { title: 'WorkStep', additionalProperties: true }
)

/** The reply of work that may be followed: its result, or its steps with the result as the last event. */
export function workReply(description: string, result: TSchema, types: readonly StreamType[]): ResponseSchema {
  return jsonOrStream(description, result, {
    event: 'Steps of the work; the last event is the result',
    item: Type.Union([result, WorkFailureSchema, StepSchema]),
    types
  })
}
