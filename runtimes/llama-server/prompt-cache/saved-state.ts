import { type Static, Type } from 'typebox'
import { TrailSchema } from './trail.ts'

export const StateRecordSchema = Type.Object({
  version: Type.Literal(2),
  variant: Type.String(),
  key: Type.String(),
  revision: Type.String(),
  /** The owner of the prompt (`Caller.owner`). Prompts of other owners are never compared with it. */
  owner: Type.String(),
  trail: TrailSchema,
  tokens: Type.Integer({ minimum: 1 }),
  bytes: Type.Integer({ minimum: 1 }),
  crc32: Type.Integer({ minimum: 0 }),
  slots: Type.Integer({ minimum: 1 }),
  /** Streams of its file, 0 if it fits any number of slots. Absent if it cannot be rewritten for another number. */
  streams: Type.Optional(Type.Integer({ minimum: 0 })),
  /** Milliseconds per token that the engine took for prefill. */
  pace: Type.Optional(Type.Number({ minimum: 0 })),
  /** When the conversation last continued, in milliseconds since 1970. */
  usedAt: Type.Number(),
  tier: Type.Enum(['memory', 'disk'])
})
/** The record of a saved state on disk, beside its file. */
export type StateRecord = Static<typeof StateRecordSchema>
export type Tier = StateRecord['tier']
/** A saved state. Its checksum is unknown until its file has been read again. */
export interface SavedState extends Omit<StateRecord, 'version' | 'crc32'> {
  readonly id: string
  crc32?: number
}
