import { type Static, type TSchema, Type } from 'typebox'

/** A moment as all replies give it. */
export const Time = (description?: string) =>
  Type.String({ format: 'date-time', description: description ?? 'ISO 8601 UTC' })

export const Nanoseconds = (description: string) =>
  Type.Integer({ minimum: 0, description: `Nanoseconds. ${description}` })

export const Bytes = (description?: string) =>
  Type.Integer({ minimum: 0, description: description ? `Bytes. ${description}` : 'Bytes' })

export const Sha256 = (description = '64 hex digits') => Type.String({ pattern: '^[0-9a-f]{64}$', description })

export const Format = Type.Enum(['gguf', 'safetensors'])

/** A reply that only says that something is done. */
export const Done = <Status extends string>(status: Status) =>
  Type.Object({ status: Type.Literal(status) }, { additionalProperties: true })

/** A schema of elsewhere under a name in the document. */
export const Named = <Schema extends TSchema>(title: string, schema: Schema) =>
  Type.Unsafe<Static<Schema>>({ ...schema, title })
