import { type Static, Type } from 'typebox'
import type { CaptureRecord } from '../../../../core/contracts/hooks.ts'
import { Time } from '../../../../core/contracts/native-records.ts'
import { Loose } from '../../../../core/http/request-fields.ts'

/** A capture as it is listed. */
export const CaptureSchema = Loose(
  {
    id: Type.String(),
    key: Type.Optional(Type.String({ description: 'Name of the key whose requests are captured' })),
    model: Type.Optional(Type.String({ description: 'The model; all of its variants where it names none' })),
    by: Type.String({ description: 'Who began it' }),
    startedAt: Time(),
    endsAt: Time('When it ends by itself'),
    endedAt: Type.Optional(Time()),
    endReason: Type.Optional(
      Type.String({ description: 'time, stopped, size, restart (of the server) or key_revoked' })
    ),
    records: Type.Integer({ minimum: 0 }),
    bytes: Type.Integer({ minimum: 0 }),
    maxBytes: Type.Integer({ minimum: 0, description: 'Bytes at which it ends' }),
    dropped: Type.Integer({
      minimum: 0,
      description: 'Records that are not kept: a plugin left them out or failed, or the disk did'
    })
  },
  { title: 'Capture' }
)
export type Capture = Static<typeof CaptureSchema>

/** The file of a capture. */
export const CaptureFileSchema = Type.Object({
  version: Type.Literal(1),
  /** Owner of the key, which stays the same when the key is replaced. */
  owner: Type.Optional(Type.String()),
  capture: CaptureSchema
})
export type CaptureFile = Static<typeof CaptureFileSchema>

const Count = Type.Integer({ minimum: 0 })

/** A captured request, as `GET /api/captures/:id` gives it. */
export const CaptureRecordSchema = Loose(
  {
    time: Time('When the request was over'),
    requestId: Type.String(),
    key: Type.Optional(Type.String()),
    address: Type.String(),
    surface: Type.String(),
    operation: Type.String(),
    model: Type.String(),
    body: Type.Unknown({ description: 'The request in the hosted-chat shape, whichever API it came by' }),
    answer: Type.Array(
      Loose({
        content: Type.Optional(Type.String()),
        thinking: Type.Optional(Type.String()),
        toolCalls: Type.Optional(Type.Array(Loose({ name: Type.String(), arguments: Type.String() }))),
        finish: Type.Optional(Type.String())
      }),
      { description: 'The choices of an answer in text; empty for vectors and scores' }
    ),
    status: Type.Integer(),
    code: Type.Optional(Type.String()),
    tokens: Loose({ in: Count, cached: Count, out: Count }),
    cut: Type.Optional(Type.Literal(true, { description: 'Something of it was too long, or a file' }))
  },
  { title: 'CaptureRecord' }
)

/** A record without what plugins may have put into it that JSON has no word for. */
export const lineOf = (record: CaptureRecord) => `${JSON.stringify(record)}\n`
