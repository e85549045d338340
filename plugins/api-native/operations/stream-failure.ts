import { Type } from 'typebox'
import { Time } from '../../../core/contracts/native-records.ts'

/** The last event of an answer that failed after its stream had begun. */
export const streamFailure = Type.Object(
  {
    model: Type.String(),
    created_at: Time(),
    done: Type.Literal(true),
    done_reason: Type.Literal('error'),
    error: Type.String({ description: 'What happened, to what, and what to do next' }),
    errorCode: Type.Integer({ description: 'The status that it would have had' }),
    code: Type.String({ description: 'Stable, for programs' })
  },
  { title: 'StreamFailure', additionalProperties: true }
)
