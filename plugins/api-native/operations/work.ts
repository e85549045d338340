import { type TSchema, Type } from 'typebox'
import { WorkStepSchema } from '../../../core/contracts/native-records.ts'
import { jsonOrStream, type ResponseSchema, WorkFailureSchema } from '../../../core/http/response-schemas.ts'
import type { StreamType } from '../native-streams.ts'

/** The reply of work that may be followed: its result, or its steps with the result as the last event. */
export function workReply(description: string, result: TSchema, types: readonly StreamType[]): ResponseSchema {
  return jsonOrStream(description, result, {
    event: 'Steps of the work; the last event is the result',
    item: Type.Union([result, WorkFailureSchema, WorkStepSchema]),
    types
  })
}
