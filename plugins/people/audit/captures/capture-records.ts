import { type Static, Type } from 'typebox'
import { Time } from '../../../../core/contracts/native-records.ts'
import { Loose, Text, Titled } from '../../../../core/http/request-fields.ts'

export const CaptureSchema = Titled('Capture', {
  id: Type.String(),
  key: Type.Optional(Text('Name of the key whose requests are captured')),
  model: Type.Optional(Text('The model; all of its variants if it names none')),
  by: Text('Who started the capture'),
  startedAt: Time(),
  endsAt: Time('When the capture ends automatically'),
  endedAt: Type.Optional(Time()),
  endReason: Type.Optional(Text('time, stopped, size, restart (of the server) or key_revoked')),
  records: Type.Integer({ minimum: 0 }),
  bytes: Type.Integer({ minimum: 0 }),
  maxBytes: Type.Integer({ minimum: 0, description: 'Size in bytes at which the capture ends' }),
  dropped: Type.Integer({
    minimum: 0,
    description: 'Records that were not stored because a plugin left them out or failed, or because of a disk error'
  })
})
export type Capture = Static<typeof CaptureSchema>

export const CaptureFileSchema = Type.Object({
  version: Type.Literal(1),
  /** Owner of the key. It stays the same when the key is replaced. */
  owner: Type.Optional(Type.String()),
  capture: CaptureSchema
})
export type CaptureFile = Static<typeof CaptureFileSchema>

const Count = Type.Integer({ minimum: 0 })

/** A captured request, as returned by `GET /api/captures/:id`. */
export const CaptureRecordSchema = Titled('CaptureRecord', {
  time: Time('When the request ended'),
  requestId: Type.String(),
  key: Type.Optional(Type.String()),
  address: Type.String(),
  surface: Type.String(),
  operation: Type.String(),
  model: Type.String(),
  body: Type.Unknown({ description: 'The request in the OpenAI chat format, whichever API it came through' }),
  answer: Type.Array(
    Loose({
      content: Type.Optional(Type.String()),
      thinking: Type.Optional(Type.String()),
      toolCalls: Type.Optional(Type.Array(Loose({ name: Type.String(), arguments: Type.String() }))),
      finish: Type.Optional(Type.String())
    }),
    { description: 'Text of each choice of the answer; empty for vectors and scores' }
  ),
  status: Type.Integer(),
  code: Type.Optional(Type.String()),
  tokens: Loose({ in: Count, cached: Count, out: Count }),
  cut: Type.Optional(Type.Literal(true, { description: 'Part of the record was too long, or a file' }))
})
